# SPDX-License-Identifier: Apache-2.0
"""
Rules of sm_90a for grouped GEMMs of one group of few rows, whose time is that of reading b.

Weights are M of the instructions, two blocks of K at a time. A CTA computes 32 columns over all of
K, so that nothing is exchanged, and two CTAs of an SM keep loads under way. Halves and doubles of
the 32 columns, one CTA for an SM with more stages, and prefetching b to L2 took longer on an H200:
see docs/hopper.md.
"""

from __future__ import annotations

from jitgen.config import DType, Layout, ScaleGranularity
from jitgen.config.config import SCALE_BLOCK
from jitgen.config.grouped_gemm import (
    GroupedGemmConfig,
    GroupedGemmProblem,
    Operands,
    Schedule,
    Tile,
)
from jitgen.support.frozen import frozen
from jitgen.targets.gemm import (
    GemmRules,
    Space,
    refuse_early,
    refuse_pairs,
    refuse_prepacked,
    refuse_selectors,
    refuse_stages,
)
from jitgen.targets.protocol import Candidate, Device, Template, refuse_unless
from jitgen.targets.sm_90a.devices import fit_of
from jitgen.templates import ROOT

TOKENS = 8
"""Rows of a that are multiplied at once: the fewest that a WGMMA has of its N."""

UNIT = 32
"""Columns of a CTA: half of the rows of a WGMMA, the other half of which are another block of K."""

DEPTH = 2 * SCALE_BLOCK
"""Values along K of a stage."""

CTAS_PER_SM = 2
"""CTAs that there is memory for, of one launch or of two."""

SMEM_BYTES = 233_472 // CTAS_PER_SM - 1_024
"""Shared memory that each of two CTAs can have of an SM's 228 KiB: 1 KiB of it is the driver's."""

MIN_STAGES = 4
"""With fewer stages, the latency of memory is not hidden."""

SCALE_CHUNK = 64
"""Stages whose factors are in shared memory at once: those of 16,384 values along K."""

_RING_SLOT_BYTES = 16
"""The full and the free barrier of a stage."""

MOST_N, MOST_K = 18_432, 7_168
"""
Columns, and values along K, for which the kernel was the fastest of all on an H200 (18,432 x 7,168:
35.1 us beside 36.3). With 18,432 values along K it took 4 % longer than a tile of 64x64.
"""

CALL_US, WAVE_US = 2.4, 1.3
"""
Time of a call besides reading, and of each wave of CTAs after the first one until its first bytes
have come. The former, `STREAM` and `CTAS_AT_RATE` are fitted to calls of 8 rows on an H200: 9.6 and
5.9 us for 29.4 and 14.7 MB, 6.7 and 7.1 us for K of 7,168 in 8 and 66 CTAs. The latter is the time
from the start of a CTA to its first bytes in the same run.
"""

STREAM = 0.92
"""Rate of reading as a part of `Fit.dram_bytes_per_us`."""

CTAS_AT_RATE = 80
"""CTAs that read at that rate together; each of fewer reads no faster than one of so many."""


@frozen
class OneGroupDerived:
    """
    Numbers that follow from a legal config.

    Attributes:
        threads: Threads of a CTA: four warps that multiply, one that loads.
        num_ab_stage: Operand stages in shared memory.
        smem_bytes: Shared memory of a CTA.
        ctas_per_sm: CTAs that fit on an SM.
        scale_chunk: Stages whose factors are in shared memory at once.
    """

    threads: int
    num_ab_stage: int
    smem_bytes: int
    ctas_per_sm: int
    scale_chunk: int


