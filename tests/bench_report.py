# SPDX-License-Identifier: Apache-2.0
"""A small report of the hopper suite, with figures that were made up."""

from __future__ import annotations

from dataclasses import replace

from jitgen.autotune.measure.times import Times
from jitgen.bench.cases import Case
from jitgen.bench.grouped_records import Accuracy, Measured, Section
from jitgen.bench.grouped_report import GroupedReport
from jitgen.config import Layout

DECODE = Case(
    layout=Layout.MASKED, groups=32, rows_per_group=8, n=4096, k=7168, max_rows=256, spread=0.3
)
SMALL = Case(layout=Layout.CONTIGUOUS, groups=8, rows_per_group=64, n=7168, k=2048)
PREFILL = replace(SMALL, rows_per_group=4096)
TINY = Case(layout=Layout.RAGGED, groups=3, rows_per_group=6, n=128, k=256, spread=0.5)
RAGGED = Case(layout=Layout.RAGGED, groups=32, rows_per_group=150, n=4096, k=7168, spread=0.5)


def times(*microseconds: float) -> Times:
    return Times(seconds=tuple(value * 1e-6 for value in microseconds))


def measured(case: Case, ours: float, theirs: float, **changes: object) -> Measured:
    """Return rounds around `ours` and `theirs`, the times of jitgen and DeepGEMM in us."""
    sides = {
        "jitgen": times(ours * 0.99, ours, ours * 1.01),
        "deep_gemm": times(theirs * 0.99, theirs, theirs * 1.01),
    }
    found = Measured(
        section=Section.PUBLIC,
        case=case,
        kernel="grouped_gemm_masked_e4m3_e4m3_block128_bf16_t64x128x128_c1x2_acc1_sm_90a",
        flop=1_000_000_000,
        num_bytes=1_000_000,
        times=sides,
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def report() -> GroupedReport:
    return GroupedReport(
        conditions={"gpu": "NVIDIA H200", "driver": "580"},
        copy_rate=4.0e12,
        found=[
            measured(DECODE, 100, 120, num_bytes=392_000_000),
            measured(SMALL, 50, 60, num_bytes=190_000_000),
            measured(
                RAGGED,
                200,
                250,
                flop=276_000_000_000,
                times={
                    "jitgen": times(200, 200),
                    "deep_gemm": times(250, 250),
                    "padding": times(20, 20),
                },
                missing={"cublaslt": "RuntimeError: not here"},
            ),
            measured(PREFILL, 1000, 1010, section=Section.SUSTAINED, detail="SM 1400 MHz"),
            measured(DECODE, 7, 29, section=Section.HOST),
        ],
        accuracy=[Accuracy(case=RAGGED, errors={"jitgen": 1.6e-3, "deep_gemm": 1.6e-3})],
        notes={"triton": "own kernel"},
    )
