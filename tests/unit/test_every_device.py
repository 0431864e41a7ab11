# SPDX-License-Identifier: Apache-2.0
"""
What is prewarmed for a target, and what its devices choose: nothing else, and nothing less.

Every problem of a plan is asked, at the edges of its buckets, beside them and in their middle, on
every device that the target knows, at hand, and on the last one named by JITGEN_DEVICE, too: as
many frozen processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from jitgen import plans
from jitgen.cache import Store
from jitgen.config import Arch, Config, Layout
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradProblem
from jitgen.config.moe_fc2_dense import MoEFc2DenseProblem
from jitgen.config.operation import operation
from jitgen.errors import UnsupportedConfig
from jitgen.ops.launch import chosen
from jitgen.plans import Plan, Sweep
from jitgen.plans.prewarm import prewarm
from jitgen.runtime.session import Session, current
from jitgen.selection import device as tuning
from jitgen.selection import measurements as tuned
from jitgen.selection.choice import edges_of
from jitgen.settings import settings
from jitgen.targets.early import early
from jitgen.targets.legality import target
from jitgen.targets.protocol import Device
from tests.cli.conftest import Jitgen, jitgen
from tests.unit.coverage_fakes import (
    GPU,
    H20,
    H100,
    H200,
    at_hand,
    device_of_this_machine,
    forget,
)
from tests.unit.tuned_fakes import PROBLEM, empty_tables, record

__all__ = ["device_of_this_machine", "jitgen"]

THIN = [("deepseek-v3", "sm_90a"), ("glue", "sm_90a")]
"""For every push."""

ALL = [(name, str(arch)) for name in plans.names() for arch in Arch]
CASES = [
    *THIN,
    *(pytest.param(*case, marks=pytest.mark.nightly) for case in ALL if case not in THIN),
]


def rows_of(sweep: Sweep, arch: Arch) -> Iterator[int]:
    """Yield the means of rows at which choices may change, and some between."""
    edges = edges_of(sweep.problem, arch)
    every = {sweep.min_rows, sweep.max_rows}
    for before, edge in zip((0, *edges), edges, strict=False):
        every |= {edge - 1, edge, edge + 1, (before + edge) // 2}
    yield from sorted(rows for rows in every if sweep.min_rows <= rows <= sweep.max_rows)


def asked_for(sweep: Sweep, rows: int, arch: Arch, session: Session) -> Iterator[Config]:
    """Yield the kernels that a call asks for, as calls do."""
    problem = sweep.problem.with_mean(rows)
    config, _ = chosen(session, problem, arch, "a")
    yield early(config, arch) if sweep.is_early else config
    yield from operation(problem.op).launched_beside(problem, arch, session.select)


@dataclass
class Run:
    """What frozen processes missed, and how much they asked for."""

    prewarmed: frozenset[Config]
    calls: int = 0
    used: set[Config] = field(default_factory=set)
    misses: Counter[str] = field(default_factory=Counter)

    def serve(self, plan: Plan, arch: Arch, name: str) -> None:
        """Ask for all that calls of `plan` ask for."""
        session = current.get()
        for sweep in plan.served(arch):
            for rows in rows_of(sweep, arch):
                self.calls += 1
                for config in asked_for(sweep, rows, arch, session):
                    self.used.add(config)
                    if config not in self.prewarmed:
                        self.misses[f"{name}: {config.name(arch)}"] += 1


def wanted(plan: Plan, arch: Arch) -> frozenset[Config]:
    """Return what `jitgen prewarm PLAN --arch ARCH` compiles."""
    report = prewarm(plan, arch=arch, dry_run=True)
    return frozenset(row.config for row in report.rows)


def every_device(plan: Plan, arch: Arch, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what came of a frozen run on each device at hand, and on the last one by its name."""
    run = Run(wanted(plan, arch))
    devices = target(arch).devices if arch.is_gpu else ()
    for device in devices:
        with monkeypatch.context() as there:
            at_hand(there, device.name)
            assert wanted(plan, arch) == run.prewarmed, "whatever GPU is at hand"
            run.serve(plan, arch, device.name)
        forget()
    for device in devices[-1:]:
        with settings.scope(device=device.name):
            run.serve(plan, arch, f"JITGEN_DEVICE={device.name}")
    run.serve(plan, arch, "no GPU")
    return run


