# SPDX-License-Identifier: Apache-2.0
"""Plots of reports."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jitgen.bench import plots
from jitgen.bench.grouped_report import GroupedReport
from jitgen.errors import JitgenError
from tests.bench_report import DECODE, measured, report


def test_two_plots_in_two_formats(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = report()
    found.found.append(measured(replace(DECODE, rows_per_group=64), 110, 130))
    written = plots.draw(found, tmp_path / "plots")

    assert [path.name for path in written] == [
        "hopper-time.svg",
        "hopper-time.png",
        "hopper-roofline.svg",
        "hopper-roofline.png",
    ]
    assert written[0].read_text(encoding="utf-8").startswith("<?xml")
    assert written[1].read_bytes().startswith(b"\x89PNG")
    first = written[2].read_bytes()
    assert plots.draw(found, tmp_path / "plots")[2].read_bytes() == first


def test_lines_are_sorted_by_rows() -> None:
    found = GroupedReport(
        found=[measured(replace(DECODE, rows_per_group=rows), 1, 1) for rows in (32, 1, 8)]
    )
    [(label, line)] = plots.series(found, 4096, 7168)

    assert label == "masked, 32 groups"
    assert [each.case.rows_per_group for each in line] == [1, 8, 32]


def test_what_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "matplotlib" in sys.modules or _has_matplotlib():
        with pytest.raises(JitgenError, match="nothing to plot"):
            plots.draw(GroupedReport(), tmp_path)
    hidden: Any = None
    monkeypatch.setitem(sys.modules, "matplotlib", hidden)
    with pytest.raises(JitgenError, match=r"pip install 'jitgen\[plots\]'"):
        plots.draw(report(), tmp_path)


def _has_matplotlib() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True
