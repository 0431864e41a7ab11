# SPDX-License-Identifier: Apache-2.0
"""
Rules of sm_90a for `grouped_gemm_wgrad`: see `jitgen.targets.protocol.Rules`.

WGMMA reads bf16 operands in either order, so both are used in their layout: (rows, columns) with
the rows along the sums. It reads FP8 operands in one order only, so there is no kernel for them.
"""

from __future__ import annotations

from jitgen.config import DType
from jitgen.config.grouped_gemm import Cluster, Tile
from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig, GroupedGemmWgradProblem
from jitgen.support.frozen import frozen
from jitgen.targets import wgrad_space
from jitgen.targets.gemm import refuse_stages
from jitgen.targets.protocol import Candidate, Device, legal_of, refuse_unless
from jitgen.targets.sm_90a.boxes import REGISTERS, WARPGROUPS
from jitgen.targets.sm_90a.cost import FILL_BYTES_PER_US, _overlapped
from jitgen.targets.sm_90a.devices import fit_of
from jitgen.targets.sm_90a.rules import MAX_STAGES, ROW_BYTES, SMEM_BYTES
from jitgen.targets.sums import SumOrder
from jitgen.targets.wgrad_space import WgradRules, WgradSpace

TILE_K = 64
"""
Rows of a k-block: four WGMMAs deep. A group's last block is multiplied whole, so that more would
cost short groups; with less, what a warpgroup does for each block would show.
"""

_ATOM = ROW_BYTES * 8 // DType.BF16.bits
"""Number of contiguous columns in shared memory: the span of the swizzle."""

_BOX_BYTES = 64 * ROW_BYTES
"""A place of the store: 64 rows as wide as a swizzle."""

_LEAST_BOXES = 2
"""Places that a math warpgroup needs for the next box to be written while one leaves."""

_SWIZZLE_BYTES = 1024
"""Alignment of operands in shared memory, in bytes: the 128-byte swizzle repeats after so many."""

_RING_SLOT_BYTES = 16
"""Bytes of the two mbarriers, full and free, of a stage."""

_PLAN_BYTES = 4 * (4 * 4 + _RING_SLOT_BYTES)
"""Four tiles on their way to the math warpgroups: four words each, and their barriers."""


_LISTED: tuple[tuple[int, int, Cluster, int | None], ...] = (
    (64, 64, Cluster(), None),
    (64, 128, Cluster(), None),
    (128, 128, Cluster(), None),
    (128, 128, Cluster(m=2), None),
    (128, 256, Cluster(), None),
    (128, 256, Cluster(m=2), None),
    (128, 256, Cluster(m=2), 3),
    (256, 128, Cluster(n=2), None),
    (256, 128, Cluster(n=2), 3),
    (256, 192, Cluster(), None),
)
"""Rows, columns, cluster and stages. Not measured yet: what L2 can feed, and small ones for SMs."""

_STORE_BYTES_PER_US = 2e5
"""Rate at which one SM writes a tile's results from registers to shared memory."""

_TILE_US = 0.3
"""Time to start a tile that does not overlap other work."""


@frozen
class Sm90WgradDerived:
    """
    Numbers that follow from a legal sm_90a config.

    Attributes:
        math_warpgroups: Warpgroups that multiply; one more loads.
        m_blocks: 64-row blocks that each math warpgroup computes one after the other.
        threads: Threads of a CTA.
        load_registers: Registers of a thread of the loading warpgroup (setmaxnreg).
        math_registers: Registers of a thread of a math warpgroup (setmaxnreg).
        num_ab_stage: Operand stages in shared memory.
        box_n: Columns of one store box.
        num_boxes: Places for such boxes that each math warpgroup has; a divisor of those of its
            part of a tile, so that a box has the same place in every tile.
        smem_bytes: Shared memory of a CTA.
    """

    math_warpgroups: int
    m_blocks: int
    threads: int
    load_registers: int
    math_registers: int
    num_ab_stage: int
    box_n: int
    num_boxes: int
    smem_bytes: int


