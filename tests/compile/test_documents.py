# SPDX-License-Identifier: Apache-2.0
"""What the tutorials and the small pages show is what happens: see tests/unit/test_snippets.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import jitgen
from jitgen import plans
from tests import documents, needs

pytestmark = [
    needs.compiler,
    needs.linker,
    pytest.mark.filterwarnings("ignore::UserWarning:torch.*"),
]

GIVEN: dict[str, Any] = {
    "groups": 3,
    "n": 256,
    "k": 256,
    "offs": torch.tensor([2, 2, 9], dtype=torch.int32),
    "bias": None,  # on a CPU quantised tokens have no kernel with one
    "tokens": torch.ones(9, 256, dtype=torch.bfloat16),
    "weights": torch.ones(3, 256, 256, dtype=torch.bfloat16),
}
"""What the pages' own words stand for, where a page begins in the middle."""


def _run(blocks: list[str], **names: Any) -> dict[str, Any]:
    assert blocks
    for block in blocks:
        exec(block, names)  # noqa: S102  # the pages are ours
    return names


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch, shared_cache: None) -> None:
    monkeypatch.setenv("JITGEN_ARCH", "cpu")


@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_the_model_developers_tutorial(is_whole: bool) -> None:
    """Each block states its result; the first of them on every push."""
    blocks = documents.blocks("docs/tutorial-model.md", "python")

    assert all("assert" in block for block in blocks)
    _run(blocks if is_whole else blocks[:1])


@pytest.mark.nightly
def test_the_serving_engineers_tutorial(tmp_path: Path) -> None:
    """Its commands one after the other in a shell, with the files that it names."""
    page = "docs/tutorial-serving.md"
    (plan,) = documents.blocks(page, "toml")
    (program,) = documents.blocks(page, "python")
    (tmp_path / "service.toml").write_text(plan, encoding="utf-8")
    (tmp_path / "serve.py").write_text(program, encoding="utf-8")
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "jitgen"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m jitgen "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    lines = [
        line.removeprefix("$ ").replace("python ", f"{sys.executable} ")
        for block in documents.blocks(page, "console")
        for line in block.splitlines()
    ]
    environment = os.environ | {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(documents.ROOT),
        "JITGEN_CACHE_DIR": str(tmp_path / "cache"),
    }
    script = "\n".join(["set -e", *lines])
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "exit code 3: some are missing" in done.stdout
    assert "compiling is off" in done.stdout, "what was forgotten is an error"
    assert (tmp_path / "kernels.tar").stat().st_size > 10_000


def test_its_plan_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "service.toml"
    path.write_text(documents.blocks("docs/tutorial-serving.md", "toml")[0], encoding="utf-8")

    assert plans.load(path).sweeps


@pytest.mark.nightly
@pytest.mark.parametrize("page", ["fc2.md", "mxfp4.md", "prepacked-weights.md"])
def test_pages_that_begin_at_the_beginning(page: str) -> None:
    for block in documents.blocks(f"docs/{page}", "python"):
        names = _run([block])

        assert names["out"].dtype is torch.bfloat16
        assert names["out"].isfinite().all()


@pytest.mark.nightly
def test_blackwell_rtx_md() -> None:
    names = _run(documents.blocks("docs/blackwell-rtx.md", "python"), jitgen=jitgen, **GIVEN)

    assert torch.equal(names["out"], torch.full((9, 256), 256.0, dtype=torch.bfloat16))


@pytest.mark.nightly
@pytest.mark.parametrize("page", ["docs/selection.md", "docs/numerics.md"])
def test_pages_about_choosing(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their lines go on where the README's first call ends; one writes a file."""
    monkeypatch.chdir(tmp_path)
    first = documents.blocks("README.md", "python")[0]
    before = _run([first])
    usual = before["out"]
    after = _run(documents.blocks(page, "python"), **before)

    assert torch.equal(after["out"], usual)
