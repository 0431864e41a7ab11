# SPDX-License-Identifier: Apache-2.0
"""
Problems that test a kernel: large enough to wrap around every pipeline, with every kind of edge.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Self

from jitgen.config import Arch, BLayout, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem, Operands
from jitgen.config.operation import Excuse
from jitgen.config.prepacked import K_MULTIPLE, PrepackedFormat
from jitgen.errors import ConfigError
from jitgen.formats import find_format
from jitgen.formats.atoms import ROWS as ROWS_OF_ATOM
from jitgen.ops.edges import each_once
from jitgen.ops.grouped_gemm.samples import Solved, random_call
from jitgen.ops.sizes import GROUPS, ROWS, AnySizes, Number, unequal_rows
from jitgen.support.frozen import frozen
from jitgen.targets.legality import require, rules

_NUM_CLUSTERS = 2
_UNROLLED = 8
"""Blocks of K that kernels do in one pass of their loop."""

VECTOR_BITS = 128
"""Rows of operands and results are a multiple of this."""

PREPACKED_N = 8
"""Rows of prepacked weights are a multiple of this."""

UNPACKED_K = 128
"""Rows of values that the TMA unit unpacks to bytes are a multiple of this."""

M_BLOCK_ROWS = 64
"""Rows that a warpgroup multiplies at once."""

_SCALE_COLUMNS = 128
"""Columns of b that share a scale, where scales are those of blocks."""

_ENTRIES = 512
"""Entries of a kernel's table of tiles, at most."""

WARP = 32
"""Lanes of a warp that read groups together."""


