# SPDX-License-Identifier: Apache-2.0
"""
Command lines with one mistake each. The documents were their only source, not the code.

Each used to have some effect and no error, to fail late, or to end with an error about something
else.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jitgen.settings import settings
from tests.cli.conftest import Jitgen
from tests.cli.test_main import NAME

CPU = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t16x128x128_c1x1_acc1_cpu"
SIZES = "--arch cpu -g 8 -m 8 -n 128 -k 128"
ROUTE = "--arch cpu --op route -m 64 --set experts=256"
PLAN = """\
[[problems]]
layout = "ragged"
groups = 4
rows_per_group = 1
matrix = { n = 256, k = 512 }
"""


@pytest.fixture
def place(tmp_path: Path, cache_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a plan, a model's config, and one of a model without experts."""
    (tmp_path / "mine.toml").write_text(PLAN)
    sizes = {"hidden_size": 256, "moe_intermediate_size": 128, "num_experts_per_tok": 2}
    experts = {"model_type": "qwen3_moe", "num_experts": 8, "norm_topk_prob": True, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(experts))
    (tmp_path / "dense.json").write_text(json.dumps({"hidden_size": 256}))
    (tmp_path / "rec.py").write_text("print('no cases')\n")
    (tmp_path / "none.cases").write_text('{"cases": []}')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        # options that had no effect
        (f"prewarm --config {CPU} --arch sm_100a", "--arch: for plans alone; the name of a kernel"),
        (f"prewarm --config {CPU} --device H200", "--device: for plans alone; the name of a"),
        (f"cache pull {CPU} --from file:///none --arch cpu", "--arch: for plans alone; the name"),
        (f"show {CPU} --source --key", "--source and --key: give one of them"),
        (f"diff {CPU} {CPU} --source --ptx", "--source and --ptx: give one of them"),
        ("tune mine.toml --arch cpu --within 2", "--within: only with --space"),
        ("tune mine.toml --arch cpu --budget 60", "--budget: only with --space"),
        ("tune --import x.json --time-limit 5", "--time-limit: not with --import, which measures"),
        ("tune --export x.json --again", "--again: not with --export alone, which measures"),
        (f"verify {CPU} --rebuild --modes all", "--modes: not with --rebuild, which runs nothing"),
        ("cache ls --failures --sort size", "--sort: not with --failures, which lists all"),
        ("cache verify --signatures --rebuild", "--rebuild: not with --signatures, which changes"),
        ("cache push --to file:///none --builder me", "--builder: only with --key"),
        ("plan from-config config.json --group --max-tokens 8", "--group needs --expert-ranks"),
        (f"select {ROUTE} --set top_k=8 --mode static", "--mode: for grouped_gemm alone; others"),
        ("bench layer --kernels --save x.json", "--save: not with --kernels, which measures"),
        ("bench layer --ranks 2 --no-steps", "--ranks goes with --experts, --tokens, --rounds"),
        # values of which one was lost
        (f"select {SIZES} --set n=256", "n is given twice: --n and --set n; give one"),
        (f"select {ROUTE} --set top_k=8 --set top_k=4", "top_k is given twice; give one value"),
        ("configs --arch cpu --layout ragged --set layout=masked", "layout is given twice: "),
        ("tune mine.toml --space --set tile_m=8 --set tile_m=16", "give all values at once, as"),
        # values that there are not
        ("configs --arch cpu --set tile_m=abc", "no config has tile_m='abc'; there are: 8, 16, 32"),
        ("cache push --to file://relative/x", "a folder by its absolute path, as in file:///"),
        ("cache push --to s3://", "http:// and a bucket"),
        (f"verify {NAME} --modes random-9..1", "'random-9..1' is no range of seeds"),
        (f"verify {CPU} --problem 0:1:8:8", "is not G:M:N:K: groups (at least 1), rows in all"),
        ("token pods --scopes read,", "(got '')"),
        ("bench layer --ranks 99", "'--ranks': 99 is not in the range 2<=x<=8"),
        ("bench layer --tokens 0", "must be numbers of at least 1, such as 1,8,64 (got '0')"),
        ("bench hopper-fp4 --kernels --cases none.cases", "there is no case to measure"),
        # hints that led nowhere
        ("prewarm config.json", "; jitgen plan from-config makes one of a model's config.json"),
        (f"prewarm {CPU}", "; it is a kernel's name, which jitgen prewarm takes with --config"),
        (f"run {CPU}", "'; jitgen show NAME --source -o FILE makes one"),
        ("plan from-config dense.json", "it says nothing of experts: give the config of a model"),
        ("plan from-config none.json", "none.json cannot be read: No such file or directory"),
        ("cache push", "JITGEN_REMOTE is not set; name a place with --to, such as s3://"),
        (f"cache pull {CPU}", "JITGEN_REMOTE is not set; name a place with --from, such as s3://"),
        (f"cache pull --all {CPU} --from file:///none", "leave out the names, or --all"),
        ("bundle export mine.toml -o x.tar --builder me", "--builder go together: give both, or"),
    ],
)
def test_it_is_told_in_one_line_before_anything_is_done(
    jitgen: Jitgen, place: Path, words: str, complaint: str
) -> None:
    done = jitgen(words)

    assert (done.code, done.out) == (2, "")
    (line,) = (line for line in done.err.splitlines() if not line.startswith(("Usage:", "Try ")))
    assert line.startswith("error: ")
    assert complaint in line
    assert not (place / "cache").exists()


