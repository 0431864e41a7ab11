# SPDX-License-Identifier: Apache-2.0
"""
Legal configs really compile, and nothing of them spills: with every push a few of one target that
have between them all that changes a kernel's structure; at night those of all targets, more, with
every pair of that and every number, and a spread sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest

from jitgen.cache import Store
from jitgen.compile import inspect
from jitgen.config import Arch, DType, Layout
from jitgen.config.grouped_gemm import Cluster, GroupedGemmConfig, Operands, Schedule, Tile
from jitgen.plans.prewarm import prewarm
from jitgen.runtime.spec import key, spec_of
from jitgen.runtime.tiers import Tiers, build
from jitgen.targets.legality import check
from tests.compile.kernels import often
from tests.covering import covering, pairs_and_numbers, structure_and_switches
from tests.strategies import legal_sweep
from tests.targets import EACH, OWN

NUM_SAMPLES = {**dict.fromkeys(Arch, 128), Arch.CPU: 320}  # which has the most types

OF_A_PUSH = Arch("sm_120a")
"""
The target of a push. Kernels of the others that spill are found by `LARGEST` and `test_sass_*`, and
that they compile by `test_every_value`.
"""

FEW = 8
"""Kernels that are compiled in this process."""

SPILLED_BYTES = 8
"""Of the widest tiles on Blackwell: a word outside of the k loop, and what aligns it."""

LARGEST = (
    [
        GroupedGemmConfig(layout=layout, tile=Tile(m=m, n=n, k=128), cluster=Cluster(m=cluster_m))
        for layout, m, n, cluster_m in [
            (Layout.RAGGED, 64, 192, 2),
            (Layout.RAGGED, 128, 192, 2),
            (Layout.MASKED, 256, 128, 2),
            (Layout.CONTIGUOUS, 128, 144, 2),
            (Layout.CONTIGUOUS, 128, 128, 2),
            (Layout.CONTIGUOUS, 256, 128, 1),
        ]
    ]
    + [
        GroupedGemmConfig(
            layout=layout,
            operands=Operands(
                a_dtype=dtype, b_dtype=dtype, out_dtype=out, scale_granularity=scales
            ),
            tile=Tile(m=m, n=n, k=1024 // dtype.bits),
            cluster=Cluster(m=2),
        )
        for layout, dtype, scales, out, m, n in [
            (Layout.RAGGED, DType.E4M3, "block128", DType.F32, 128, 192),
            (Layout.MASKED, DType.BF16, "tensor", DType.BF16, 256, 144),
            (Layout.CONTIGUOUS, DType.BF16, "row", DType.F16, 128, 256),
            (Layout.RAGGED, DType.BF16, "row", DType.F32, 64, 240),
        ]
    ]
    + [
        GroupedGemmConfig(
            layout=layout, tile=Tile(m=m, n=128, k=128), schedule=Schedule(split_k=split_k)
        )
        for layout, m, split_k in [(Layout.RAGGED, 64, 2), (Layout.CONTIGUOUS, 128, 2)]
    ]
)
"""The tiles with the most accumulator registers and shared memory, and those that once spilled."""


PARTS: tuple[Callable[[GroupedGemmConfig], object], ...] = (
    lambda config: config.layout,
    lambda config: config.operands,
    lambda config: config.tile.m,
    lambda config: config.tile.n,
    lambda config: config.cluster,
    lambda config: config.pipeline.num_ab_stage,
    lambda config: config.schedule.use_pdl,
    lambda config: config.schedule.stream_b,
    lambda config: config.schedule.split_k,
)
"""What every value of is in the sample."""


@cache
def few(arch: Arch) -> list[GroupedGemmConfig]:
    """Return the configs that every push compiles."""
    return covering(legal_sweep(arch), structure_and_switches)


@cache
def more(arch: Arch) -> list[GroupedGemmConfig]:
    """Return configs that have between them all that kernels differ in."""
    return covering(legal_sweep(arch), pairs_and_numbers)


@cache
def sample(arch: Arch) -> list[GroupedGemmConfig]:
    """
    Return configs spread evenly over the sweep, and the first one with each value that they miss;
    the step is prime to the sweep's inner loops.
    """
    configs = legal_sweep(arch)
    step = len(configs) // NUM_SAMPLES[arch]
    found = [*configs[:: step - (step % 2 == 0)][: NUM_SAMPLES[arch]]]
    for part in PARTS:
        values = {part(config) for config in found}
        for config in configs:
            if part(config) not in values:
                values.add(part(config))
                found.append(config)
    return found


def compiled(configs: list[GroupedGemmConfig], arch: Arch, root: Path) -> Store:
    """
    Compile `configs` and return the store: many in two processes, few in this one, which mostly has
    the compiler; others first import it, for as long as a kernel takes.
    """
    store = Store.open(root)
    if len(configs) <= FEW:
        for config in configs:
            build(Tiers(store), spec_of(config, arch))
        return store
    report = prewarm(configs, arch=arch, jobs=2, store=store)

    assert not [row for row in report.rows if row.error]
    return store


@pytest.mark.nightly
def test_the_samples_are_spread() -> None:
    """At least 150 configs, over every layout, scale, tile, cluster and stage count."""
    assert sum(NUM_SAMPLES.values()) >= 150
    for arch in OWN:
        everything, some = legal_sweep(arch), sample(arch)
        assert len(set(some)) == len(some) >= NUM_SAMPLES[arch]
        for part in PARTS:
            assert {part(config) for config in some} == {part(config) for config in everything}


@pytest.mark.sampled(len(EACH))
@pytest.mark.parametrize("arch", EACH)
def test_the_few_cover_the_sweep(arch: Arch) -> None:
    """They have all that makes a kernel's structure."""
    assert features_of(few(arch), structure_and_switches) == features_of(
        legal_sweep(arch), structure_and_switches
    )
    assert len(few(arch)) < NUM_SAMPLES[arch] / 8