class GroupedGemmWgrad(WgradRules):
    """Rules of the `grouped_gemm_wgrad` kernels, their candidates and their cost model."""

    alignment = 16  # the TMA unit's grain
    arch = "sm_90a"
    entry = "sm90/grouped_gemm_wgrad.py.jinja"
    note = "the model was fitted to no measurement, and takes groups for equally large"
    row_edges: tuple[int, ...] = (16, 64, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192)
    sums = SumOrder(
        words="row by row of the group, in the tensor cores",
        free=wgrad_space.FREE,
    )
    space = WgradSpace(
        operands=(
            *((DType.BF16, DType.BF16), (DType.BF16, DType.F32)),
            *((DType.F16, DType.F16), (DType.F16, DType.F32), (DType.F16, DType.BF16)),
        ),
        tile_m=(64, 128, 256),
        tile_n=(64, 128, 192, 256),
        tile_k=TILE_K,
        cluster=((1, 1), (2, 1), (1, 2)),
    )

    def derive(self, config: GroupedGemmWgradConfig) -> Sm90WgradDerived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        wgrad_space.check_kind(config, self.space, "sm_90a")
        self._check_instruction(config)
        self._check_cluster(config)
        math_warpgroups = WARPGROUPS[config.tile.m]
        m_blocks = config.tile.m // (64 * math_warpgroups)
        box_n = ROW_BYTES * 8 // config.out_dtype.bits
        boxes = m_blocks * config.tile.n // box_n
        num_ab_stage, num_boxes, smem_bytes = self._memory(config, math_warpgroups, boxes)
        return Sm90WgradDerived(
            math_warpgroups=math_warpgroups,
            m_blocks=m_blocks,
            threads=128 * (math_warpgroups + 1),
            load_registers=REGISTERS[math_warpgroups].load,
            math_registers=REGISTERS[math_warpgroups].math,
            num_ab_stage=num_ab_stage,
            box_n=box_n,
            num_boxes=num_boxes,
            smem_bytes=smem_bytes,
        )

    def _check_instruction(self, config: GroupedGemmWgradConfig) -> None:
        tile = config.tile
        refuse_unless(
            tile.k == TILE_K,
            "E_TILE_K",
            f"tile_k={tile.k}: a stage has {TILE_K} rows, four WGMMAs deep",
        )
        refuse_unless(
            tile.m in self.space.tile_m,
            "E_WGMMA_M",
            f"tile_m={tile.m}: one WGMMA has 64 columns of dy, and one or two warpgroups take one "
            "or two each: 64, 128 or 256",
        )
        refuse_unless(
            tile.n in self.space.tile_n,
            "E_WGMMA_N",
            f"tile_n={tile.n}: the swizzle spans {_ATOM} columns of a, and a WGMMA takes up to "
            f"256: {', '.join(map(str, self.space.tile_n))}",
        )
        registers = tile.n // 2 * max(1, tile.m // 128)
        most = REGISTERS[WARPGROUPS[tile.m]].plain
        refuse_unless(
            registers <= most,
            "E_REGS",
            f"a {tile.m}x{tile.n} tile takes {registers} accumulator registers a thread; above "
            f"{most} they spill",
        )

    def _check_cluster(self, config: GroupedGemmWgradConfig) -> None:
        cluster = (config.cluster.m, config.cluster.n)
        refuse_unless(
            cluster in self.space.cluster,
            "E_CLUSTER",
            f"cluster {cluster[0]}x{cluster[1]}: two CTAs share a tile of one operand, and more do "
            "not all fit on the chip at once; allowed: 1x1, 2x1, 1x2",
        )

    def _memory(
        self, config: GroupedGemmWgradConfig, warpgroups: int, boxes: int
    ) -> tuple[int, int, int]:
        """
        Return the number of operand stages, the places of the store, and the bytes of shared
        memory.
        """
        tile = config.tile
        stage = (tile.m + tile.n) * tile.k * config.a_dtype.bits // 8 + _RING_SLOT_BYTES
        place = _BOX_BYTES * warpgroups
        fixed = min(_LEAST_BOXES, boxes) * place + _PLAN_BYTES
        most = (SMEM_BYTES - fixed) // stage
        stages = config.num_ab_stage or min(MAX_STAGES, most)
        minimum = 3 if tile.m * tile.n >= 128 * 192 else 4
        refuse_stages(stages, most, stage=stage, fixed=fixed, smem_bytes=SMEM_BYTES)
        refuse_unless(
            stages >= minimum,
            "E_STAGES",
            f"{stages} stages are too few to hide the loads of a {tile.m}x{tile.n} tile: at least "
            f"{minimum}",
        )
        room = (SMEM_BYTES - _PLAN_BYTES - stages * stage) // place
        places = max(n for n in range(1, boxes + 1) if boxes % n == 0 and n <= room)
        smem_bytes = places * place + stages * stage + _PLAN_BYTES
        return stages, places, -(-smem_bytes // _SWIZZLE_BYTES) * _SWIZZLE_BYTES

    def candidates(self, problem: GroupedGemmWgradProblem) -> tuple[GroupedGemmWgradConfig, ...]:
        """Return the candidate configs for `problem`; none if no kernel serves it."""
        listed = (
            GroupedGemmWgradConfig(
                layout=problem.layout,
                a_dtype=problem.a_dtype,
                out_dtype=problem.out_dtype,
                tile=Tile(m=rows, n=columns, k=TILE_K),
                cluster=cluster,
                num_ab_stage=stages,
            )
            for rows, columns, cluster, stages in _LISTED
        )
        return legal_of(listed, self)

    def predict(
        self,
        problem: GroupedGemmWgradProblem,
        config: GroupedGemmWgradConfig,
        device: Device,
        num_sms: int,
    ) -> Candidate:
        """
        Estimate the time of `config` for `problem` on `num_sms` SMs of `device`.

        The model has whole waves of tiles, each summing over the rows of a group.

        The time of a k-block is the longer of two, plus a small part of the other: its products at
        three quarters of the peak rate, and its loads at the rate of L2 for all SMs together, which
        are fewer if a cluster shares a tile. A tile ends with its store, of which a part does not
        overlap other work. The time of a call combines its waves and its DRAM traffic in the same
        way; most of the traffic is the gradient if groups are small.
        """
        fit = fit_of(device, problem.op)
        tile, cluster = config.tile, config.cluster
        width = tile.m * cluster.m, tile.n * cluster.n
        clusters = problem.groups * -(-problem.n // width[0]) * -(-problem.k // width[1])
        slots = max(1, num_sms // cluster.size)
        waves = -(-clusters // slots)
        k_blocks = -(-problem.rows_per_group // tile.k) if problem.m else 0
        bytes_of_row = (tile.m / cluster.n + tile.n / cluster.m) * problem.a_dtype.bits / 8
        fill_us = bytes_of_row * tile.k * num_sms / FILL_BYTES_PER_US
        flop_per_us = fit.flop_per_us / 2  # bf16 has half FP8's rate
        multiply_us = 2 * tile.m * tile.n * tile.k / flop_per_us
        out_bytes = tile.m * tile.n * problem.out_dtype.bits / 8
        k_block_us = _overlapped(fit.overlap, fill_us, multiply_us)
        tile_us = k_blocks * k_block_us + out_bytes / _STORE_BYTES_PER_US + _TILE_US
        stream_us = problem.traffic_bytes / fit.dram_bytes_per_us
        covered = clusters * width[0] * width[1]
        return Candidate(
            config=config,
            cost=fit.call_us + _overlapped(fit.overlap, waves * tile_us, stream_us),
            padding_ratio=covered / (problem.groups * problem.n * problem.k),
            waves=waves,
            traffic_bytes=problem.traffic_bytes,
            limiter="multiply" if waves * tile_us > stream_us else "stream",
        )

    def check_sizes(self, problem: GroupedGemmWgradProblem) -> None:
        """Raise a Refusal if rows of a tensor are not a multiple of the TMA unit's alignment."""
        multiple = self.alignment * 8 // problem.a_dtype.bits
        for name, size in (("N", problem.n), ("K", problem.k)):
            refuse_unless(
                size % multiple == 0,
                "E_SIZE",
                f"must have {name} a multiple of {multiple} on sm_90a, {self.alignment} bytes of "
                f"{problem.a_dtype} (got {size})",
            )
