# SPDX-License-Identifier: Apache-2.0
"""Runs of fma that become one operation on a matrix: the same bits as one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from jitgen.emulator.program.translate import Program
from tests.emulator.evaluate import KERNEL, USES, evaluate

APART = "\n    mov.b32 %r9, %r9;\n    "
"""An instruction in between, so that no run is longer than one."""

RUNS = {
    "accumulators": "4 0 1 4, 5 0 2 5, 6 0 3 6, 7 0 8 7",
    "two scales": "4 0 2 4, 6 1 3 6, 5 0 8 5, 7 1 9 7",
    "sources changed by the run": "0 4 1 2, 1 4 0 3, 2 4 5 6, 3 5 6 7, 4 8 8 8, 5 8 9 8",
    "one needs another": "4 0 1 4, 5 4 2 5, 6 5 3 6, 7 6 8 7",
    "one assigned twice": "4 0 1 4, 4 0 2 5, 5 0 3 6, 6 0 8 7",
    "the same four times": "4 0 1 2, 5 0 1 2, 6 0 1 2, 7 0 1 2",
    "rows with a gap": "4 0 1 4, 5 0 2 5, 7 0 3 6, 8 0 8 7",
}
"""The registers of each: the target, two factors, a summand."""


ROWS = "\n    ".join(f"setp.eq.u32 %p9, %r{i}, %r{i + 1};" for i in range(0, 10, 2))
"""Names the registers in order, so that they are adjacent rows."""


def instructions(run: str) -> list[str]:
    rows = [registers.split() for registers in run.split(",")]
    return ["fma.rn.f32 %r{}, %r{}, %r{}, %r{};".format(*registers) for registers in rows]


@pytest.mark.parametrize(
    "before", ["", "mul.f32 %r0, %r0, %r8; mov.b32 %r3, %r4;", "mov.b32 %r0, 0f40000000;"]
)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
def test_a_run_gives_the_bits_of_single_operations(run: str, before: str) -> None:
    random = np.random.default_rng(1)
    given = {
        f"r{i}": random.standard_normal(64).astype(np.float32).view(np.uint32) for i in range(10)
    }
    after = "fma.rn.f32 %r9, %r4, %r5, %r6;"

    together = evaluate(ROWS + before + "\n    ".join([*instructions(run), after]), **given)
    alone = evaluate(before + APART.join([*instructions(run), after]), **given)

    for name in given:
        assert np.array_equal(together[name], alone[name]), name


@pytest.mark.parametrize(
    ("name", "is_one"), [("accumulators", True), ("two scales", True), ("one needs another", False)]
)
def test_a_run_is_one_operation(name: str, is_one: bool) -> None:
    run = "\n    ".join([ROWS, *instructions(RUNS[name])])

    text = Program(KERNEL.format(text=run, uses=USES)).python

    assert (text.count("fma(") == 1) == is_one


def test_an_operation_under_a_guard_stays_alone() -> None:
    guarded = [f"@%p1 {line}" for line in instructions(RUNS["accumulators"])]
    run = "\n    ".join([ROWS, *guarded])

    assert Program(KERNEL.format(text=run, uses=USES)).python.count("fma(") == 4