@pytest.mark.parametrize(("name", "arch"), CASES)
def test_no_device_misses_a_kernel(
    name: str, arch: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    What a target's first device chooses was prewarmed, and 2 to 8 kernels a plan were missing on
    the others: calls of a frozen process raised.
    """
    plan, on = plans.load(name), Arch.parse(arch)
    try:
        alone = plans.configs(plan, on, devices=[target(on).devices[0].name])
    except UnsupportedConfig:
        pytest.skip(f"{arch} has no kernel for {name}")
    run = every_device(plan, on, monkeypatch)
    with capsys.disabled():
        print(
            f"\n{name} {arch}: {len(alone)} kernels of one device, {len(run.prewarmed)} of all, "
            f"{run.calls} calls",
            end="",
        )

    assert run.misses == Counter()
    assert run.used == run.prewarmed, "and none besides is compiled"


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("deepseek-v3", 6),
        *(pytest.param(name, 1, marks=pytest.mark.nightly) for name in plans.names()),
    ],
)
def test_nor_without_tables(
    name: str, step: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where no measurements come with jitgen, the models of the devices decide alone."""
    plan = plans.load(name)
    some = Plan(name=name, description="", sweeps=plan.sweeps[::step])
    for _ in empty_tables(tmp_path, monkeypatch):
        run = every_device(some, GPU, monkeypatch)

        assert run.misses == Counter()
        assert run.used == run.prewarmed


def chosen_names(names: Iterable[str] = ()) -> set[str]:
    """Return the kernels of a plan of one problem."""
    sweep = Sweep(problem=PROBLEM, min_rows=512, max_rows=512)
    plan = Plan(name="one", description="", sweeps=(sweep,))
    return {config.name(GPU) for config in plans.configs(plan, GPU, devices=tuple(names))}


def best(device: str | None = None) -> str:
    choice = current.get().select(PROBLEM, GPU, device=device)
    return str(choice.config.name(GPU))


@pytest.mark.parametrize("name", [H200, H100, H20, "NVIDIA H800"])
def test_nor_where_something_was_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by a process with these measurements, nor by one without them, wherever it runs."""
    at_hand(monkeypatch, name)
    before = best()
    slowest = str(current.get().select(PROBLEM, GPU).candidates[-1].config.name(GPU))
    times = {slowest: 1.0, before: 9.0}
    tuned.record(Store.open(), GPU, record(winner=slowest, times_us=times))

    assert best() == slowest
    assert chosen_names() >= {slowest, before, *(best(each) for each in (H200, H100, H20))}


class TestDevices:
    """Which devices a plan stands for."""

    def test_all_that_the_target_knows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        known = tuple(device.name for device in target(GPU).devices)

        assert tuning.covered(GPU) == known
        at_hand(monkeypatch, H100)
        assert tuning.covered(GPU) == known, "the GPU at hand takes nothing away"

    def test_those_that_are_named(self) -> None:
        assert tuning.covered(GPU, ["h100-pcie", "B200", "h20"]) == ("NVIDIA H100 PCIe", H20)
        with settings.scope(device="h20"):
            assert tuning.covered(GPU) == (H20,)
            assert tuning.covered(GPU, [H200]) == (H200,)
            others = tuple(device.name for device in target("sm_100a").devices)
            assert tuning.covered(Arch.parse("sm_100a")) == others, "which JITGEN_DEVICE is not of"

    def test_in_python(self) -> None:
        plan = plans.load("deepseek-v3")
        every = prewarm(plan, arch=GPU, dry_run=True)
        one = prewarm(plan, arch=GPU, dry_run=True, devices=["h100 80gb"])

        assert every.devices == tuple(device.name for device in target(GPU).devices)
        assert one.devices == (H100,)
        assert {row.key for row in one.rows} < {row.key for row in every.rows}

    def test_a_processor_is_what_is_at_hand(self) -> None:
        assert tuning.covered(Arch.CPU) == (tuning.cpu_name(),)


def test_a_layer_asks_for_what_every_device_chooses() -> None:
    """Its list was that of the target's first device, too."""
    torch = pytest.importorskip("torch")
    from jitgen import MoEConfig, MoELayer
    from jitgen.layer.weights import ExpertWeights

    hidden, inner, experts = 4096, 1536, 128
    of: dict[str, Any] = {"dtype": torch.bfloat16, "device": "meta"}
    weights = ExpertWeights(
        w13=torch.empty(experts, 2 * inner, hidden, **of),
        w2=torch.empty(experts, hidden, inner, **of),
    )
    config = MoEConfig(hidden=hidden, intermediate=inner, experts=experts, top_k=8)
    layer = MoELayer(config, weights)
    plan = layer.plan(4096, GPU)
    alone = [set(plans.configs(plan, GPU, devices=[device.name])) for device in target(GPU).devices]

    assert set(layer.configs(GPU, 4096)) == set().union(*alone)
    assert set(layer.configs(GPU, 4096)) > alone[0]
    rows = layer.prewarm(GPU, 4096, dry_run=True).rows
    assert {row.config for row in rows} == set().union(*alone)


@pytest.mark.parametrize(
    "suite",
    [
        "hopper-fp4 --only N4096",
        "layer --experts 32 --tokens 64,512",
        pytest.param("transformers --model qwen3-moe", marks=pytest.mark.nightly),
    ],
)
def test_suites_list_what_every_device_needs(suite: str, jitgen: Jitgen) -> None:
    """They listed what the first device chooses, and a frozen suite missed kernels on an H100."""

    def listed() -> set[str]:
        return set(jitgen(f"bench {suite} --kernels --json").document["kernels"])

    alone = []
    for each in target(GPU).devices:
        with settings.scope(device=each.name):
            alone.append(listed())

    assert listed() == set().union(*alone)
    assert listed() > alone[0]


def even(device: Device, op: str) -> Iterator[Any]:
    """Yield problems whose tiles fill the SMs of a device in whole waves."""
    for rows, tile in product((1, 64, 384), (64, 128, 256)):
        n = device.num_sms * tile
        if op == "grouped_gemm":
            yield GroupedGemmProblem(layout=Layout.RAGGED, groups=8, m=8 * rows, n=n, k=1024)
        elif op == "moe_fc2_dense":
            yield MoEFc2DenseProblem(groups=256, m=rows, n=n, k=256)
        elif op == "grouped_gemm_wgrad":
            yield GroupedGemmWgradProblem(layout=Layout.RAGGED, groups=8, m=8 * rows, n=n, k=1024)


@pytest.mark.parametrize("arch", [arch for arch in Arch if arch.is_gpu])
def test_whole_waves_are_predicted_on_every_device(arch: Arch) -> None:
    """That of `moe_fc2_dense` divided by a last wave that there was none of: on an H20, say."""
    for device in target(arch).devices:
        for op in target(arch).operations:
            for problem in even(device, op):
                choice = current.get().select(problem, arch, device=device.name)
                assert all(candidate.cost > 0 for candidate in choice.candidates)
