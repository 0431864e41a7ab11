# SPDX-License-Identifier: Apache-2.0
"""What `verify` makes of what its problems executed, on an emulator that does nothing."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jitgen.config import Config
from jitgen.emulator import Artifact, Coverage, Observation, Program, Report, Run, parse_modes
from jitgen.errors import MachineFault
from jitgen.verify import verification
from jitgen.verify.verification import verify

CONFIG, ARCH = Config.parse(
    "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t64x64x128_c1x1_acc1_splitk2_sm_90a"
)
ARTIFACT = Artifact(library=b"", symbol="k", ptx="")
PROGRAM = Program(
    """
.version 8.8
.target sm_90a
.visible .entry k()
{
setp.eq.s32 %p1, %r1, 0;
@%p1 bra SECOND;
fence.acq_rel.cta;
SECOND:
@%p1 bra DONE;
bar.sync 0;
DONE:
ret;
}
"""
)


class Emulated:
    """Stands for the emulator: each call executes the blocks that it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, list[str]]] = []
        self.blocks: list[list[int]] = []
        self.faults: set[int] = set()
        self.unknown: list[list[str]] = []
        self.seeds: list[int] = []
        self.edges: tuple[Any, ...] = ()
        self.observed: tuple[Observation, ...] = ()

    def emulate(
        self, _: Artifact, *arguments: Any, modes: Any, unknown: list[str], **__: Any
    ) -> Report:
        call = len(self.calls)
        self.unknown.append(unknown)
        self.calls.append((arguments[0].shape, [mode.name for mode in parse_modes(modes)]))
        if call in self.faults:
            raise MachineFault("ended")
        counts = np.array(self.blocks[call % len(self.blocks)])
        coverage = {"k": Coverage.of(PROGRAM, counts, set())}
        run = Run(mode="eager", seconds=0, coverage=coverage, observed=self.observed)
        return Report(name="k", arch="sm_90a", runs=(run,))


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Emulated:
    fake = Emulated()
    monkeypatch.setattr(verification, "emulate", fake.emulate)

    def case(sizes: Any, *, is_exact: bool) -> Any:
        return SimpleNamespace(
            tensors=(np.empty((sum(sizes.rows), sizes.k)),),
            is_exact=is_exact,
            wrong=lambda: 0,
            errors=lambda: (0.0, 0.0),
            results=list,
        )

    def make(_: Config, sizes: Any, *, is_exact: bool, seed: int = 0) -> Any:
        fake.seeds.append(seed)
        return case(sizes, is_exact=is_exact)

    samples = verification.samples_of(CONFIG)
    monkeypatch.setattr(samples, "make", make)
    monkeypatch.setattr(samples.Sizes, "edges", lambda *_: fake.edges)
    return fake


def test_what_one_problem_leaves_out_another_may_reach(emulated: Emulated) -> None:
    emulated.blocks = [[1, 1, 1, 0, 1], [1, 0, 1, 1, 1]]

    found = verify(CONFIG, ARCH, artifact=ARTIFACT)

    assert found.is_right
    assert found.coverage[0].missed == []


def test_edges_are_asked_once_each_with_a_seed_of_their_own(emulated: Emulated) -> None:
    emulated.blocks = [[1, 1, 1, 1, 1]]
    few = verify(CONFIG, ARCH, artifact=ARTIFACT)
    emulated.edges = tuple(trial.sizes for trial in few.trials[:2])
    emulated.seeds, emulated.calls = [], []

    found = verify(CONFIG, ARCH, artifact=ARTIFACT)

    assert [trial.values for trial in found.trials[len(few.trials) :]] == ["integers"] * 2
    assert emulated.seeds[-3:] == [0, 1, 2]
    assert [modes for _, modes in emulated.calls[-2:]] == [["eager"]] * 2


def test_edges_are_not_asked_of_a_kernel_that_is_wrong(emulated: Emulated) -> None:
    emulated.blocks, emulated.faults = [[1, 1, 1, 1, 1]], {0}
    few = verify(CONFIG, ARCH, artifact=ARTIFACT)
    emulated.edges, emulated.calls = tuple(trial.sizes for trial in few.trials), []

    assert len(verify(CONFIG, ARCH, artifact=ARTIFACT).trials) == len(few.trials)


def test_results_hold_nothing_before_the_kernel_wrote_them(emulated: Emulated) -> None:
    emulated.blocks = [[1, 1, 1, 1, 1]]

    verify(CONFIG, ARCH, artifact=replace(ARTIFACT, names=("out", "a")))  # a call of one tensor

    assert set(map(tuple, emulated.unknown)) == {("out",)}


def test_what_no_problem_reaches_is_a_finding(emulated: Emulated) -> None:
    emulated.blocks = [[1, 1, 1, 0, 1]]

    found = verify(CONFIG, ARCH, artifact=ARTIFACT)

    assert all(trial.is_right for trial in found.trials)
    assert not found.is_right
    (gap,) = found.gaps
    assert gap.kind == "never executed"
    assert "bar.sync 0" in gap.place
    assert found.to_json()["gaps"][0]["severity"] == "error"


def test_a_problem_of_the_callers_is_not_judged_by_what_it_reaches(emulated: Emulated) -> None:
    emulated.blocks = [[1, 1, 1, 0, 1]]

    found = verify(CONFIG, ARCH, "2:30:64:256", artifact=ARTIFACT)

    assert found.is_right
    assert len(found.coverage[0].lacking) == 1


def test_a_run_that_ended_early_says_nothing_of_the_rest(emulated: Emulated) -> None:
    emulated.blocks, emulated.faults = [[1, 1, 1, 0, 1]], {1}

    found = verify(CONFIG, ARCH, artifact=ARTIFACT)

    assert not found.is_right
    assert found.gaps == ()


def test_which_modes_run_which_problem(emulated: Emulated) -> None:
    """Random modes are slow: the wide problem alone has them."""
    emulated.blocks = [[1] * 5]
    emulated.observed = (Observation(what="peek", place="ptx:1"),)

    found = verify(CONFIG, ARCH, modes="quick", artifact=ARTIFACT)

    steady = ["eager", "deferred"]
    assert [modes for _, modes in emulated.calls] == [
        [*steady, "random-3"],
        steady,
        steady,
        ["eager"],
    ]
    assert [trial.values for trial in found.trials] == [*["integers"] * 3, "random"]
    emulated.calls.clear()
    verify(CONFIG, ARCH, modes="random-1,random-2", artifact=ARTIFACT)
    assert [len(modes) for _, modes in emulated.calls] == [2, 1, 1, 1]


def test_problems_of_a_kernel_that_observes_no_schedule_run_once(emulated: Emulated) -> None:
    """All modes give the same then, unless more than `quick` was asked for."""
    emulated.blocks = [[1] * 5]

    verify(CONFIG, ARCH, modes="quick", artifact=ARTIFACT)

    assert [len(modes) for _, modes in emulated.calls] == [3, 1, 1, 1]
    emulated.calls.clear()
    verify(CONFIG, ARCH, modes="all", artifact=ARTIFACT)
    assert [len(modes) for _, modes in emulated.calls] == [9, 3, 3, 1]
