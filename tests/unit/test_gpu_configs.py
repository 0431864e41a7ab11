# SPDX-License-Identifier: Apache-2.0
"""The kernels that the GPU tests run can all be made, and are enough: known without a GPU."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import jitgen
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.targets.legality import rules
from tests.gpu import configs

GPUS = [arch for arch in Arch if arch.is_gpu]


@pytest.mark.parametrize("arch", GPUS)
class TestKernels:
    def test_all_are_legal(self, arch: Arch) -> None:
        family = configs.of_family(arch)
        found = [*family.CONFIGS, *configs.choices(arch), *configs.prepacked(arch)]
        refused = {
            config.name(arch): verdict.reason
            for config in found
            if not (verdict := jitgen.check(config, arch))
        }

        assert len(set(found)) > 100
        assert not refused

    def test_they_have_everything_between_them(self, arch: Arch) -> None:
        """Each layout, scale, output, cluster and depth of a target that its space has."""
        family = configs.of_family(arch)
        space = rules(arch, "grouped_gemm").space  # type: ignore[attr-defined]
        found: list[GroupedGemmConfig] = family.CONFIGS

        assert {config.layout for config in found} == {*Layout}
        assert {config.operands.scale_granularity for config in found} == {*space.scale_granularity}
        assert {config.operands.out_dtype for config in found} == {out for _, out in space.operands}
        assert {config.operands.a_dtype for config in found} == {*space.of_a}
        assert {config.tile.m for config in found} == {*space.tile_m}
        assert {config.schedule.two_cta for config in found} == {*space.two_cta}
        assert {config.pipeline.num_acc_stage for config in found} == {*space.num_acc_stage}
        assert {config.schedule.split_k for config in found} == {*space.split_k}
        assert {(config.cluster.m, config.cluster.n) for config in found} == {*space.cluster}
        assert family.ACCUMULATOR_BITS.keys() >= {config.operands.a_dtype for config in found}

    def test_a_k_in_bytes_is_a_k_that_kernels_take(self, arch: Arch) -> None:
        for config in configs.of_family(arch).CONFIGS:
            assert configs.depth(config, 16) * config.operands.a_dtype.bits % 128 == 0


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in Path(configs.__file__).parent.glob("test_*.py"))
)
def test_they_can_be_collected(name: str) -> None:
    """Without a GPU they are not; what they import and the kernels that they name are there."""
    importlib.import_module(f"tests.gpu.{name}")
