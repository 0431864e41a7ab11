# SPDX-License-Identifier: Apache-2.0
"""Plans of recordings: exactly what was called, most calls first; and plans as text."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jitgen import plans
from jitgen.autotune.tuner import buckets_of
from jitgen.config import Arch, Layout
from jitgen.config.activation_quantize import ActivationQuantizeProblem
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.errors import PlanError
from jitgen.plans import Plan, Sweep
from jitgen.plans.recording import Calls, Recording, added, read
from jitgen.runtime.session import select
from jitgen.targets import legality

GEMM = GroupedGemmProblem(layout=Layout.RAGGED, groups=8, m=8, n=4096, k=7168)
SILU = ActivationQuantizeProblem(layout=Layout.MASKED, groups=8, m=8, n=2048)


def recording(arch: Arch, **more: int) -> Recording:
    chance = random.Random(2)
    rows = {chance.randrange(1, 9000): chance.randrange(1, 50) for _ in range(60)}
    return Recording(
        calls=(
            Calls(arch=arch, problem=GEMM, rows=rows),
            Calls(arch=arch, problem=SILU, rows={4: 7, 5: 1}),
        ),
        kernels={},
        **more,
    )


@pytest.mark.parametrize("arch", ["cpu", "sm_90a", "sm_120a"])
def test_a_plan_needs_exactly_the_kernels_that_were_called(arch: str) -> None:
    """On the device that was recorded; all that the target knows need those and others."""
    target = Arch.parse(arch)
    device = legality.target(target).devices[0].name
    found = recording(target)
    plan = plans.from_recording(found)
    called = {
        select(calls.problem.with_mean(rows), target).config
        for calls in found.calls
        for rows in calls.rows
    }

    assert set(plans.configs(plan, target, devices=[device])) == called
    assert set(plans.configs(plan, target)) >= called
    assert sum(sweep.calls for sweep in plan.sweeps) == found.total
    assert sum(plan.calls(target).values()) == pytest.approx(found.total)


def test_most_calls_come_first() -> None:
    """In the plan, among its problems and its configs, and in what is tuned."""
    rows = {1: 5, 2000: 100, 40: 20}
    plan = plans.from_recording(
        Recording(calls=(Calls(arch=Arch.SM_90A, problem=GEMM, rows=rows),), kernels={})
    )
    counts = plan.calls("sm_90a")

    assert [sweep.calls for sweep in plan.sweeps] == [100, 20, 5]
    assert [counts[each] for each in plan.problems("sm_90a")] == [100, 20, 5]
    configs = plans.configs(plan, "sm_90a", devices=["NVIDIA H200"])
    assert configs[0] == select(GEMM.with_mean(2000), "sm_90a").config
    assert configs[-1] == select(GEMM.with_mean(1), "sm_90a").config
    by_kind = buckets_of(counts, Arch.SM_90A)
    assert [counts[each] for each in by_kind] == [5, 20, 100]
    assert buckets_of(by_kind, Arch.SM_90A, counts) == by_kind[::-1]


def test_recordings_add_up_and_rare_calls_can_be_left_out() -> None:
    both = added([recording(Arch.CPU, others=2), recording(Arch.CPU)])
    plan = plans.from_recording(both, least=10)

    assert both.total == 2 * recording(Arch.CPU).total + 2
    assert min(sweep.calls for sweep in plan.sweeps) >= 10
    with pytest.raises(PlanError, match="at least 1000000 times"):
        plans.from_recording(both, least=10**6)


@pytest.mark.parametrize("name", plans.names())
def test_shipped_plans_survive_being_written(name: str, tmp_path: Path) -> None:
    plan, path = plans.load(name), tmp_path / f"{name}.toml"
    path.write_text(plans.text(plan), encoding="utf-8")

    assert plans.load(path) == plan


def test_a_description_is_any_text(tmp_path: Path) -> None:
    sweep = Sweep(problem=GEMM, min_rows=1, max_rows=1, calls=3)
    plan = Plan(name="x", description='quo"te\\ \n\t \x7f \x1b \u202e ü', sweeps=(sweep,))
    path = tmp_path / "x.toml"
    path.write_text(plans.text(plan), encoding="utf-8")

    assert plans.load(path) == plan


def test_a_plan_that_could_not_be_read_is_not_written() -> None:
    sweeps = tuple(Sweep(problem=GEMM, min_rows=n, max_rows=n) for n in range(1, 1002))
    with pytest.raises(PlanError, match="1,000 are the most"):
        plans.text(Plan(name="x", description="", sweeps=sweeps))


@pytest.mark.parametrize("calls", ["0", "-1", "1.5", '"many"', "[1, 2]", "true"])
def test_calls_are_a_whole_number(tmp_path: Path, calls: str) -> None:
    path = tmp_path / "x.toml"
    sweep = Sweep(problem=GEMM, min_rows=1, max_rows=1)
    text = plans.text(Plan(name="x", description="", sweeps=(sweep,)))
    path.write_text(f"{text}calls = {calls}\n", encoding="utf-8")

    with pytest.raises(PlanError, match="problem 1: calls: must be an integer of at least 1"):
        plans.load(path)


@pytest.mark.parametrize("name", plans.names())
@pytest.mark.parametrize("arch", ["cpu", "sm_90a", "sm_100a"])
def test_recordings_of_every_operation_survive_the_disk(
    name: str, arch: str, tmp_path: Path
) -> None:
    """What was called of a shipped plan comes back, and makes a plan of the same buckets."""
    target, path = Arch.parse(arch), tmp_path / "calls.json"
    sweeps = [each for each in plans.load(name).sweeps if _is_served(each.problem, target)][::7]
    if not sweeps:
        pytest.skip(f"{arch} has nothing of {name}")
    found = Recording(
        calls=tuple(
            Calls(arch=target, problem=each.problem.with_mean(1), rows={1: 3, 700: 2})
            for each in dict.fromkeys(replace(each, is_optional=False) for each in sweeps)
        ),
        kernels={},
        began="2026-11-20T09:00:00+00:00",
        written="2026-11-20T09:31:10+00:00",
        jitgen="0.1.0",
    )
    found.save(path)
    assert read(path) == found

    plan = plans.from_recording(added([found]))
    to = tmp_path / "mine.toml"
    to.write_text(plans.text(plan), encoding="utf-8")
    loaded = plans.load(to)
    assert loaded.sweeps == plan.sweeps
    assert sum(loaded.calls(arch).values()) == pytest.approx(found.total)


def _is_served(problem: Any, arch: Arch) -> bool:
    return problem.op in legality.target(arch).operations and not legality.size_refusal(
        problem, arch
    )


def test_fill_adds_the_buckets_between_those_that_were_called() -> None:
    """And neither smaller nor larger ones; what was called keeps its calls and its place."""
    target = Arch.SM_90A
    rows = {3: 9, 700: 4, 4000: 2}
    found = Recording(calls=(Calls(arch=target, problem=GEMM, rows=rows),), kernels={})
    bare, full = plans.from_recording(found), plans.from_recording(found, fills=True)
    device = legality.target(target).devices[0].name
    every = {select(GEMM.with_mean(n), target, device=device).config for n in range(3, 4001, 11)}

    assert full.sweeps[: len(bare.sweeps)] == bare.sweeps
    assert all(sweep.calls == 0 for sweep in full.sweeps[len(bare.sweeps) :])
    assert set(plans.configs(full, target, devices=[device])) >= every
    spans = sorted((sweep.min_rows, sweep.max_rows) for sweep in full.sweeps)
    assert (spans[0], spans[-1]) == ((3, 3), (4000, 4000))
    assert all(low <= high for low, high in spans)
    again = plans.from_recording(found, fills=True)
    assert plans.text(again) == plans.text(full)
