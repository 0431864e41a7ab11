# SPDX-License-Identifier: Apache-2.0
"""
Pinned kernels and those of the menus of GPU targets, compiled and run in the emulator.

With every push two goldens: of sm_90a the lowest with a split K, of sm_100a the narrowest pair of
CTAs. (`test_emulated_grouped_gemm`, `test_emulated_sm_100a` and `test_emulated_sm_120a` vary
layouts, scales and types, `test_emulated_fp4` prepacked weights; `test_emulator` has clusters of
either shape, with one problem each.) The others at night, those of sm_100a and sm_120a in every
mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from jitgen.config import Arch, Config, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig, Operands
from jitgen.config.moe_fc2_dense import MoEFc2DenseProblem
from jitgen.config.plugins import TARGETS
from jitgen.targets.legality import rules
from jitgen.targets.sm_90a.fp4 import OPERANDS
from jitgen.verify import verify
from tests import needs, pinned
from tests.candidates import candidates
from tests.covering import covering

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

SM_100A, SM_120A = Arch("sm_100a"), Arch("sm_120a")
BLACKWELL = (SM_100A, SM_120A)
SCALED = [
    Operands(a_dtype=a_dtype, b_dtype=b_dtype, scale_granularity=scales)
    for a_dtype, b_dtype, scales in [
        (DType.E4M3, DType.E4M3, ScaleGranularity.MX32),
        (DType.E4M3, DType.E2M1, ScaleGranularity.MX32),
        (DType.E2M1, DType.E2M1, ScaleGranularity.MX32),
        (DType.E2M1, DType.E2M1, ScaleGranularity.NV16),
    ]
]
"""Operands whose scales the tensor core applies."""

PREPACKED = [types for types in OPERANDS if types.out_dtype is DType.BF16]
"""Operands whose weights were prepacked."""

OTHERS = {SM_100A: SCALED, SM_120A: SCALED, Arch.SM_90A: PREPACKED}


def goldens(arch: Arch) -> list[str]:
    return sorted(name for name in pinned.NAMES if name.endswith(f"_{arch}"))


def menu(arch: Arch) -> list[str]:
    kinds = [Operands(), *OTHERS[arch]]
    configs = [
        config for kind in kinds for layout in Layout for config in candidates(arch, layout, kind)
    ]
    if "moe_fc2_dense" in TARGETS.get(arch).operations:
        problem = MoEFc2DenseProblem(groups=1, m=1, n=1, k=1)
        for kind in kinds:
            if kind.a_dtype is kind.b_dtype:
                types = {"a_dtype": kind.a_dtype, "scale_granularity": kind.scale_granularity}
                configs += rules(arch, problem.op).candidates(replace(problem, **types))
    return [config.name(arch) for config in configs]


def _structure(config: GroupedGemmConfig) -> Iterator[object]:
    if config.schedule.two_cta:
        yield "a pair"
    if config.schedule.split_k > 1:
        yield "split K"


def few(arch: Arch) -> set[str]:
    """Return the goldens for every push."""
    every = [Config.parse(name)[0] for name in goldens(arch)]
    configs = [config for config in every if isinstance(config, GroupedGemmConfig)]
    configs = [config for config in configs if not config.operands.b_layout.is_prepacked]
    if arch == SM_100A:
        configs = [config for config in configs if config.schedule.two_cta]
    configs.sort(key=lambda config: config.tile.n if arch == SM_100A else config.tile.m)
    return {config.name(arch) for config in covering(configs, _structure)}


GPUS = (Arch.SM_90A, *BLACKWELL)
NAMES = {arch: [*dict.fromkeys([*menu(arch), *goldens(arch)])] for arch in GPUS}
FEW = {name for arch in NAMES for name in few(arch)}


@pytest.mark.parametrize("arch", NAMES)
def test_there_are_goldens_and_a_menu(arch: Arch) -> None:
    assert goldens(arch)
    assert menu(arch)
    assert len(few(arch)) < len(NAMES[arch]) / 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in FEW else pytest.mark.nightly)
        for names in NAMES.values()
        for name in names
    ],
)
def test_kernel(name: str) -> None:
    """
    Right to the bit for small integers, within rounding for random numbers, and nothing found:
    no race, no missing fence, nothing left undone; with asynchronous work done at once and late.
    And no wait, copy, matrix instruction or store that the problems do not reach.
    """
    config, arch = Config.parse(name)

    found = verify(config, arch, modes="all" if arch in BLACKWELL and name not in FEW else "quick")

    assert found.is_right, found.to_json()