@pytest.mark.nightly
@pytest.mark.parametrize("arch", EACH)
def test_more_cover_all_of_it(arch: Arch) -> None:
    """They have every pair of that, and every number."""
    everything = legal_sweep(arch)
    for part in PARTS:
        assert {part(config) for config in more(arch)} == {part(config) for config in everything}
    assert features_of(more(arch), pairs_and_numbers) == features_of(everything, pairs_and_numbers)
    assert len(few(arch)) < len(more(arch)) < NUM_SAMPLES[arch] / 2


def features_of(
    configs: Iterable[GroupedGemmConfig], features: Callable[[GroupedGemmConfig], Iterable[object]]
) -> set[object]:
    return {feature for config in configs for feature in features(config)}


@pytest.mark.parametrize("chosen", often((few, more, sample), [few], lambda each: each.__name__))
@pytest.mark.parametrize("arch", often(Arch, [OF_A_PUSH]))
def test_a_sample_compiles(
    arch: Arch, chosen: Callable[[Arch], list[GroupedGemmConfig]], kernel_root: Path
) -> None:
    """
    Every config of the sample compiles; GPU kernels use no stack and have the derived threads.
    """
    store = compiled(chosen(arch), arch, kernel_root)
    if not arch.is_gpu:
        return
    for config in chosen(arch):
        entry = store.read(key(config, arch))
        assert entry is not None
        resources = inspect.resources(entry.library)

        is_wide = arch.startswith("sm_10") and config.tile.n >= 192
        allowed = SPILLED_BYTES if is_wide else 0
        assert resources.stack_bytes <= allowed, config.name(arch)
        assert resources.local_bytes == 0, config.name(arch)
        assert resources.threads == check(config, arch).derived.threads


@pytest.mark.parametrize(
    "configs",
    [LARGEST[:1], pytest.param(LARGEST, marks=pytest.mark.nightly)],
    ids=["some", "all"],
)
def test_the_largest_kernels_neither_spill_nor_serialise(
    configs: list[GroupedGemmConfig], kernel_root: Path
) -> None:
    """
    In machine code: no local memory, one wait for each four WGMMAs, loop state in uniform
    registers.
    """
    store = compiled(configs, Arch.SM_90A, kernel_root)
    for config in configs:
        entry = store.read(key(config, Arch.SM_90A))
        assert entry is not None
        sass = inspect.sass(entry.library)
        counts = inspect.instruction_counts(sass)

        assert inspect.spills(sass) == 0, config.name("sm_90a")
        assert not inspect.wgmma_serialised(sass), config.name("sm_90a")
        assert counts["R2UR"] < 60, (
            f"{config.name('sm_90a')}: the pipeline's state left the uniform registers"
        )
