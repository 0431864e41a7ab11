# SPDX-License-Identifier: Apache-2.0
"""Plots of a report of a suite: time against rows per group, and a roofline."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jitgen.bench.cases import MATRICES
from jitgen.bench.grouped_records import Measured, Section
from jitgen.bench.grouped_report import GroupedReport
from jitgen.bench.peers import PEER
from jitgen.bench.report import OURS
from jitgen.errors import ConfigError, JitgenError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jitgen.bench.cases import Case

PEAKS = {"H100": 1979e12, "H200": 1979e12, "GB200": 5000e12, "B200": 4500e12}
"""Dense FP8 operations per second in the data sheets, by a word of the GPU's name."""

_FORMATS = ("svg", "png")
_DOTS_PER_INCH = 144
_STEPS = 200
_STYLE = {OURS: ("-", "o"), PEER: (":", "x")}
_LABELS = {OURS: "jitgen", PEER: "DeepGEMM"}


def draw(report: GroupedReport, folder: Path) -> list[Path]:
    """
    Write a plot of times and a roofline to `folder`, each as SVG and PNG, and return the files.

    Raises:
        JitgenError: matplotlib is not installed, or the report has nothing to plot.
        ConfigError: The folder cannot be made, or a file in it cannot be written.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise JitgenError("plots need matplotlib: pip install 'jitgen[plots]'")
    if not any(each.seconds for each in report.of(Section.PUBLIC)):
        raise JitgenError("the report has no public case that was timed: there is nothing to plot")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return list(_write(report, folder))
    except OSError as error:
        raise ConfigError(
            f"plots cannot be written to {folder}: {error.strerror or error}"
        ) from error


def _write(report: GroupedReport, folder: Path) -> Iterator[Path]:
    """Draw one plot after the other and yield its files."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    for name, fill in (("time", _fill_times), ("roofline", _fill_roofline)):
        # a fixed salt and no date, so that the same report gives the same file
        with rc_context({"svg.hashsalt": "jitgen", "font.size": 9}):
            figure = Figure(figsize=(11, 5.5), layout="constrained")
            fill(report, figure)
            for kind in _FORMATS:
                path = folder / f"{report.suite}-{name}.{kind}"
                metadata = {"Date": None} if kind == "svg" else {}
                figure.savefig(path, dpi=_DOTS_PER_INCH, metadata=metadata)
                yield path


def _fill_times(report: GroupedReport, figure: Figure) -> None:
    """Plot microseconds against rows per group, one panel for each matrix."""
    panels = figure.subplots(1, len(MATRICES), sharey=True)
    for axes, (n, k) in zip(panels, MATRICES, strict=True):
        for colour, (label, found) in enumerate(series(report, n, k)):
            for side, (line, marker) in _STYLE.items():
                points = [
                    (each.case.rows_per_group, median * 1e6)
                    for each in found
                    if (median := each.median(side)) is not None
                ]
                if points:
                    axes.plot(
                        *zip(*points, strict=True),
                        color=f"C{colour}",
                        linestyle=line,
                        marker=marker,
                        label=f"{label}, {_LABELS[side]}",
                    )
        axes.set(xscale="log", yscale="log", xlabel="rows per group", title=f"N = {n}, K = {k}")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("")
        axes.grid(visible=True, which="both", alpha=0.2)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7)
    panels[0].set_ylabel("microseconds, cold L2")
    figure.suptitle(_title(report, "Time of a grouped FP8 GEMM"))


def _fill_roofline(report: GroupedReport, figure: Figure) -> None:
    """Plot operations per second against operations per byte, with the limits of the device."""
    axes = figure.subplots()
    found = [each for each in report.of(Section.PUBLIC) if each.seconds]
    intensities = [each.flop / each.num_bytes for each in found]
    span = (min(intensities) / 2, max(intensities) * 2)
    device = report.conditions.get("gpu", "")
    peak = next((flop for word, flop in PEAKS.items() if word in device), None)
    if report.copy_rate:
        label = f"copy rate, {report.copy_rate * 1e-9:,.0f} GB/s"
        slope = [min(x * report.copy_rate, peak or float("inf")) * 1e-12 for x in _steps(span)]
        axes.plot(_steps(span), slope, color="0.4", label=label)
    if peak:
        label = f"{peak * 1e-12:,.0f} TFLOPS (data sheet)"
        axes.axhline(peak * 1e-12, color="0.4", linestyle="--", label=label)
    for side, (_, marker) in _STYLE.items():
        for colour, layout in enumerate(("ragged", "contiguous", "masked")):
            points = [
                (each.flop / each.num_bytes, each.flop / median * 1e-12)
                for each in found
                if each.case.layout == layout and (median := each.median(side)) is not None
            ]
            if points:
                axes.plot(
                    *zip(*points, strict=True),
                    color=f"C{colour}",
                    linestyle="none",
                    marker=marker,
                    label=f"{layout}, {_LABELS[side]}",
                )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="operations for each byte of operands and results",
        ylabel="TFLOPS, cold L2",
    )
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend(fontsize=7)
    figure.suptitle(_title(report, "Roofline of the public cases"))


def series(report: GroupedReport, n: int, k: int) -> Iterator[tuple[str, Sequence[Measured]]]:
    """Yield the label and the cases of each line: one layout, one number of groups."""
    lines: dict[str, list[Measured]] = {}
    for each in report.of(Section.PUBLIC):
        if (each.case.n, each.case.k) == (n, k):
            lines.setdefault(_label(each.case), []).append(each)
    for label, found in lines.items():
        yield label, sorted(found, key=lambda each: each.case.rows_per_group)


def _label(case: Case) -> str:
    return f"{case.layout}, {case.groups} groups"


def _steps(span: tuple[float, float]) -> list[float]:
    """Return values from one end of `span` to the other, evenly on a log scale."""
    low, high = span
    return [low * (high / low) ** (step / (_STEPS - 1)) for step in range(_STEPS)]


def _title(report: GroupedReport, what: str) -> str:
    device = report.conditions.get("gpu", "")
    return f"{what}, {device}" if device else what
