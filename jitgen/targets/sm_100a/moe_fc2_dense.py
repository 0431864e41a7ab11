# SPDX-License-Identifier: Apache-2.0
"""Rules of sm_100a and sm_103a for `moe_fc2_dense`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

import math
from dataclasses import asdict

from jitgen.config.config import SCALE_BLOCK, ScaleGranularity
from jitgen.config.grouped_gemm import Cluster, GroupedGemmConfig, Pipeline, Schedule, Tile
from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig, MoEFc2DenseProblem
from jitgen.support.frozen import frozen
from jitgen.targets import fc2_space
from jitgen.targets.base import ON_PAPER
from jitgen.targets.fc2_space import Fc2Rules
from jitgen.targets.gemm import FREE_OF_FC2
from jitgen.targets.protocol import Candidate, Device, refuse_unless
from jitgen.targets.sm_100a.cost import cycles
from jitgen.targets.sm_100a.devices import Paper
from jitgen.targets.sm_100a.rules import Sm100Derived, Sm100Rules
from jitgen.targets.sm_100a.sizes import (
    CTA_ROWS,
    PART_M,
    RING_SLOT_BYTES,
    ROW_BYTES,
    SCALE_CHUNK,
    SCALE_STAGES,
    align,
    has_atoms,
    num_ctas,
    scale_box,
)
from jitgen.targets.sums import SumOrder

_SCANNED_ROWS = 1024
"""Values of alpha that the tile warp has under way at once: 32 of a lane, in registers."""

_SPLIT_REGISTERS = {"update_registers": 200, "other_registers": 104}
"""
Registers of a thread where tiles are split. With an equal share, 168, ptxas spills a word or two of
the values that an update warp keeps between tiles of 128 columns. With the numbers for scales in
atoms, which leave the other warps 64, it spills values that those warps keep. 2 x 200 + 104 are the
registers of three warpgroups.
"""

FIRST_CHUNK = 8
"""k-blocks that are handed over first, so that work begins; then twice as many, up to a chunk."""

FIRST_EXPERTS = 2
"""
Experts that are handed over first, where chunks are of experts, each of which may have one k-block
or many; then twice as many, up to a chunk.
"""

LISTED_EXPERTS = 64
"""
Entries of the ring buffer of experts that are found and not yet handed over: fewer than a chunk of
k-blocks has, with one each, and those that are found next.
"""

_STREAM = Schedule(stream_b=True)
_SPLIT = Schedule(stream_b=True, split_k=2)
_LISTED = (
    (128, 64, Cluster(), 4, _STREAM),
    (128, 64, Cluster(), 4, _SPLIT),
    (128, 128, Cluster(), 4, _STREAM),
    (128, 128, Cluster(), 4, _SPLIT),
    (256, 128, Cluster(m=2), 4, Schedule(two_cta=True)),
)
"""
Rows, columns, cluster, accumulator stages and schedule: what fills 148 SMs at 32 to 384 tokens and
N 7168, by the cost model on paper.
"""

_STAGES_BESIDE_ATOMS = 3
"""The stages of all beside scales in atoms: so many of 128 columns have room in tensor memory."""


@frozen
class Sm100Fc2Derived(Sm100Derived):
    """
    Numbers that follow from a legal config: those of a grouped GEMM, and those of the search for
    experts.

    Attributes:
        scanned_experts: Experts whose alpha is looked at at once.
        listed_experts: Experts that are found and not yet handed over, at most.
        first_chunk: k-blocks of a tile that are handed over first; with scales in atoms, experts.
    """

    scanned_experts: int
    listed_experts: int
    first_chunk: int


class _Parts(Sm100Rules):
    """Rules of the grouped GEMM that has the parts of a `moe_fc2_dense` kernel."""

    space = Sm100Rules.space._replace(
        tile_n=(64, 128),
        cluster=((1, 1), (2, 1), (1, 2)),
        scale_granularity=(
            ScaleGranularity.BLOCK128,
            ScaleGranularity.MX32,
            ScaleGranularity.NV16,
        ),
        mixed=(),
    )

    def derive(self, config: GroupedGemmConfig) -> Sm100Derived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        fc2_space.check_types(config, self.space, self.arch)
        refuse_unless(
            config.tile.n in self.space.tile_n,
            "E_MMA_N",
            f"tile_n={config.tile.n}: tiles wider than {SCALE_BLOCK} leave SMs without one where "
            "experts lie along K, and narrower ones than 64 load more of a than of b: "
            f"{' or '.join(map(str, self.space.tile_n))}",
        )
        return super().derive(config)

    def _is_promoted(self, config: GroupedGemmConfig) -> bool:
        """Return True: the sum of every expert is promoted, because it is weighted."""
        return True

    def _memory(self, config: GroupedGemmConfig) -> tuple[int, int]:
        """Return the bytes of shared memory of an operand stage, and of everything else."""
        stage, fixed = super()._memory(config)
        alpha, place = SCALE_STAGES * scale_box(config) * 4, 2  # a k-block's: expert, and where
        if has_atoms(config):  # alpha has a pipeline of its own, and chunks are of experts
            alpha, place = alpha + SCALE_STAGES * RING_SLOT_BYTES, 1
        chunk = place * SCALE_CHUNK + 2  # how many there are, and whether they are the last
        return stage, fixed + alpha + 2 * chunk * 4 + LISTED_EXPERTS * 4


class MoeFc2Dense(Fc2Rules):
    """Rules of the `moe_fc2_dense` kernels, their candidates and their cost model."""

    entry = "sm100/moe_fc2_dense.py.jinja"
    note = f"{ON_PAPER}; it takes routing for even"
    row_edges: tuple[int, ...] = (
        *(8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 288, 320, 384),
        *(512, 768, 1024, 2048, 4096),
    )
    sums = SumOrder(
        words="expert by expert, each in blocks of 128 bytes along K from the first on",
        free=(*FREE_OF_FC2, "schedule.two_cta"),
    )

    parts: _Parts

    def __init__(self, arch: str) -> None:
        super().__init__(arch)
        self.parts = _Parts(arch)

    def derive(self, config: MoEFc2DenseConfig) -> Sm100Fc2Derived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        gemm = config.gemm
        numbers = asdict(self.parts.derive(gemm)) | {"part_m": PART_M}
        if has_atoms(gemm):
            numbers |= {"scale_stages": SCALE_STAGES, "scale_chunk": SCALE_CHUNK}
            numbers |= {"scale_box": scale_box(gemm), "scale_pitch": align(scale_box(gemm), 32)}
        if config.schedule.split_k > 1 and (config.tile.n == SCALE_BLOCK or has_atoms(gemm)):
            numbers |= _SPLIT_REGISTERS
        ctas = numbers["ctas"]
        return Sm100Fc2Derived(
            **numbers,
            scanned_experts=_SCANNED_ROWS // (config.tile.m * config.cluster.m // ctas),
            listed_experts=LISTED_EXPERTS,
            first_chunk=FIRST_EXPERTS if has_atoms(gemm) else FIRST_CHUNK,
        )

    def candidates(self, problem: MoEFc2DenseProblem) -> tuple[MoEFc2DenseConfig, ...]:
        """Return the candidate configs for `problem`; none if no kernel serves it."""
        is_block = problem.scale_granularity is ScaleGranularity.BLOCK128
        listed = (
            MoEFc2DenseConfig(
                operands=problem.operands,
                tile=Tile(m=rows, n=columns, k=ROW_BYTES * 8 // problem.a_dtype.bits),
                cluster=cluster,
                pipeline=Pipeline(num_acc_stage=stages if is_block else _STAGES_BESIDE_ATOMS),
                schedule=schedule,
            )
            for rows, columns, cluster, stages, schedule in _LISTED
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

        The model, on paper, is that of the grouped GEMM, with its cycles of a k-block.

        A tile takes the k-blocks of the experts that its tokens have, or, of a cluster that shares
        b, of those that the tokens of all its tiles have. The sum of each k-block is promoted, or,
        where the tensor core applies the scales, that of each expert. A call takes whole waves of
        tiles, and no less than its bytes take from memory: the weights of the experts that are
        needed, and a.
        """
        tile, cluster, split_k = config.tile, config.cluster, config.schedule.split_k
        paper: Paper = device.constants["grouped_gemm"]
        tokens = max(1, problem.m)
        height, width = tile.m * cluster.m // num_ctas(config.gemm), tile.n * cluster.n
        tiles = -(-tokens // height) * -(-problem.n // width)
        slots = max(1, num_sms // (cluster.size * split_k))
        waves = math.ceil(tiles / slots)

        live = problem.live_experts(min(tokens, height))
        depth = -(-problem.k // tile.k)
        k_blocks = live * depth / split_k
        promotions = 1 / depth if has_atoms(config.gemm) else 1.0
        loaded = min(CTA_ROWS, -(-tokens // PART_M) * PART_M)
        of_block = cycles(config.gemm, paper, loaded, promotions)
        k_block = of_block.bound(config.pipeline.num_acc_stage)
        multiply_us = waves * (k_blocks * k_block + paper.tile_cycles) / device.clock_mhz
        crossing = problem.traffic_bytes
        stream_us = crossing / (device.dram_gbps * 1e3 * paper.dram_share)
        needed = tokens * min(problem.top_k, problem.groups)
        return Candidate(
            config=config,
            cost=paper.call_us + max(multiply_us, stream_us) + min(multiply_us, stream_us) / 8,
            padding_ratio=-(-tokens // height) * height * live / needed,
            waves=waves,
            traffic_bytes=crossing,
            limiter="multiply" if multiply_us > stream_us else "stream",
        )