@frozen
class Sizes(AnySizes):
    """
    The sizes of a call.

    Attributes:
        rows: Rows of each group.
        n: Columns of the output.
        k: Length of the sums.
    """

    numbers = (GROUPS, ROWS, Number("N", "N"), Number("K", "K"))
    words = "rows {rows}, N {n}, K {k}"

    rows: tuple[int, ...]
    n: int
    k: int
    num_sms: int

    @classmethod
    def of(cls, config: GroupedGemmConfig, arch: Arch) -> tuple[Self, ...]:
        """
        Return the sizes that test `config`, which together execute all of a kernel.

        The first is wide. Two clusters share a dozen tiles; each has more k-blocks than the
        pipeline of operands has stages and than the loop over K unrolls. There are more groups than
        lanes: empty ones, tiny ones, groups of one row less than a tile and, as the last one, one
        row more. N and K have tails of 16 bytes. If the kernel multiplies tiles with few rows in
        another way, one group has half the rows of a tile, and of a tall one another has one more.

        The second is deep: few tiles, in which each part of K has more k-blocks than the kernel
        loads scales for at once. The number of k-blocks is not a multiple of that number or of the
        stages. The last part of the tile's rows has no rows of the group.

        If the last rows of a group are multiplied with swapped operands, a third has groups with
        every number of such rows, in steps of eight, in several warpgroups, and with the smallest
        number that is too large for this; and where tiles may have extra rows, groups with few of
        them, with all, and with one more.

        Kernels that split K get a flat one: K is less than a k-block, so that parts of K are empty.
        Kernels that load weights early get a small one: one tile for two CTAs, and fewer k-blocks
        than the pipeline of operands has stages.

        If scales lie in atoms, which are larger than small tiles, a tall one has a group with rows
        beyond its first atom and another group after it, and a broad one has columns beyond the
        first atom.

        Kernels for one group have problems of their own: see `_of_one_group`.
        """
        if config.schedule.one_group:
            return cls._of_one_group(config, arch)
        tile, cluster, types = config.tile, config.cluster, config.operands
        split_k = config.schedule.split_k
        derived = require(config, arch).derived
        stages = getattr(derived, "num_ab_stage", 1)
        height = tile.m * cluster.m
        tail, vector = _steps(config, arch)
        sms = _NUM_CLUSTERS * cluster.size * split_k
        # samples put a row of padding ahead of the last contiguous one
        half_m = tile.m // 2 - (config.layout is Layout.CONTIGUOUS)
        half = [half_m] if getattr(derived, "narrowest", 0) else []
        if getattr(derived, "is_tall", False):
            half.append(half_m + 1)
        wide = cls(
            rows=(3, 0, height - 1, *[0] * WARP, *half, height + 1),
            n=tile.n * cluster.n + tail,
            k=(stages + 1) * tile.k + vector,
            num_sms=sms,
        )
        part = getattr(derived, "part_m", 0)
        is_alone = cluster.m == 1 or config.schedule.two_cta  # with its rows
        chunk = getattr(derived, "scale_chunk", 0)
        # sums in registers begin with a block; prepacked weights may take two at a time
        peeled = int(types.a_dtype is not DType.E4M3 and not types.b_layout.is_prepacked)
        blocks = max(chunk, _UNROLLED) + _UNROLLED - 1 + peeled
        deep = cls(
            rows=(tile.m - (part if part and is_alone else 1), 2, *half, 0),
            n=tile.n,
            k=(blocks * split_k - 1) * tile.k + vector,
            num_sms=cluster.size * split_k,
        )
        more: list[Self] = []
        if tail_m := getattr(derived, "tail_m", 0):
            tails = [row + M_BLOCK_ROWS * (i % 2) for i, row in enumerate(range(3, tail_m, 7))]
            rows = (*tails, 0, tile.m + tail_m + 1, tile.m - M_BLOCK_ROWS + tail_m)
            if extra_m := getattr(derived, "extra_m", 0):
                rows += (tile.m + 3, tile.m + extra_m + 1, 2 * tile.m + extra_m)
            odd = (stages + 1) // 2 * 2  # k-blocks ahead of the last one; loops do two in a pass
            more.append(replace(wide, rows=rows, k=odd * tile.k + vector))
        if config.schedule.early_b:
            more.append(cls(rows=(3, 0), n=tile.n, k=tile.k + vector, num_sms=2))
        elif split_k > 1:
            more.append(replace(deep, n=2 * tile.n, k=_shortest(types, vector)))
        if not types.b_layout.is_prepacked and find_format(types.scale_granularity).has_atoms:
            of_a = types.a_scale_granularity is not ScaleGranularity.NONE
            if of_a and height < ROWS_OF_ATOM:
                more.append(cls(rows=(ROWS_OF_ATOM + 3, 3), n=tile.n, k=tile.k, num_sms=sms))
            if wide.n <= ROWS_OF_ATOM:
                more.append(cls(rows=(3,), n=ROWS_OF_ATOM + tail, k=tile.k, num_sms=sms))
        return wide, deep, *more

    @classmethod
    def _of_one_group(cls, config: GroupedGemmConfig, arch: Arch) -> tuple[Self, ...]:
        """
        Return the sizes that test a kernel for one group.

        The first is wide: several CTAs, whose columns have two scales, and an odd number of blocks
        of K in more stages than the pipeline has. The second is tall: rows are multiplied in three
        rounds, the last of which has few. The third is deep, with more blocks than there are
        factors at once, and nearly as many after them, in two rounds. The last one has no rows.
        """
        tile, numbers = config.tile, require(config, arch).numbers
        tail, _ = _steps(config, arch)
        stages, chunk = numbers["num_ab_stage"], numbers["scale_chunk"]
        of = partial(cls, num_sms=_NUM_CLUSTERS)
        return (
            of(rows=(3,), n=_SCALE_COLUMNS + tail, k=stages * tile.k + _SCALE_COLUMNS),
            of(rows=(2 * tile.m + 1,), n=tile.n + tail, k=(stages - 3) * tile.k),
            of(rows=(tile.m + 1,), n=tile.n, k=(2 * chunk - 1) * tile.k + _SCALE_COLUMNS),
            of(rows=(0,), n=tail, k=_SCALE_COLUMNS),
        )

    @classmethod
    def edges(cls, config: GroupedGemmConfig, arch: Arch) -> tuple[Self, ...]:
        """
        Return a few sizes: rows of groups around those of a tile; columns around those of a tile
        and of a scale; k-blocks around the stages of the pipeline of operands, and exactly as many
        as the kernel loads scales for at once. Groups with rows are before, between and after empty
        ones, and alone. There are as many groups as a warp has lanes, and more, and more than a
        table of tiles has entries: these with few columns, because drawing weights takes long, and
        with rows in few groups, because each takes a tile. One problem has more tiles along M than
        the raster places one after another on the same tile of b. Kernels for one group have one,
        with rows around those that are multiplied at once.
        """
        if config.schedule.one_group:
            return cls._edges_of_one_group(config, arch)
        tile, cluster, split_k = config.tile, config.cluster, config.schedule.split_k
        derived = require(config, arch).derived
        stages = getattr(derived, "num_ab_stage", 1) * split_k
        chunk = getattr(derived, "scale_chunk", 0) * split_k
        tail, vector = _steps(config, arch)
        short = _shortest(config.operands, vector)
        height, width = tile.m * cluster.m, tile.n * cluster.n
        narrow = [each for each in (width - tail, width // 2 + tail) if each > 0]
        blocks = sorted({1, 2, stages - 1, stages, stages + 1, chunk} - {0})
        broad = max(_SCALE_COLUMNS, 2 * width) + tail
        others = [(height, height), (1,), (0, 2), (1, 0), (0,)]
        few = each_once(
            [(height,), (height - 1, 1), (0, height + 1, 0), *others],
            list(dict.fromkeys([tail, broad, width, width + tail, *narrow])),
            [short, *(count * tile.k for count in blocks)],
        )
        many = [
            ((*[0] * (WARP - 1), 1), tail, short),
            ((1, *[0] * (WARP - 2), 1), tail, short),
            ((1,) * (WARP + 1), tail, tile.k),
            (((config.schedule.raster + 1) * height - 1, 1), width + tail, short),
        ]
        if config.layout is not Layout.CONTIGUOUS:  # an entry is two groups then
            spread = (height + 1, 1, 0, 1, *[0] * (_ENTRIES - 5), 2, 1)
            many.append((spread, tail, short))
        sms = _NUM_CLUSTERS * cluster.size * split_k
        return tuple(cls(rows=rows, n=n, k=k, num_sms=sms) for rows, n, k in (*few, *many))

    @classmethod
    def _edges_of_one_group(cls, config: GroupedGemmConfig, arch: Arch) -> tuple[Self, ...]:
        tile, numbers = config.tile, require(config, arch).numbers
        tail, _ = _steps(config, arch)
        stages, chunk = numbers["num_ab_stage"], numbers["scale_chunk"]
        blocks = (1, 2, 3, 2 * stages - 1, 2 * stages, 2 * stages + 2, 2 * chunk)
        columns = (tail, tile.n - tail, tile.n, tile.n + tail, _SCALE_COLUMNS + tail)
        rows = [(each,) for each in (1, tile.m - 1, tile.m, tile.m + 1, 2 * tile.m, 0)]
        few = each_once(rows, list(columns), [count * _SCALE_COLUMNS for count in blocks])
        return tuple(cls(rows=rows, n=n, k=k, num_sms=_NUM_CLUSTERS) for rows, n, k in few)

    @classmethod
    def of_numbers(cls, config: GroupedGemmConfig, *numbers: int) -> Self:
        groups, m, n, k = numbers
        if needed := config.unfit(groups, k):
            raise ConfigError(f"problem for a kernel of one group must have {needed}")
        if k < (least := _shortest(config.operands, 0)):
            raise ConfigError(
                f"problem with K {k}: {least} values of prepacked weights share a scale; "
                f"K must be at least {least}"
            )
        num_sms = _NUM_CLUSTERS * config.cluster.size * config.schedule.split_k
        return cls(rows=unequal_rows(m, groups), n=n, k=k, num_sms=num_sms)


def _steps(config: GroupedGemmConfig, arch: Arch) -> tuple[int, int]:
    """Return the numbers of which N and K must be multiples."""
    types = config.operands
    vector = VECTOR_BITS // min(types.a_dtype.bits, types.b_dtype.bits)
    space = getattr(rules(arch, config.op), "space", None)
    if types.a_dtype is not types.b_dtype and getattr(space, "mixed_alignment", 1) > 1:
        vector = UNPACKED_K
    if types.b_layout.is_prepacked:
        return PREPACKED_N, max(vector, K_MULTIPLE)
    across = types.b_dtype.bits if types.b_layout is BLayout.N_MAJOR else VECTOR_BITS
    return VECTOR_BITS // min(types.out_dtype.bits, across), vector


def _shortest(types: Operands, vector: int) -> int:
    """
    Return the shortest K: at least `vector`. If weights are prepacked, it is also at least the
    number of values that share a scale: for a shorter K, one scale a row does not tell this number.
    """
    form = PrepackedFormat.of(types.b_dtype, types.scale_granularity)
    return max(vector, form.facts.values if form and types.b_layout.is_prepacked else 0)


def unreachable(config: GroupedGemmConfig) -> tuple[Excuse, ...]:
    """Return the branches of kernels of `config` that no problem reaches."""
    # The other CTA of a cluster may have no rows; a tile beyond N counts as one without rows.
    others = config.cluster.m if config.layout is Layout.CONTIGUOUS else config.cluster.size
    if config.tile.m != M_BLOCK_ROWS or others > 1:
        return ()
    reason = "a tile of 64 rows is one warpgroup's, and never without rows"
    return (Excuse("m_blocks == 0", reason, function="skip_blocks"),)


def tile(config: GroupedGemmConfig) -> tuple[int, int]:
    """Return the rows and columns of the result that one CTA computes."""
    return config.tile.m, config.tile.n


def make(
    config: GroupedGemmConfig, sizes: Sizes, *, is_exact: bool, seed: int = 0, device: str = "cpu"
) -> Solved:
    """
    Return a call of `config` with `sizes`, the same for the same `seed` on the same `device`. Every
    layout gets rows of no group, and weights and scales of groups without rows are NaN. The scales
    of random numbers differ widely, except with the first seed.
    """
    types = config.operands
    problem = GroupedGemmProblem(
        layout=config.layout,
        groups=len(sizes.rows),
        m=sum(sizes.rows),
        n=sizes.n,
        k=sizes.k,
        a_dtype=types.a_dtype,
        b_dtype=types.b_dtype,
        out_dtype=types.out_dtype,
        scale_granularity=types.scale_granularity,
        a_scale_granularity=types.a_scale_granularity,
        b_layout=types.b_layout,
        bias=config.epilogue.bias,
    )
    call = random_call(
        problem,
        sizes.rows,
        is_exact=is_exact,
        is_extreme=seed > 0,
        has_spare=True,
        has_end=seed % 2 == 0,
        spoils_idle=True,
        device=device,
        seed=seed,
    )
    return Solved.of(call, is_exact=is_exact)
