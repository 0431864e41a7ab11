# SPDX-License-Identifier: Apache-2.0
"""``python -m jitgen.emulator``: a kernel in PTX without a host part."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from jitgen.emulator import Launch, emulate_ptx
from jitgen.emulator.__main__ import main
from jitgen.errors import InputError
from tests.emulator.host import KERNEL
from tests.emulator.test_api import DOUBLE, PTX, TOO_FAR, WAITS

SIZES = ("--grid", "2", "--block", "128")
OUT, NUM = "out=int32:100:unknown", "num=100"


def ptx(folder: Path, body: str) -> str:
    path = folder / "kernel.ptx"
    path.write_text(PTX.format(kernel=KERNEL, body=body))
    return str(path)


def test_a_right_kernel_is_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([ptx(tmp_path, DOUBLE), OUT, NUM, *SIZES]) == 0
    assert f"{KERNEL} (sm_90a): clean" in capsys.readouterr().out


def test_its_report_is_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([ptx(tmp_path, DOUBLE), OUT, NUM, *SIZES, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)

    assert document["clean"]
    assert [run["mode"] for run in document["runs"]] == ["eager", "deferred"]
    assert document["schedules"]["proved"]


@pytest.mark.parametrize(("body", "kind"), [(TOO_FAR, "fault: "), (WAITS, "deadlock: ")])
def test_what_hardware_does_not_survive_is_found(
    body: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([ptx(tmp_path, body), OUT, NUM, *SIZES]) == 1
    assert capsys.readouterr().out.startswith(kind)


def test_a_race_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two CTAs write the same words with ordinary stores."""
    racing = DOUBLE.replace("relaxed.gpu.", "")

    assert main([ptx(tmp_path, racing), OUT, NUM, *SIZES, "--modes", "eager"]) == 1
    assert "race: write of global memory" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["out=int32:100"], "must be one for each of p0 (8 bytes), p1 (4 bytes) (got 1)"),
        (["out=int32:100", "num=much"], "must be a number"),
        (["out=int33:100", NUM], "must have a type of int32, "),
        (["out=int32:ten", NUM], "must have sizes like 100x64"),
        (["out=int32:100:ones", NUM], "must hold counting or unknown"),
        (["out=int32:100", f"num={2**40}"], "must fit its 4 bytes"),
        (["100", NUM], "must be NAME=VALUE"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    words: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([ptx(tmp_path, DOUBLE), *words, *SIZES]) == 2
    assert complaint in capsys.readouterr().err


def test_a_missing_file_and_an_unknown_kernel_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none.ptx"), *SIZES]) == 2
    assert "No such file" in capsys.readouterr().err
    assert main([ptx(tmp_path, DOUBLE), OUT, NUM, *SIZES, "--entry", "other"]) == 2
    assert f"those that it holds: {KERNEL}" in capsys.readouterr().err


@pytest.mark.parametrize("grid", ["0", "1,2,3,4", "two"])
def test_a_grid_is_one_to_three_numbers(grid: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main([ptx(tmp_path, DOUBLE), OUT, NUM, "--grid", grid, "--block", "128"])


def test_results_are_left_in_the_tensors() -> None:
    out = torch.full((100,), -1, dtype=torch.int32)
    text = PTX.format(kernel=KERNEL, body=DOUBLE)
    launch = Launch(grid=(2, 1, 1), block=(128, 1, 1))
    report = emulate_ptx(text, launch, {"out": out, "num": 100}, unknown=["out"])

    assert report.is_clean, str(report)
    assert out.tolist() == list(range(0, 200, 2))
    with pytest.raises(InputError, match="p1"):
        emulate_ptx(text, launch, {"out": out, "num": "much"})


def test_it_is_a_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "jitgen.emulator", ptx(tmp_path, DOUBLE), OUT, NUM, *SIZES]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    assert done.returncode == 0, done.stderr
    assert "clean" in done.stdout


def test_importing_the_emulator_is_cheap() -> None:
    """Its names bring numpy and torch when they are used, not before."""
    code = "import sys, jitgen.emulator; print({'numpy', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"
