# SPDX-License-Identifier: Apache-2.0
"""Every command line of the documentation is run, as far as a CPU can: see tests/documented.py."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from jitgen.bench.choice.recorded import record, save
from jitgen.bench.layer.report import LayerReport
from jitgen.cli import main
from jitgen.runtime.session import current
from tests import documented, documents, needs
from tests.bench_report import report
from tests.cli.test_bench_layer import found
from tests.documented import HOPPER, HOST, NOWHERE, TYPED_IN, Line

pytestmark = [needs.compiler, needs.linker]

SURVEYS = documents.ROOT / "tests/surveys"
EXAMPLE = str(documents.ROOT / "examples/06_verify_your_own_kernel.py")
DEVICES = str(documents.ROOT / "examples/devices/exchange.json")
ALL = documented.lines()
REPLACED = {
    r"examples/06_verify_your_own_kernel\.py|tests/kernels/\*\.py": EXAMPLE,
    r"examples/devices/exchange\.json|FILE\.json": DEVICES,
    r"(edits|hopper)/my\.py": "my.py",
    r"/etc/jitgen/service\.toml": "config.toml",
    r"/etc/jitgen/signing(-2)?\.pem": "signing.pem",
    r"verify FILE(\.py)?": f"verify {EXAMPLE}",
    r"(?<=hopper-fp4 --formats --cases )FILE": "fp4.json",
    r"prewarm quantize": "prewarm quantize --arch sm_90a",
    r"verify deepseek-v3": "verify small.toml",
    r"verify --rebuild deepseek-v3 --arch sm_90a": "verify --rebuild service.toml --arch cpu",
    r"bundle verify kernels\.tar": "bundle verify kernels.tar --plan service.toml",
    r"run FILE(\.py)?": "run my.py",
    r"bundle export PLAN -o FILE": "bundle export service.toml --arch cpu -o kernels.tar",
    r"bundle export deepseek-v3 --arch \S+": "bundle export service.toml --arch cpu",
    r"A B": f"{HOST} my.py",
    r"DIR_A DIR_B|OLD/templates templates": "installed installed",
    r"\$?NAME": HOPPER,
    r"(?<=--arch )ARCH": "sm_90a",
    r"(?<=--arch )" + HOPPER: "sm_90a",
    r"FIELD=V,V\.\.\.": "tile_m=8,16",
    r"G:M:N:K": "2:16:64:128",
    r"(?<=--(budget|-limit) )S": "60",
    r"PLAN": "service.toml --arch cpu",
    r'"\$\w+/8"|\$\{\{ matrix.shard \}\}/4|i/n': "0/8",
    r"'nXTS\.\.\.='|NEW": "ci.pem",
    r"--reason \.\.\.": "--reason lost",
    r"prewarm --shard": "prewarm service.toml --arch cpu --shard",
    r"tune --again": "tune service.toml --arch cpu --again",
    r"select(?= --(mode static|device none|numerics invariant))": (
        "select -g 8 -m 64 -n 512 -k 512 --arch sm_120a"
    ),
    r"DIGEST": "0" * 64,
}
"""What a reader replaces, by patterns of words, in this order."""

MADE = {
    r"trust init": ("root.pem", "trust.json"),
    r"trust key (\S+)": (r"\1",),
}
"""What a line makes, and must not find there."""

EXPORT = ("bundle", "export", "service.toml", "--arch", "cpu")

SMALL = """
[[problems]]
layout = "masked"
groups = 2
rows_per_group = [8]
matrix = { n = 128, k = 256 }
"""


MODEL = {
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "hidden_size": 256,
    "intermediate_size": 128,
}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that the pages name."""
    folder = tmp_path_factory.mktemp("reader")
    plan = documents.blocks("docs/tutorial-serving.md", "toml")[0]
    for name in ("service.toml", "server.toml", "layer.toml"):
        (folder / name).write_text(plan, encoding="utf-8")
    (folder / "small.toml").write_text(SMALL, encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    (folder / "model.toml").write_text(plan, encoding="utf-8")
    (folder / "config.toml").write_text("[store]\nroot = 'there'\n", encoding="utf-8")
    shutil.copy(documents.ROOT / "jitgen/bench/hopper.json", folder / "five.json")
    shutil.copy(documents.ROOT / "jitgen/bench/hopper-fp4.json", folder / "fp4.json")
    shutil.copy(SURVEYS / "nvidia-h200-random-0.json", folder / "random.json")
    save(
        [record(torch.arange(8)[:, None], experts=8, model="mine", layer=0)],
        folder / "routings.json",
    )
    report().save(folder / "report.json")
    replace(report(), suite="blackwell").save(folder / "bench.json")
    LayerReport(found=[found(1, 80.0)], conditions={"gpu": "NVIDIA H200"}).save(
        folder / "layer.json"
    )
    file = ["--file", f"{folder}/trust.json", "--root-key", f"{folder}/root.pem"]
    assert main.run(["trust", "init", *file]) == 0
    for name in ("ci.pem", "root2.pem", "build.pem"):
        assert main.run(["trust", "key", f"{folder}/{name}"]) == 0
    assert main.run(["trust", "add", f"{folder}/build.pem", *file]) == 0
    assert main.run(["show", HOST, "--source", "-o", f"{folder}/my.py"]) == 0
    return folder


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, reader: Path) -> Path:
    """A cache with the kernels of a plan, and the one that is named most; slow lines share it."""
    root = tmp_path_factory.mktemp("filled") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JITGEN_CACHE_DIR", str(root))
        current.get().reset()
        assert main.run(["prewarm", str(reader / "service.toml"), "--arch", "cpu"]) == 0
        assert main.run(["prewarm", "--config", HOPPER]) == 0
        current.get().reset()
    return root


