# SPDX-License-Identifier: Apache-2.0
"""Kernels of others: the example is right, its broken twins are not, and compiled ones run, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from jitgen.errors import CompileError, ConfigError, EmulationError
from jitgen.verify import Case, Verification, verify_file
from jitgen.verify.files import Compiled, result_of
from tests import documents, needs

pytestmark = [needs.compiler, needs.linker]

EXAMPLE = Path(__file__).parents[2] / "examples" / "06_verify_your_own_kernel.py"
WAIT = "    cute.arch.mbarrier_wait(full, 0)\n"
TAILS = '(("whole", 16, 64), ("tails", 17, 68))'


def changed(folder: Path, *changes: tuple[str, str]) -> Path:
    """Return the example with text replaced."""
    text = EXAMPLE.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "kernel.py"
    path.write_text(text)
    return path


def kinds(found: Verification) -> set[str]:
    return {finding.kind for trial in found.trials for _, finding in trial.findings}


def test_both_cases_share_a_kernel() -> None:
    (found,) = verify_file(EXAMPLE, "sm_90a", modes="quick", must_reach_all=True)

    assert found.is_right, found.to_json()
    assert found.name == "06_verify_your_own_kernel.py:scale"
    assert [trial.values for trial in found.trials] == ["whole", "tails"]
    (coverage,) = found.coverage
    assert coverage.purposes == {"synchronisation": (5, 5), "copy": (1, 1), "store": (8, 8)}
    assert set(coverage.functions) >= {"scale_kernel"}


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (WAIT, "", "race"),
        ("mbarrier_init(full, 1)", "mbarrier_init(full, 2)", "deadlock"),
        ("n < y.shape[1]", "n <= y.shape[1]", "fault"),
    ],
    ids=["no wait", "no other thread arrives", "one column too many"],
)
def test_a_broken_twin(tmp_path: Path, old: str, new: str, kind: str) -> None:
    (found,) = verify_file(changed(tmp_path, (old, new)), "sm_90a", modes="eager")

    assert not found.is_right
    assert kind in kinds(found)
    if kind == "race":
        finding = next(x for trial in found.trials for _, x in trial.findings if x.kind == kind)
        assert finding.place.startswith("kernel.py:")
        assert "(scale_kernel) | ptx:" in finding.place


def test_a_kernel_that_the_file_imports(tmp_path: Path) -> None:
    """Findings name the file that the kernel is in, and its functions."""
    changed(tmp_path, (WAIT, "")).rename(tmp_path / "theirs.py")
    path = tmp_path / "cases_of_theirs.py"
    path.write_text("from theirs import verify_cases\n")

    (found,) = verify_file(path, "sm_90a", modes="eager")

    place = next(x.place for trial in found.trials for _, x in trial.findings)
    assert place.startswith("theirs.py:")
    assert "(scale_kernel) | ptx:" in place


def test_wrong_values_are_told_with_their_places(tmp_path: Path) -> None:
    """Sizes without samples make a kernel for each case; only what is compared can be wrong."""
    check = 'check=lambda given: given["y"].sum() > 0 or 1 / 0,'
    path = changed(
        tmp_path,
        ("m < y.shape[0]", "m < 16"),
        ('unknown=["y"],', check),
        ("            samples=", "            # samples="),
        ("torch.empty_like(x)", "-x"),
    )

    whole, tails = verify_file(path, "sm_90a", modes="eager")

    assert whole.name == "kernel.py:scale (whole)"
    assert whole.is_right
    assert not tails.is_right
    assert tails.trials[0].wrong == 68
    assert "the tensor, tile (1, 0): the whole tile" in tails.trials[0].places


def test_instructions_that_no_case_reaches(tmp_path: Path) -> None:
    """Coverage is shown, and judged only where that is asked for."""
    path = changed(
        tmp_path,
        (
            "y[m, n] = tile[row, column] * factor",
            "if factor > 3.0:\n                y[m, n] = factor",
        ),
        ("expected={", "constants={}, expected={} and {"),
        (TAILS, '(("whole", 16, 64),)'),
    )

    (shown,) = verify_file(path, "sm_90a", modes="eager")
    (judged,) = verify_file(path, "sm_90a", modes="eager", must_reach_all=True)

    assert shown.is_right
    assert shown.coverage[0].lacking
    assert not judged.is_right
    assert {gap.kind for gap in judged.gaps} == {"never executed"}


def test_a_kernel_that_others_compiled(tmp_path: Path) -> None:
    """By the lines of docs/verify.md. Its cases need no compiler; arguments are in their order."""
    export, given = documents.blocks("docs/verify.md", "py")
    (tmp_path / "kernel.py").write_bytes(EXAMPLE.read_bytes())
    (tmp_path / "export.py").write_text(export)
    (tmp_path / "c.py").write_text(given)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    subprocess.run(
        [sys.executable, "export.py"],
        cwd=tmp_path,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    subprocess.run(["gcc", "-shared", "kernel.o", "-o", "k.so"], cwd=tmp_path, check=True)
    (ptx,) = tmp_path.glob("cutlass_scale_*.ptx")
    theirs = Compiled(library=tmp_path / "k.so", ptx=ptx, symbol="scale")

    (found,) = verify_file(tmp_path / "c.py", compiled=theirs, modes="eager")

    assert found.is_right
    assert (found.name, found.arch) == ("c.py:scale", "sm_90a")


@pytest.mark.parametrize(
    ("old", "new", "error", "complaint"),
    [
        ("make_tiled_tma_atom(load", "make_tiled_tma_atom(lode", CompileError, "lode"),
        ('"factor": 2.0', '"faktor": 2.0', ConfigError, "no parameter 'faktor'"),
        ("torch.float32", "torch.float64", ConfigError, "float64"),
        (
            '("tails", 17, 68)',
            '("tails", 17, 66)',
            ConfigError,
            "tails: the kernel's host part ref",
        ),
    ],
)
def test_what_cannot_be_called(
    tmp_path: Path, old: str, new: str, error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error) as caught:
        verify_file(changed(tmp_path, (old, new)), "sm_90a", modes="eager")

    assert "kernel.py" in str(caught.value)
    assert complaint in str(caught.value)


def test_rows_of_a_result() -> None:
    """Sides of 1 at the end make no rows of one value."""
    for shape, rows in (
        ((4, 3), 4),
        ((4, 3, 1), 4),
        ((2, 4, 3), 8),
        ((5,), 1),
        ((), 1),
        ((0, 3), 0),
    ):
        y = torch.zeros(shape, dtype=torch.bfloat16)
        found = result_of(Case(arguments={"y": y}, expected={"y": y + 1}), "y")
        assert found.is_wrong.shape[0] == len(found.row) == rows
        assert found.is_wrong.all()


def test_targets(tmp_path: Path) -> None:
    """Any that the emulator knows, jitgen's or not."""
    (found,) = verify_file(EXAMPLE, "sm_120a", modes="eager")

    assert found.is_right
    assert found.arch == "sm_120a"
    for arch in ("", "cpu", "sm_75"):
        with pytest.raises(EmulationError, match="it knows sm_9x, sm_10x, sm_12x"):
            verify_file(EXAMPLE, arch)
