# SPDX-License-Identifier: Apache-2.0
"""Runs of fma that become one operation on a matrix: the same bits as one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from jitgen.emulator.program.translate import Program
from tests.emulator.evaluate import KERNEL, USES, evaluate

APART = "\n    mov.b32 {%rs8, %rs9}, 7;\n    "
"""A statement in between that is no assignment, so that no run is longer than one."""

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


CUTS = """
    mov.b64 {%r1, %r2}, %rd1;
    fma.rn.f32 %r6, %r1, %r0, %r6;
    fma.rn.f32 %r7, %r2, %r0, %r7;
    mov.b64 {%r3, %r4}, %rd2;
    fma.rn.f32 %r8, %r3, %r0, %r8;
    fma.rn.f32 %r9, %r4, %r0, %r9;
    """
"""A run between whose operations there are assignments of what later ones take."""


@pytest.mark.parametrize(
    ("cuts", "number"),
    [
        (CUTS, 1),
        (CUTS.replace("{%r3, %r4}", "{%r1, %r2}").replace("%r3, %r0", "%r1, %r0"), 4),
        (CUTS.replace("{%r3, %r4}, %rd2", "{%r3, %r6}, %rd2"), 4),
        (CUTS.replace("mov.b64 {%r3, %r4}, %rd2", "mov.b32 %r3, %r7"), 4),
        (CUTS.replace("mov.b64 {%r3", "bar.warp.sync -1; mov.b64 {%r3"), 4),
    ],
    ids=["of others", "of sources", "of targets", "that take a target", "and effects"],
)
def test_assignments_between_the_operations_of_a_run(cuts: str, number: int) -> None:
    random = np.random.default_rng(1)
    given = {
        f"rd{i}": random.standard_normal(128).astype(np.float32).view(np.uint64) for i in range(10)
    } | {f"r{i}": random.standard_normal(64).astype(np.float32).view(np.uint32) for i in range(10)}

    assert Program(KERNEL.format(text=ROWS + cuts, uses=USES)).python.count("fma(") == number
    if "bar" not in cuts:
        found, expected = (
            evaluate(text, **given) for text in (ROWS + cuts, cuts.replace(";", f";{APART}"))
        )
        for name in given:
            assert np.array_equal(found[name], expected[name]), name


def paired(lines: str) -> str:
    """Return instructions of f32 as such of f32x2."""
    return lines.replace("f32", "f32x2").replace("%r", "%rd").replace("setp.eq.u32", "setp.eq.u64")


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
def test_a_run_of_pairs_gives_the_bits_of_single_operations(run: str) -> None:
    random = np.random.default_rng(1)
    given = {
        f"rd{i}": random.standard_normal(128).astype(np.float32).view(np.uint64) for i in range(10)
    }
    alone = APART.join(map(paired, instructions(run)))

    found = evaluate(paired(ROWS + "\n    ".join(instructions(run))), **given)
    expected = evaluate(alone, **given)

    for name in given:
        assert np.array_equal(found[name], expected[name]), name


def test_a_run_of_pairs_is_one_operation() -> None:
    run = paired("\n    ".join([ROWS, *instructions(RUNS["two scales"])]))

    assert Program(KERNEL.format(text=run, uses=USES)).python.count("fma_f32x2(") == 1


def test_an_operation_under_a_guard_stays_alone() -> None:
    guarded = [f"@%p1 {line}" for line in instructions(RUNS["accumulators"])]
    run = "\n    ".join([ROWS, *guarded])

    assert Program(KERNEL.format(text=run, uses=USES)).python.count("fma(") == 4