@pytest.fixture
def place(
    reader: Path, tmp_path: Path, cache_root: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A copy of that folder, where the test is."""
    folder = tmp_path / "reader"
    shutil.copytree(reader, folder)
    (folder / "bucket").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("JITGEN_TRUST", str(folder / "trust.json"))
    monkeypatch.setenv("JITGEN_REMOTE", f"file://{folder}/bucket")
    monkeypatch.setenv("JITGEN_VERIFY", "off")
    yield folder
    current.get().reset()


def test_lines_are_found() -> None:
    assert len(ALL) > 120
    assert sum(line.is_name for line in ALL) < len(ALL) / 2


def test_what_is_run_nowhere_is_documented_still() -> None:
    """And another test does it, with what it takes."""
    assert NOWHERE.keys() <= {line.text for line in ALL}
    for reason in NOWHERE.values():
        (path,) = re.findall(r"tests/[\w/]+\.py", reason)
        assert (documents.ROOT / path).is_file()


@pytest.mark.parametrize("page", TYPED_IN)
def test_whole_pages_are_typed_in_by_their_tests(page: str) -> None:
    source = (documents.ROOT / TYPED_IN[page]).read_text(encoding="utf-8")

    assert Path(page).name in source
    assert "console" in source
    assert list(documents.shell_lines(page))


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=[pytest.mark.nightly] * line.is_slow, id=line.text)
        for line in ALL
        if line.text not in NOWHERE
    ],
)
def test_it_runs(
    line: Line,
    place: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if line.is_name:
        assert main.run([*documented.path_of(line.text), "--help"]) == 0
        return
    if line.is_slow and not line.end[0]:  # the others are about what a cache lacks
        monkeypatch.setenv("JITGEN_CACHE_DIR", str(request.getfixturevalue("filled")))
        current.get().reset()
    replaced = REPLACED | {r"s3://[\w/]+": f"file://{place}/bucket"}
    if "KEY" in line.text:
        replaced |= {"KEYID": _keyid(capsys), "KEY": _key(capsys) if line.is_slow else ""}
    for pattern, names in MADE.items():
        if match := re.match(pattern, line.text):
            for name in names:
                (place / match.expand(name)).unlink(missing_ok=True)
    if line.text.startswith("bundle") and "export" not in line.text:
        assert main.run([*EXPORT, "-o", "kernels.tar"]) == 0
    words = documented.words(line.text, replaced)
    capsys.readouterr()
    code, said = line.end
    result = main.run(words)
    out, err = capsys.readouterr()

    assert result == code, (words, out[-500:], err[-500:])
    assert said in out + err


def _key(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the first digits of the key of a kernel for a GPU that the cache has."""
    capsys.readouterr()
    assert main.run(["cache", "ls", "--arch", "sm_90a"]) == 0
    return capsys.readouterr().out.splitlines()[1].split()[0]


def _keyid(capsys: pytest.CaptureFixture[str]) -> str:
    """Return how the id of a key begins that the trust document names."""
    capsys.readouterr()
    assert main.run(["trust", "show"]) == 0
    rows = capsys.readouterr().out.partition("KEY ")[2].splitlines()
    return rows[1].split()[0]
