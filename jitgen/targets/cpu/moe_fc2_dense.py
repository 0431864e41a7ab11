# SPDX-License-Identifier: Apache-2.0
"""What the cpu target says of `moe_fc2_dense`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from collections.abc import Iterator

from jitgen.config.config import SCALE_BLOCK, DType, ScaleGranularity
from jitgen.config.grouped_gemm import KernelConfig, Tile
from jitgen.config.moe_fc2_dense import MoeFc2DenseConfig, MoeFc2DenseProblem
from jitgen.targets import fc2_space
from jitgen.targets.cpu.grouped_gemm import CpuDerived, GroupedGemm
from jitgen.targets.protocol import Candidate, Device, Template
from jitgen.targets.sums import SumOrder
from jitgen.templates import ROOT

_MULTIPLY_US = 2.2e-3
"""One k of a block of 4 x 16 partial sums, as for the grouped GEMM."""

_DECODE_US = 5e-4
"""One FP8 operand to float32 and into its panel, likewise."""

_ROWS = (8, 32, 64)
"""Rows of the tiles that may be chosen: few tokens need no more, and leave experts out."""

_PARAMETERS = frozenset(
    (
        *("name", "config_json", "a_dtype", "b_dtype", "out_dtype", "scale_granularity"),
        *("b_layout", "tile_m", "tile_n", "tile_k"),
    )
)


class _Parts(GroupedGemm):
    """The rules of a grouped GEMM that is made of the same parts."""

    space = GroupedGemm.space._replace(
        operands=tuple(
            (operand, out)
            for operand in (DType.E4M3, DType.E2M1)
            for out in (DType.BF16, DType.F16, DType.F32)
        ),
        scale_granularity=(
            ScaleGranularity.BLOCK128,
            ScaleGranularity.MX32,
            ScaleGranularity.NV16,
        ),
        mixed=(),
    )

    def derive(self, config: KernelConfig) -> CpuDerived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        fc2_space.check_types(config, self.space, "cpu")
        return super().derive(config)


class MoeFc2Dense:
    """The rules of its kernels, the few that may be chosen, and what they cost."""

    generation = 1
    alignment = 1
    row_edges: tuple[int, ...] = _ROWS
    sums = SumOrder(
        words="expert by expert, each k by k within 128 of K, block by block",
        free=(
            "operands",
            "tile",
            "cluster",
            "pipeline",
            "schedule.raster",
            "schedule.use_pdl",
            "schedule.stream_b",
        ),
    )
    space = _Parts.space
    parts = _Parts()

    def derive(self, config: MoeFc2DenseConfig) -> CpuDerived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        return self.parts.derive(config.gemm)

    def nearest(self, config: MoeFc2DenseConfig) -> MoeFc2DenseConfig | None:
        """Return the legal config that is nearest to a refused one; None where there is none."""
        return fc2_space.nearest(config, self.parts)

    def configs(self) -> Iterator[MoeFc2DenseConfig]:
        """Yield every config that the target can be asked for, legal or not."""
        yield from fc2_space.every(self.space)

    def candidates(self, problem: MoeFc2DenseProblem) -> tuple[MoeFc2DenseConfig, ...]:
        """Return the few configs that may be chosen for `problem`; none where it has no kernel."""
        listed = (
            MoeFc2DenseConfig(operands=problem.operands, tile=Tile(m=rows, n=128, k=SCALE_BLOCK))
            for rows in _ROWS
        )
        return fc2_space.legal_of(listed, self.parts)

    def predict(
        self,
        problem: MoeFc2DenseProblem,
        config: MoeFc2DenseConfig,
        device: Device,  # noqa: ARG002  # one core is like another
        num_sms: int,  # noqa: ARG002  # and one thread does all of it
    ) -> Candidate:
        """
        Count what one thread does: b is decoded for each tile of tokens, a for each of columns.

        Rows are computed in blocks of four, and experts that no token of a tile has are left out.
        """
        tile = config.tile
        tiles, columns = -(-problem.m // tile.m), -(-problem.n // tile.n)
        live = problem.live_experts(min(tile.m, problem.m))
        blocks = tiles * -(-min(tile.m, problem.m) // 4)
        decoded = live * problem.k * (tiles * problem.n + problem.m * columns)
        multiplied = live * problem.k * blocks * -(-problem.n // 16)
        return Candidate(
            config=config,
            cost=decoded * _DECODE_US + multiplied * _MULTIPLY_US,
            padding_ratio=4 * blocks * live / max(1, problem.m * min(problem.top_k, live)),
            waves=max(1, tiles * columns),
            traffic_bytes=problem.traffic_bytes,
            limiter="multiply",
        )

    def doubt(self, problem: MoeFc2DenseProblem, device: Device) -> str:  # noqa: ARG002
        """Return nothing: only work counts, on every processor."""
        return ""

    def templates(self) -> tuple[Template, ...]:
        """Return the template of its kernels."""
        return (Template(root=ROOT, entry="cpu/moe_fc2_dense.py.jinja", parameters=_PARAMETERS),)

    def check_sizes(self, problem: MoeFc2DenseProblem) -> None:
        """Take any size: a host kernel reads what exists, value by value where it must."""
