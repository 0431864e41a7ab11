# SPDX-License-Identifier: Apache-2.0
"""
A target, a template and an operation of a third party: all commands work with them, and no file
of jitgen's knows them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import jitgen as package
from jitgen.config import Config
from jitgen.config.plugins import OPERATIONS, TARGETS, PluginKind
from jitgen.errors import InputError
from jitgen.settings import settings
from tests.cli.conftest import Jitgen

NAME = "scale_rows_v4_acme_cpu"


@pytest.fixture
def acme(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Find the test package, and trust it."""
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("JITGEN_PLUGINS", "Jitgen_Acme")  # any spelling of jitgen-acme


@pytest.fixture
def cached(module_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cache for the tests that want a compiled kernel."""
    monkeypatch.setenv("JITGEN_CACHE_DIR", str(module_root))


@pytest.fixture(scope="module")
def module_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels", numbered=True)


def check_a_call() -> None:
    """Compare a call of the kernel with what torch computes: odd sizes, a group without rows."""
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    x, s = torch.randn(6, 11), torch.tensor([2.0, 0.0, -0.5])
    out = torch.full_like(x, 7.0)
    package.get_kernel(NAME)(x, s, ends, out)

    assert torch.equal(out[:5], x[:5] * s[torch.tensor([0, 0, 2, 2, 2])][:, None])
    assert torch.equal(out[5], torch.full((11,), 7.0))  # of no group


def check_wrong_calls() -> None:
    """What the operation says is wrong is told; one that says nothing has no direct calls."""
    kernel = package.get_kernel(NAME)
    with pytest.raises(InputError, match=f"arguments: must be 4 for {NAME}"):
        kernel(torch.randn(6, 11))
    silent = OPERATIONS.get("scale_rows")._replace(direct="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jitgen.runtime.kernel.operation", lambda _: silent)
        with pytest.raises(InputError, match=r"Operation\.direct"):
            kernel(1, 2, 3, 4)


@pytest.mark.usefixtures("acme")
class TestCommands:
    def test_configs(self, jitgen: Jitgen) -> None:
        words = "configs --arch acme_cpu --op scale_rows"
        refused = jitgen(words, "--all --set vector=3 --json").document["configs"]

        assert jitgen(words).out.split() == [f"scale_rows_v{v}_acme_cpu" for v in (1, 4, 8, 16)]
        assert [(one["name"], one["code"]) for one in refused] == [
            ("scale_rows_v3_acme_cpu", "E_VECTOR")
        ]
        assert refused[0]["proposal"] == NAME

    def test_what_a_source_is_made_of(self, jitgen: Jitgen) -> None:
        """Templates of plug-ins are followed as jitgen's own."""
        parts = jitgen("show", NAME, "--partials", "--json").document["partials"]
        lines = jitgen("show", NAME, "--source", "--from").out

        found = [(part["partial"], part["depth"]) for part in parts]
        assert found[0] == ("acme/scale_rows.py.jinja", 0)
        assert ("acme/_arguments.py.jinja", 1) in found
        assert "acme/_arguments.py.jinja:" in lines

    def test_configs_of_what_it_has_not(self, jitgen: Jitgen) -> None:
        done = jitgen("configs --arch acme_cpu")

        assert done.code == 2
        assert done.err == (
            "error: acme_cpu has no kernel for grouped_gemm; it has some for: scale_rows\n"
        )

    def test_a_parameter_that_configs_have_not(self, jitgen: Jitgen) -> None:
        done = jitgen("configs --arch acme_cpu --op scale_rows --dtype bf16")

        assert done.code == 2
        assert done.err == "error: scale_rows has no parameter 'a_dtype'; it has: vector\n"

    def test_select(self, jitgen: Jitgen) -> None:
        words = "select --op scale_rows --arch acme_cpu -g 3 -m 10 --set k=5 --json"
        found = jitgen(words).document

        assert found["name"] == NAME
        assert [one["name"] for one in found["candidates"]] == [NAME, "scale_rows_v1_acme_cpu"]

    def test_select_by_device(self) -> None:
        """Another device is another cost."""
        sizes = OPERATIONS.get("scale_rows").problem_type(groups=1, m=16, k=64)
        one, two = (
            package.select(sizes, "acme_cpu", device=name).candidates[0].cost
            for name in ("Acme One", "Acme Two")
        )

        assert one == 2 * two

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ("-g 1", "scale_rows needs m, k; give it as an option, or with --set m=..."),
            (
                "-g 1 -m 1 -k 1 -n 8",
                "no field 'n': it belongs to activation_backward and activation_quantize and",
            ),
            ("-g 1 -m 1 --set k=x", "k must be an integer of at least 1 (got 'x')"),
            ("-g 1 -m 1 -k 2 --set k", "'k' is not FIELD=VALUE"),
        ],
    )
    def test_select_refuses(self, jitgen: Jitgen, words: str, said: str) -> None:
        done = jitgen("select --op scale_rows --arch acme_cpu", words)

        assert done.code == 2
        assert said in done.err.splitlines()[-1]

    @pytest.mark.usefixtures("cached")
    def test_prewarm_explain_and_call(self, jitgen: Jitgen) -> None:
        before = jitgen("cache explain", NAME)
        warmed = jitgen("prewarm --config", NAME, "--json")
        after = jitgen("cache explain", NAME, "--json").document
        shown = jitgen("show", NAME, "--json").document

        assert "\nhit " not in before.out
        assert warmed.code == 0, warmed.err
        assert [row["state"] for row in warmed.document["kernels"]] == ["compiled"]
        assert after["state"] == "hit"
        assert shown["derived"] == {"vector_bytes": 16}
        assert shown["entry"] is not None
        with settings.scope(on_miss="error"):
            check_a_call()
            check_wrong_calls()

    def test_show(self, jitgen: Jitgen) -> None:
        source = jitgen("show", NAME, "--source").out
        document = jitgen("show", NAME, "--key --json").document

        compile(source, NAME, "exec")
        assert '{"op":"scale_rows","vector":4}' in source  # by shared/header.py.jinja
        assert "VECTOR = 4  # values, 16 bytes" in source
        brought = {"distribution": "jitgen-acme", "version": "1.0"}
        assert document["key_document"]["plugins"] == {"targets": brought, "ops": brought}
        assert document["key"] == jitgen("show", NAME, "--key").out.strip()

    def test_what_it_cannot_do(self, jitgen: Jitgen) -> None:
        for words, said in (
            (f"verify {NAME}", "kernels of scale_rows cannot be verified"),
            ("prewarm deepseek-v3 --arch acme_cpu", "acme_cpu has no kernel for grouped_gemm"),
            ("prewarm --config scale_rows_v3_acme_cpu", f"nearest legal config is {NAME}"),
            (f"show {NAME} --ptx", "it has a source, but no ptx"),
        ):
            done = jitgen(words)
            assert done.code == 2, words
            assert said in done.err

    def test_doctor(self, jitgen: Jitgen) -> None:
        found = {one["name"]: one for one in jitgen("doctor --json").document["findings"]}

        assert found["Jitgen_Acme"]["value"] == "arch acme_cpu, operation scale_rows"
        assert found["run acme_cpu"]["value"] == "yes"


@pytest.mark.usefixtures("cached")
def test_a_program_that_trusts_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile processes load what the program named, though no variable of theirs said so."""
    monkeypatch.syspath_prepend(folder)
    with settings.scope(plugins=("jitgen-acme",)):
        config, arch = Config.parse(NAME.replace("v4", "v8"))
        report = package.prewarm([config], arch=arch)

    assert report.ok, report.rows


@pytest.mark.parametrize("kind", [TARGETS, OPERATIONS], ids=lambda kind: kind.package)
def test_what_is_built_in_keeps_the_protocol(kind: PluginKind) -> None:
    assert kind.built_in()
    for name in kind.built_in():
        assert kind.lacks(kind.get(name)) == ()
        assert kind.get(name).name == name
        assert kind.origin(name) is None