class OneGroupGemm(GemmRules):
    """Rules of grouped GEMMs of one group of few rows: their one candidate and its cost."""

    arch = "sm_90a"
    space = Space(
        tile_m=(TOKENS,),
        tile_n=(UNIT,),
        tile_k={DType.E4M3: (DEPTH,)},
        cluster=((1, 1),),
        num_acc_stage=(1,),
        split_k=(1,),
        operands=tuple((DType.E4M3, out) for out in (DType.BF16, DType.F16, DType.F32)),
        scale_granularity=(ScaleGranularity.BLOCK128,),
    )

    def derive(self, config: GroupedGemmConfig) -> OneGroupDerived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        refuse_prepacked(config, "sm_90a")
        refuse_selectors(config, "sm_90a")
        refuse_pairs(config, "sm_90a")
        refuse_early(config, "a kernel for one group")
        self._check(config)
        tile, types = config.tile, config.operands
        stage = (tile.m + tile.n) * tile.k * types.a_dtype.bits // 8 + _RING_SLOT_BYTES
        sums = tile.m * tile.n * (tile.k // SCALE_BLOCK) * 4
        fixed = sums + tile.m * (tile.k // SCALE_BLOCK) * SCALE_CHUNK * 4
        most = (SMEM_BYTES - fixed) // stage
        stages = config.pipeline.num_ab_stage or most
        refuse_stages(stages, most, stage=stage, fixed=fixed, smem_bytes=SMEM_BYTES)
        refuse_unless(
            stages >= MIN_STAGES,
            "E_STAGES",
            f"{stages} stages are too few to hide the latency of memory: at least {MIN_STAGES}",
        )
        return OneGroupDerived(
            threads=128 + 32,
            num_ab_stage=stages,
            smem_bytes=fixed + stages * stage,
            ctas_per_sm=CTAS_PER_SM,
            scale_chunk=SCALE_CHUNK,
        )

    def _check(self, config: GroupedGemmConfig) -> None:
        """Require the one form of these kernels."""
        tile, types, schedule = config.tile, config.operands, config.schedule
        cluster, stages = config.cluster, config.pipeline.num_acc_stage
        _require(
            self.space.has(types) and types.scale_granularity is ScaleGranularity.BLOCK128,
            f"with {types.text}: it is for e4m3 operands with block128 scales; the output is bf16, "
            "f16 or f32",
        )
        _require(
            config.layout is Layout.RAGGED,
            f"with the {config.layout} layout: one group needs no other than ragged rows",
        )
        _require(
            (tile.m, tile.n, tile.k) == (TOKENS, UNIT, DEPTH),
            f"with a {tile.m}x{tile.n}x{tile.k} tile: two blocks of K of {UNIT} columns are M of "
            f"the instructions, {TOKENS} rows are N; allowed: {TOKENS}x{UNIT}x{DEPTH}",
        )
        _require(
            cluster.size == 1 and schedule.split_k == 1 and stages == 1,
            f"with cluster {cluster.m}x{cluster.n}, split_k {schedule.split_k} and num_acc_stage "
            f"{stages}: a CTA takes its columns alone, over all of K; it needs 1x1, 1 and 1",
        )
        _require(
            schedule.raster == Schedule().raster
            and not (schedule.swap_tail or schedule.extra_rows),
            "with raster, swap_tail or extra_rows: a CTA takes all rows of its columns, and always "
            "swaps operands; leave them out",
        )
        _require(
            not config.epilogue.bias,
            "with a bias: no kernel adds one to the sums of a single group; it needs no bias",
        )

    @staticmethod
    def menu(layout: Layout, operands: Operands) -> tuple[GroupedGemmConfig, ...]:
        """Return the config that may be chosen, legal or not."""
        return (
            GroupedGemmConfig(
                layout=layout,
                operands=operands,
                tile=Tile(m=TOKENS, n=UNIT, k=DEPTH),
                schedule=Schedule(stream_b=True, one_group=True),
            ),
        )

    def candidates(self, problem: GroupedGemmProblem) -> tuple[GroupedGemmConfig, ...]:
        """Return the candidate for `problem`; none unless it has one group and few rows."""
        is_few = problem.groups == 1 and problem.m <= TOKENS
        is_best = problem.n <= MOST_N and problem.k <= MOST_K
        if not (is_few and is_best) or problem.k % SCALE_BLOCK:
            return ()
        return super().candidates(problem)

    def predict(
        self, problem: GroupedGemmProblem, config: GroupedGemmConfig, device: Device, num_sms: int
    ) -> Candidate:
        """Estimate the time of `config` for `problem` on `num_sms` SMs of `device`."""
        ctas, slots = -(-problem.n // UNIT), CTAS_PER_SM * num_sms
        rounds, waves = max(1, -(-problem.m // TOKENS)), -(-ctas // slots)
        rate = fit_of(device).dram_bytes_per_us * STREAM * num_sms / device.num_sms
        crossing = max(problem.traffic_bytes, problem.traffic_bytes * CTAS_AT_RATE / ctas)
        return Candidate(
            config=config,
            cost=CALL_US + (waves - 1) * WAVE_US + rounds * crossing / rate,
            padding_ratio=rounds * TOKENS * ctas * UNIT / (max(1, problem.m) * problem.n),
            waves=rounds * waves,
            traffic_bytes=problem.traffic_bytes,
            limiter="stream",
        )

    def templates(self) -> tuple[Template, ...]:
        """Return the template of its kernels."""
        return (Template(root=ROOT, entry="sm90/one_group_gemm.py.jinja", takes=_has_one_group),)


def _require(is_met: bool, text: str) -> None:
    refuse_unless(is_met, "E_ONE_GROUP", f"one_group {text}")


def _has_one_group(config: GroupedGemmConfig) -> bool:
    return config.schedule.one_group
