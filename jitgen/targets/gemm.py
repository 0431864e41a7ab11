# SPDX-License-Identifier: Apache-2.0
"""
Common parts of targets for grouped GEMMs: rules of sizes and fields, the work of a problem on any
device, the list of all configs, and the search for a legal one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from typing import NamedTuple, Protocol

from jitgen.config import BLayout, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import (
    Cluster,
    Epilogue,
    GroupedGemmConfig,
    GroupedGemmProblem,
    Operands,
    Pipeline,
    Tile,
)
from jitgen.config.layouts import GROUP_ALIGNMENT
from jitgen.targets.base import BaseRules
from jitgen.targets.protocol import legal_of, refuse_unless


class Matrices(Protocol):
    """Sizes and types of a problem whose kernels multiply matrices."""

    @property
    def n(self) -> int:
        """Columns of the output."""
        ...

    @property
    def k(self) -> int:
        """Length of the sums."""
        ...

    @property
    def operands(self) -> Operands:
        """Types, scales and layout of b of every kernel for the problem."""
        ...


def check_vectors(problem: Matrices, arch: str, *, vector_bytes: int) -> None:
    """
    Require that rows of a, b and the output consist of whole vectors, the unit in which they are
    copied.

    Raises:
        Refusal: K or N is not a multiple of the vector size; the code is ``E_SIZE``.
    """
    types = problem.operands
    of_n = [types.out_dtype, *([types.b_dtype] if types.b_layout is BLayout.N_MAJOR else [])]
    for name, size, dtype in (
        ("K", problem.k, min(types.a_dtype, types.b_dtype, key=_bits)),
        ("N", problem.n, min(of_n, key=_bits)),
    ):
        multiple = vector_bytes * 8 // dtype.bits
        refuse_unless(
            size % multiple == 0,
            "E_SIZE",
            f"must have {name} a multiple of {multiple} on {arch}, {vector_bytes} bytes of {dtype} "
            f"(got {size})",
        )


def _bits(dtype: DType) -> int:
    return dtype.bits


def refuse_prepacked(
    config: GroupedGemmConfig,
    arch: str,
    unscaled: tuple[Operands, ...] = (),
    n_major: tuple[DType, ...] = (),
) -> None:
    """
    Refuse scales of a that differ from those of b (except an a without scales, for operands in
    `unscaled`), prepacked weights, and N contiguous in b (except for types in `n_major`).
    """
    types = config.operands
    refuse_unless(
        types.a_scale_granularity is None or types in unscaled,
        "E_SCALES",
        f"a_scale_granularity={types.a_scale_granularity} beside {types.scale_granularity} scales "
        f"of b has no {arch} kernel: leave it out, and a's are as b's",
    )
    if types.b_layout is BLayout.N_MAJOR:
        allowed = f" of {' and '.join(n_major)}" if n_major else ""
        refuse_unless(
            types.b_dtype in n_major and types.a_dtype is types.b_dtype,
            "E_B_LAYOUT",
            f"b_layout=nmajor has no {arch} kernel for {types.a_dtype} x {types.b_dtype}: its "
            f"matrix instructions read N contiguous{allowed or ' of no type'}; have K contiguous",
        )
        return
    refuse_unless(
        types.b_layout is BLayout.PLAIN,
        "E_B_LAYOUT",
        f"b_layout={types.b_layout} has no {arch} kernel: {types.b_dtype} weights are read as they "
        "are (plain)",
    )


def refuse_stages(stages: int, most: int, *, stage: int, fixed: int, smem_bytes: int) -> None:
    """
    Refuse more operand stages than shared memory holds.

    Args:
        stages: Number of operand stages.
        most: Largest number of stages for which there is memory.
        stage: Bytes of one stage.
        fixed: Bytes of everything else.
        smem_bytes: Bytes of shared memory of a CTA.
    """
    refuse_unless(
        stages <= most,
        "E_SMEM",
        f"{stages} stages of {stage} B and {fixed} B besides are {stages * stage + fixed} B "
        f"of shared memory; {smem_bytes} B hold {most}",
    )


def refuse_pairs(config: GroupedGemmConfig, arch: str) -> None:
    """Refuse pairs of CTAs on one tile, for kernels without instructions for pairs."""
    refuse_unless(
        not config.schedule.two_cta,
        "E_TWO_CTA",
        f"two_cta: {arch} has no matrix instruction of two CTAs, which sm_100a has",
    )


def refuse_selectors(config: GroupedGemmConfig, arch: str) -> None:
    """
    Refuse a choice of lanes with scales, for kernels whose instructions do not take scales from
    lanes.
    """
    refuse_unless(
        not config.schedule.safe_selectors,
        "E_SELECTORS",
        f"safe_selectors: instructions of {arch} take no scales from lanes, as those of sm_120a do",
    )


def refuse_early(config: GroupedGemmConfig, kernel: str) -> None:
    """
    Refuse `early_b` for kernels that cannot load weights before the previous kernel has ended.
    """
    refuse_unless(
        not config.schedule.early_b,
        "E_EARLY_B",
        f"early_b: {kernel} loads no weights before the kernel before it has ended; those of "
        "grouped_gemm on sm_90a do, with weights as they were quantised (plain)",
    )


def refuse_swap_tail(config: GroupedGemmConfig, kernel: str) -> None:
    """
    Refuse `swap_tail`, `extra_rows` and `one_group` for kernels that multiply all rows in the same
    way.
    """
    for name in ("swap_tail", "extra_rows", "one_group"):
        is_asked = getattr(config.schedule, name)
        refuse_unless(
            not is_asked,
            f"E_{name.upper()}",
            f"{name}: {kernel} multiplies all rows alike; those of grouped_gemm on sm_90a can swap "
            "operands for some rows, with weights as they were quantised (plain)",
        )


def refuse_scales(config: GroupedGemmConfig, space: Space, arch: str) -> None:
    """Refuse scales for which a target has no kernels, or which these operands cannot have."""
    types = config.operands
    allowed = ", ".join(space.scale_granularity)
    refuse_unless(
        types.scale_granularity in space.scale_granularity,
        "E_SCALES",
        f"{types.scale_granularity} scales have no {arch} kernel; allowed: {allowed}",
    )
    scaled = types.scale_granularity.operands
    refuse_unless(
        types.a_dtype in scaled and types.b_dtype in scaled,
        "E_SCALES",
        f"{types.scale_granularity} scales are for operands of {' or '.join(scaled)} (got "
        f"{types.a_dtype} x {types.b_dtype})",
    )


FREE = (
    *("layout", "operands", "epilogue", "tile", "cluster", "pipeline"),
    *("schedule.raster", "schedule.use_pdl", "schedule.stream_b"),
)
"""Fields of a config that do not change the order of sums on any target; see `SumOrder`."""

FREE_OF_FC2 = tuple(name for name in FREE if name not in {"layout", "epilogue"})
"""Fields of `FREE` that configs of `moe_fc2_dense` have."""

_SPREAD = tuple((2 * i + 9) / 16 for i in range(8))
"""Range of the rows of a group, relative to their mean: from one half to three halves."""

_BLOCKS = 16
"""
Number of contiguous groups that represent all groups: the same fraction of them has one block more.
"""


def sizes(problem: GroupedGemmProblem) -> tuple[float, ...]:
    """
    Return rows that a group may have, all equally likely.

    Routing is never even, so each of several ragged or masked groups has between half the mean and
    one and a half times the mean; a single group has all rows. Rows of a contiguous problem include
    padding: each group has whole blocks, some groups one block more than others; if there are fewer
    blocks than groups, some groups have no rows.
    """
    mean = problem.rows_per_group
    if problem.layout is Layout.CONTIGUOUS:
        blocks, part = divmod(problem.m / GROUP_ALIGNMENT / problem.groups, 1)
        more = max(round(part * _BLOCKS), 0 if blocks else 1)
        counts = (blocks,) * (_BLOCKS - more) + (blocks + 1,) * more
        return tuple(count * GROUP_ALIGNMENT for count in counts)
    if problem.groups == 1:
        return (float(mean),)
    width = 1 - 1 / problem.groups
    return tuple(mean * (1 + width * (part - 1)) for part in _SPREAD)


class Space(NamedTuple):
    """
    The values that a target accepts for each field; proposals are searched in this space.

    `operands` pairs the type of a and b with one of the output; `tile_k` has the depths of tiles
    for each type of a and b; `cluster` is (m, n). `mixed` has further pairs, of a's type and
    another one of b, with the output types of a; such a b lies at whole multiples of
    `mixed_alignment` bytes. `prepacked` has operands with prepacked weights, each listed as a
    whole, not combined from the other fields. `unscaled` has operands, each listed as a whole, too,
    whose a has no scales beside weights as they were quantised. `n_major` has types of a and b of
    which b may have N contiguous.
    """

    tile_m: tuple[int, ...]
    tile_n: tuple[int, ...]
    tile_k: Mapping[DType, tuple[int, ...]]
    cluster: tuple[tuple[int, int], ...]
    num_acc_stage: tuple[int, ...]
    split_k: tuple[int, ...]
    operands: tuple[tuple[DType, DType], ...]
    scale_granularity: tuple[ScaleGranularity, ...]
    two_cta: tuple[bool, ...] = (False,)
    mixed: tuple[tuple[DType, DType], ...] = ()
    mixed_alignment: int = 1
    prepacked: tuple[Operands, ...] = ()
    unscaled: tuple[Operands, ...] = ()
    n_major: tuple[DType, ...] = ()

    @property
    def of_a(self) -> tuple[DType, ...]:
        """Element types that a may have beside unprepacked weights."""
        return (*(a for a, _ in self.operands), *(types.a_dtype for types in self.unscaled))

    def of_b(self, of_a: DType) -> tuple[DType, ...]:
        """Element types that b may have beside an a of type `of_a`."""
        alike = [a for a, _ in self.operands if a is of_a]
        mixed = [b for a, b in self.mixed if a is of_a]
        return (*alike, *mixed, *(t.b_dtype for t in self.unscaled if t.a_dtype is of_a))

    def of_out(self, of_a: DType) -> tuple[DType, ...]:
        """Element types that the output may have beside an a of type `of_a`."""
        usual = [out for a, out in self.operands if a is of_a]
        return (*usual, *(t.out_dtype for t in self.unscaled if t.a_dtype is of_a))

    def is_unscaled(self, of_a: DType, of_b: DType) -> bool:
        """Return whether an a of type `of_a` has no scales although b has some."""
        return any((t.a_dtype, t.b_dtype) == (of_a, of_b) for t in self.unscaled)

    def has(self, types: Operands) -> bool:
        """Say whether there are kernels with these element types, with any scales."""
        is_pair = types.a_dtype == types.b_dtype or (types.a_dtype, types.b_dtype) in self.mixed
        return is_pair and (types.a_dtype, types.out_dtype) in self.operands


def every(space: Space) -> Iterator[GroupedGemmConfig]:
    """
    Yield the configs of `space` in every layout, with the default schedule except for split_k and
    two_cta.
    """
    for layout in Layout:
        yield from spanned(GroupedGemmConfig(layout=layout, tile=Tile(m=128, n=128, k=128)), space)


def spanned(config: GroupedGemmConfig, space: Space) -> Iterator[GroupedGemmConfig]:
    """Yield the configs of `space` with the layout, raster and hints of `config`."""
    for types in operands_of(space):
        yield from _of_types(config, types, space)


def operands_of(space: Space) -> Iterator[Operands]:
    """Yield every combination of types and scales that `space` has, legal or not."""
    yield from space.prepacked
    yield from space.unscaled
    for (a_dtype, out_dtype), scale in itertools.product(space.operands, space.scale_granularity):
        for b_dtype in (a_dtype, *(b for a, b in space.mixed if a is a_dtype)):
            types = Operands(
                a_dtype=a_dtype, b_dtype=b_dtype, out_dtype=out_dtype, scale_granularity=scale
            )
            yield types
            if b_dtype is a_dtype and a_dtype in space.n_major:
                yield replace(types, b_layout=BLayout.N_MAJOR)


def _of_types(
    config: GroupedGemmConfig, types: Operands, space: Space
) -> Iterator[GroupedGemmConfig]:
    sides = itertools.product(space.tile_m, space.tile_n, space.tile_k[types.a_dtype])
    schedules = itertools.product(space.split_k, space.two_cta)
    # Parts are checked when they are made: each of them once, for all that have it.
    for tile, cluster, pipeline, schedule in itertools.product(
        [Tile(m=m, n=n, k=k) for m, n, k in sides],
        [Cluster(m=m, n=n) for m, n in space.cluster],
        [Pipeline(num_acc_stage=stages) for stages in space.num_acc_stage],
        [replace(config.schedule, split_k=parts, two_cta=two) for parts, two in schedules],
    ):
        yield replace(
            config,
            operands=types,
            tile=tile,
            cluster=cluster,
            pipeline=pipeline,
            schedule=schedule,
        )


Menu = Callable[[Layout, Operands], tuple[GroupedGemmConfig, ...]]
"""The configs that a target lists for a layout and types, legal or not."""


def legal_for(
    problem: GroupedGemmProblem, menu: Menu, rules: GemmRules
) -> tuple[GroupedGemmConfig, ...]:
    """Return the legal configs of a menu, with the epilogue of `problem`."""
    return _legal_of_menu(menu, problem.layout, problem.operands, problem.bias, rules)


@lru_cache(maxsize=256)  # a plan asks for thousands of sizes, and sizes change nothing
def _legal_of_menu(
    menu: Menu, layout: Layout, operands: Operands, bias: bool, rules: GemmRules
) -> tuple[GroupedGemmConfig, ...]:
    epilogue = Epilogue(bias=bias)
    listed = (replace(config, epilogue=epilogue) for config in menu(layout, operands))
    return legal_of(listed, rules)


_TYPES = tuple(spec.name for spec in fields(Operands))


@lru_cache(maxsize=256)
def _legal(start: GroupedGemmConfig, rules: GemmRules) -> tuple[GroupedGemmConfig, ...]:
    """Return the legal configs that share layout, hints and types with `start`."""
    return legal_of(tuple(_of_types(start, start.operands, rules.space)), rules)


def nearest(config: GroupedGemmConfig, rules: GemmRules) -> GroupedGemmConfig | None:
    """
    Return the legal config that is nearest to `config`; None if no config is legal.

    Differences in types count most, then those in the bias, the accumulator stages, split K, pairs
    of CTAs, the cluster, and last the tile, whose distance is measured by the ratio of its sides:
    128 is as far from 64 as from 256.
    """

    def differing(types: Operands) -> int:
        return sum(getattr(types, name) != getattr(config.operands, name) for name in _TYPES)

    def distance(other: GroupedGemmConfig) -> tuple[float, ...]:
        def ratio(have: int, want: int) -> float:
            return max(have, want) / min(have, want)

        cluster = other.cluster != config.cluster
        stages = abs(other.pipeline.num_acc_stage - config.pipeline.num_acc_stage)
        split_k = ratio(other.schedule.split_k, config.schedule.split_k)
        tile = sum(
            ratio(getattr(other.tile, side), getattr(config.tile, side)) for side in ("m", "n", "k")
        )
        pair = other.schedule.two_cta != config.schedule.two_cta
        bias = other.epilogue != config.epilogue
        return bias, stages, split_k, pair, cluster, tile, -other.tile.m, -other.tile.n

    start = replace(
        config,
        tile=Tile(m=1, n=1, k=1),
        cluster=Cluster(),
        pipeline=Pipeline(),
    )
    epilogues = dict.fromkeys((config.epilogue, Epilogue()))
    in_order = sorted(operands_of(rules.space), key=differing)
    for _, equally_near in itertools.groupby(in_order, key=differing):
        legal = [
            each
            for types, epilogue in itertools.product(equally_near, epilogues)
            for each in _legal(replace(start, operands=types, epilogue=epilogue), rules)
        ]
        if legal:
            return min(legal, key=distance)
    return None


class GemmRules(BaseRules[GroupedGemmConfig, GroupedGemmProblem]):
    """
    Rules of grouped GEMMs whose configs are those of a space.

    Attributes:
        space: The space in which proposals are searched.
        menu: The configs that may be chosen, legal or not.
    """

    space: Space
    menu: Menu
    alignment = 16  # the TMA unit's grain

    def nearest(self, config: GroupedGemmConfig) -> GroupedGemmConfig | None:
        """Return the legal config nearest to a refused one; None if there is none."""
        return nearest(config, self)

    def configs(self) -> Iterator[GroupedGemmConfig]:
        """Yield every config of the target's space, legal or not."""
        yield from every(self.space)

    def candidates(self, problem: GroupedGemmProblem) -> tuple[GroupedGemmConfig, ...]:
        """Return the candidate configs for `problem`; none if no kernel serves it."""
        return legal_for(problem, self.menu, self)

    def check_sizes(self, problem: GroupedGemmProblem) -> None:
        """Raise a Refusal if rows of a tensor are not a multiple of the TMA unit's alignment."""
        check_vectors(problem, self.arch, vector_bytes=self.alignment)