def test_a_layer_that_ranks_cannot_share_is_told_before_it_is_said_to_be_measured(
    jitgen: Jitgen,
) -> None:
    done = jitgen("bench layer --ranks 2 --experts 3")

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: --experts must be a multiple of 2 ranks")


def test_a_page_with_a_wrong_plan_is_told_before_its_kernel_is_looked_at(
    jitgen: Jitgen, place: Path
) -> None:
    done = jitgen(f"inspect {NAME} --plan none -o page.html")

    assert done.code == 2
    assert done.err.startswith("error: no plan 'none'")


@pytest.mark.parametrize("root", ["/proc/none", "mine.toml"])
def test_kernels_that_could_not_be_kept_are_not_compiled(
    jitgen: Jitgen, place: Path, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    """A plan was compiled for minutes, to be told that none of it was kept."""

    def run(*_: object, **__: object) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr("jitgen.compile.workers.run", run)
    with settings.scope(cache_dir=place / root):
        done = jitgen("prewarm mine.toml --arch cpu")

    assert done.code == 1
    assert f"it would not be kept: {place / root} cannot be written: " in done.err
    assert "; set JITGEN_CACHE_DIR" in done.err


def test_a_shard_without_kernels_is_summed_up(jitgen: Jitgen, place: Path) -> None:
    done = [jitgen(f"prewarm mine.toml --arch cpu --dry-run --shard {i}/3") for i in range(3)]

    assert "0 kernels\n" in [each.err for each in done]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("rotate root.pem --root", "root.pem is a root key of trust.json already; jitgen trust"),
        ("rotate ci.pem --root --comment next", "--comment: not with --root, which is about root"),
        ("revoke --before 2999-01-01", "--before 2999-01-01 lies in the future: nothing that is"),
        ("revoke --before 2020-01-01 --reason old", "--reason: needs a DIGEST"),
        ("unrevoke ffff", "'ffff' is not revoked, or too short: nothing is revoked"),
        ("add nonsense", "'nonsense' is neither a key's file nor a public key"),
    ],
)
def test_a_trust_document_stays_as_it_is(
    jitgen: Jitgen, place: Path, words: str, complaint: str
) -> None:
    place.chmod(0o700)
    assert jitgen("trust key ci.pem").code == 0
    assert jitgen("trust init --file trust.json --root-key root.pem").code == 0
    before = (place / "trust.json").read_bytes()
    done = jitgen(f"trust {words} --file trust.json --root-key root.pem")

    assert (done.code, done.out) == (2, "")
    assert complaint in done.err
    assert (place / "trust.json").read_bytes() == before


@pytest.mark.parametrize("words", ["trust public {}", "cache sign --key {}"])
def test_a_file_that_is_no_key_is_not_to_be_made_secret(
    jitgen: Jitgen, place: Path, words: str
) -> None:
    """`chmod 600` was advised for any file, also for a trust document, which all must read."""
    place.chmod(0o700)
    done = jitgen(words.format("mine.toml"))

    assert done.code == 1
    assert done.err == "error: mine.toml is no private key; jitgen trust key makes one\n"


def test_a_root_key_signs_no_kernels(jitgen: Jitgen, place: Path) -> None:
    """`jitgen trust add` was advised, which refuses root keys."""
    place.chmod(0o700)
    jitgen("trust init --file trust.json --root-key root.pem")
    with settings.scope(trust=place / "trust.json"):
        done = jitgen("cache sign --key root.pem")

    assert (done.code, done.out) == (1, "")
    assert "is a root key of trust document 1, which signs no entries" in done.err


def test_a_signer_that_cannot_listen_does_not_say_that_it_does(jitgen: Jitgen, place: Path) -> None:
    place.chmod(0o700)
    jitgen("trust key ci.pem")
    done = jitgen("signer --key ci.pem --socket none/signer")

    assert (done.code, done.out) == (1, "")
    assert "no socket can be made at none/signer" in done.err


@pytest.mark.parametrize(
    ("variable", "value", "complaint"),
    [
        ("JITGEN_REMOTE", "file://a/b", "it must be a folder by its absolute path, as in file:///"),
        ("JITGEN_REMOTE", "s3://a s3://b", "without blanks; commas separate several"),
        ("JITGEN_SERVICE", "https://", "http:// and a host"),
        ("JITGEN_SERVICE", "https://k:99999", "a port from 1 to 65535"),
        ("JITGEN_CACHE_SIZE", "0.5", "and not a part of a byte"),
        ("JITGEN_DEVICE", "H100", "JITGEN_DEVICE is not allowed: device 'H100' may be any of"),
        ("JITGEN_DEVICE", "Z1", "JITGEN_DEVICE is not allowed: device 'Z1' is not known"),
    ],
)
def test_a_variable_is_told_with_its_mistake(
    jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, complaint: str
) -> None:
    monkeypatch.setenv(variable, value)
    done = jitgen("cache dir")

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {variable}")
    assert complaint in done.err


def test_a_c_compiler_that_is_not_there_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cache_root: Path
) -> None:
    """Another compiler used to link, and nothing said so."""
    from jitgen.compile.linker import driver

    monkeypatch.setenv("CC", "/none/gcc")

    assert driver()
    assert "CC=/none/gcc is no program that can be run, so " in caplog.text
