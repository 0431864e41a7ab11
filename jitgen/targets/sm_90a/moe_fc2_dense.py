# SPDX-License-Identifier: Apache-2.0
"""Rules of sm_90a for `moe_fc2_dense`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from dataclasses import asdict

from jitgen.config.config import DType, ScaleGranularity
from jitgen.config.grouped_gemm import Cluster, GroupedGemmConfig, Schedule, Tile
from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig, MoEFc2DenseProblem
from jitgen.support.frozen import frozen
from jitgen.targets import fc2_space
from jitgen.targets.fc2_space import Fc2Rules
from jitgen.targets.gemm import FREE_OF_FC2, refuse_early, refuse_swap_tail
from jitgen.targets.protocol import Candidate, Device, refuse_unless
from jitgen.targets.sm_90a.cost import FILL_BYTES_PER_US, _overlapped, speed_of
from jitgen.targets.sm_90a.devices import fit_of
from jitgen.targets.sm_90a.rules import SCALE_CHUNK, Sm90Derived, Sm90Rules
from jitgen.targets.sums import SumOrder

SCANNED_ROWS = {64: 512, 128: 256}
"""
Values of alpha that the tile warp has under way at once, by rows of a tile: 16 or 8 of a lane,
of whose registers ptxas spills some where there are more.
"""

_REGISTERS = {64: (56, 248), 128: (56, 224)}
"""Registers of a thread that loads or plans, and of one that multiplies, by rows of a tile."""

FIRST_CHUNK = 8
"""k-blocks that are handed over first, so that work begins; then twice as many, up to a chunk."""

LISTED_EXPERTS = 64
"""
Entries of the ring buffer of experts that are found and not yet handed over: fewer than a chunk of
k-blocks has, with one each, and those that are found next.
"""

_CHUNK_WORDS = 2 * SCALE_CHUNK + 2
"""
Words of a chunk besides its scales: the expert and the place of each k-block, their number, and the
end.
"""

_PART_M = {64: 16, 128: 64}
"""Rows of a that one copy loads if a tile has fewer tokens than rows."""

_STREAM = Schedule(stream_b=True)
_SPLIT = Schedule(stream_b=True, split_k=2)
_LISTED = (
    (64, 64, Cluster(), _STREAM),
    (64, 64, Cluster(n=2), _STREAM),
    (64, 128, Cluster(), _STREAM),
    (64, 128, Cluster(), _SPLIT),
    (64, 128, Cluster(n=2), _STREAM),
    (128, 64, Cluster(n=2), _STREAM),
    (128, 128, Cluster(), _SPLIT),
    (128, 128, Cluster(n=2), _STREAM),
    (128, 128, Cluster(m=2), Schedule()),
    (128, 192, Cluster(n=2), Schedule()),
    (128, 192, Cluster(m=2), Schedule()),
)
"""Not tuned yet: tiles that fill 132 SMs at 32 to 384 tokens and N 7168, by the cost model."""


@frozen
class Sm90Fc2Derived(Sm90Derived):
    """
    Numbers that follow from a legal config: those of a grouped GEMM, and those of the search for
    experts.

    Attributes:
        scanned_experts: Experts whose alpha is looked at at once.
        listed_experts: Experts that are found and not yet handed over, at most.
        first_chunk: k-blocks of a tile that are handed over first.
    """

    scanned_experts: int
    listed_experts: int
    first_chunk: int


class _Parts(Sm90Rules):
    """Rules of the grouped GEMM that has the parts of a `moe_fc2_dense` kernel."""

    space = Sm90Rules.space._replace(
        tile_m=tuple(_PART_M),
        tile_k={DType.E4M3: (128,)},
        operands=tuple((DType.E4M3, out) for out in (DType.BF16, DType.F16, DType.F32)),
        scale_granularity=(ScaleGranularity.BLOCK128,),
    )
    lists_tiles = False  # every token is there
    schedules_tiles = False  # and every tile is full, but the last ones

    def derive(self, config: GroupedGemmConfig) -> Sm90Derived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        fc2_space.check_types(config, self.space, "sm_90a")
        refuse_early(config, "a kernel with experts along K")
        refuse_swap_tail(config, "a kernel with experts along K")
        refuse_unless(
            config.tile.m in self.space.tile_m,
            "E_WGMMA_M",
            f"tile_m={config.tile.m}: one or two warpgroups take 64 tokens each, 64 or 128; more "
            "leave SMs without a tile where experts lie along K",
        )
        return super().derive(config)

    def _memory(self, config: GroupedGemmConfig) -> tuple[int, int]:
        """Return the bytes of shared memory of an operand stage, and of everything else."""
        stage, fixed = super()._memory(config)
        alpha = -(-config.tile.m // 32) * 32 * 4
        return stage + alpha, fixed + 2 * _CHUNK_WORDS * 4 + LISTED_EXPERTS * 4


class MoeFc2Dense(Fc2Rules):
    """Rules of the `moe_fc2_dense` kernels, their candidates and their cost model."""

    entry = "sm90/moe_fc2_dense.py.jinja"
    note = "the model was fitted to grouped GEMMs, and takes routing for even"
    row_edges: tuple[int, ...] = (
        *(8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 288, 320, 384),
        *(512, 768, 1024, 2048, 4096),
    )
    sums = SumOrder(
        words=(
            "expert by expert, each in blocks of 128 along K, which are promoted one after "
            "the other"
        ),
        free=FREE_OF_FC2,
    )
    arch = "sm_90a"
    parts = _Parts()

    def derive(self, config: MoEFc2DenseConfig) -> Sm90Fc2Derived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        rows = config.tile.m
        numbers = asdict(self.parts.derive(config.gemm))
        load_registers, math_registers = _REGISTERS[rows]
        numbers |= {"load_registers": load_registers, "math_registers": math_registers}
        numbers |= {"part_m": _PART_M[rows]}
        return Sm90Fc2Derived(
            **numbers,
            scanned_experts=SCANNED_ROWS[rows] // (rows * config.cluster.m),
            listed_experts=LISTED_EXPERTS,
            first_chunk=FIRST_CHUNK,
        )

    def candidates(self, problem: MoEFc2DenseProblem) -> tuple[MoEFc2DenseConfig, ...]:
        """Return the candidate configs for `problem`; none if no kernel serves it."""
        listed = (
            MoEFc2DenseConfig(
                operands=problem.operands,
                tile=Tile(m=rows, n=columns, k=128),
                cluster=cluster,
                schedule=schedule,
            )
            for rows, columns, cluster, schedule in _LISTED
        )
        return self.legal(listed)

    def predict(
        self,
        problem: MoEFc2DenseProblem,
        config: MoEFc2DenseConfig,
        device: Device,
        num_sms: int,
    ) -> Candidate:
        """
        Estimate the time of `config` for `problem` on `num_sms` SMs of `device`.

        The model is that of the grouped GEMM, with its times of a k-block.

        A tile takes the k-blocks of the experts that its tokens have, or, of a cluster that shares
        b, of those that the tokens of all its tiles have. Three things bound a wave of tiles:

            multiply  k-blocks x the time of one, and what starts and ends a tile
            stream    the wave's share of the bytes that cross DRAM: every live weight once, for
                      there is little of everything else
            fill      what all CTAs read from L2 at once: a for every tile of columns, b for every
                      tile of tokens; less where a cluster shares it
        """
        fit = fit_of(device, problem.op)
        tile, cluster, split_k = config.tile, config.cluster, config.schedule.split_k
        speed = speed_of(config.gemm, fit)
        tokens = max(1, problem.m)
        height, width = tile.m * cluster.m, tile.n * cluster.n
        tiles = -(-tokens // height) * -(-problem.n // width)
        live = problem.live_experts(min(tokens, height))
        k_blocks = live * -(-problem.k // tile.k) / split_k
        slots = max(1, num_sms // (cluster.size * split_k))
        tile_us = speed.tile_us + k_blocks * speed.k_block_us
        crossing = problem.traffic_bytes
        stream_us = crossing / tiles / fit.dram_bytes_per_us / speed.stream
        rows = min(tokens, height) / cluster.m / cluster.n + tile.n / cluster.m
        fill_us = k_blocks * rows * tile.k * cluster.size * split_k / FILL_BYTES_PER_US
        full, rest = divmod(tiles, slots)
        cost = fit.call_us
        for count, at_once in ((full, slots), (1, rest)):
            if count and at_once:  # whole waves leave no rest
                loads_us = _overlapped(fit.overlap, at_once * stream_us, at_once * fill_us)
                cost += count * _overlapped(fit.overlap, tile_us, loads_us)
        needed = tokens * min(problem.top_k, problem.groups)
        loads_us = max(stream_us, fill_us)
        return Candidate(
            config=config,
            cost=cost,
            padding_ratio=-(-tokens // height) * height * live / needed,
            waves=full + (rest > 0),
            traffic_bytes=crossing,
            limiter="multiply" if tile_us > min(tiles, slots) * loads_us else "stream",
        )
