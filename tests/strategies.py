# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for configs, and the broad sweep that several tests walk over."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

from hypothesis import strategies as st

from jitgen.config import Arch, BLayout, Config, DType, Layout, ScaleGranularity
from jitgen.config.activation_backward import ActivationBackwardConfig
from jitgen.config.activation_backward import Tiling as BackwardTiling
from jitgen.config.activation_quantize import ActivationQuantizeConfig
from jitgen.config.activation_quantize import Tiling as ActivationTiling
from jitgen.config.add_lora import AddLoraConfig
from jitgen.config.combine import CombineConfig
from jitgen.config.config import SCALES
from jitgen.config.grouped_gemm import (
    MAX_RASTER,
    Cluster,
    Epilogue,
    GroupedGemmConfig,
    Operands,
    Pipeline,
    Schedule,
    Tile,
)
from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig
from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig
from jitgen.config.permute_quantize import PermuteQuantizeConfig, Walk
from jitgen.config.permute_quantize import Tiling as PermuteTiling
from jitgen.config.quantize import QuantizeConfig
from jitgen.config.route import RouteConfig
from jitgen.config.unpack_weights import UnpackWeightsConfig
from jitgen.targets import activation_quantize_space, activation_space, gemm, permute_space
from jitgen.targets.base import kinds_of
from jitgen.targets.gemm import spanned
from jitgen.targets.legality import check, rules, target
from tests.candidates import every_candidate

TYPES = [dtype for dtype in DType if dtype is not DType.E4M3X2]
"""Types that b and the output can have."""

positive = st.integers(min_value=1, max_value=4096)

configs = st.builds(
    GroupedGemmConfig,
    layout=st.sampled_from(Layout),
    operands=st.builds(
        Operands,
        a_dtype=st.sampled_from(DType),
        b_dtype=st.sampled_from(TYPES),
        out_dtype=st.sampled_from(TYPES),
        scale_granularity=st.sampled_from(SCALES),
        a_scale_granularity=st.one_of(st.none(), st.sampled_from(ScaleGranularity)),
        b_layout=st.sampled_from(BLayout),
    ),
    tile=st.builds(Tile, m=positive, n=positive, k=positive),
    cluster=st.builds(Cluster, m=positive, n=positive),
    pipeline=st.builds(
        Pipeline, num_acc_stage=positive, num_ab_stage=st.one_of(st.none(), positive)
    ),
    schedule=st.builds(
        Schedule,
        raster=st.integers(min_value=1, max_value=MAX_RASTER),
        use_pdl=st.booleans(),
        stream_b=st.booleans(),
        split_k=st.one_of(st.integers(min_value=1, max_value=4), positive),
        two_cta=st.booleans(),
    ),
    epilogue=st.builds(Epilogue, bias=st.booleans()),
)


@cache
def legal_sweep(arch: Arch) -> tuple[GroupedGemmConfig, ...]:
    """
    Return every legal config of a broad sweep over a target's space, which takes seconds once.

    On a GPU, other stages or another schedule than the default are tried with one pair of types,
    and of many heights of a tile with some: nothing that they change depends on those.
    """
    return tuple(_legal_sweep(arch))


def unscaled_sweep(arch: Arch) -> list[GroupedGemmConfig]:
    """Return those of `legal_sweep` whose a has no scales beside weights as they were quantised."""
    space = getattr(rules(arch, "grouped_gemm"), "space", None)
    unscaled = getattr(space, "unscaled", ())
    return [config for config in legal_sweep(arch) if config.operands in unscaled]


def _legal_sweep(arch: Arch) -> Iterator[GroupedGemmConfig]:
    asked = rules(arch, "grouped_gemm")
    space = getattr(asked, "spaces", (asked.space,))[0]
    variants: list[tuple[Schedule, int | None]] = [(Schedule(), None)]
    if arch.is_gpu:
        schedules = (
            *(Schedule(), Schedule(raster=1, stream_b=True), Schedule(use_pdl=False)),
            *(Schedule(split_k=split_k) for split_k in space.split_k if split_k > 1),
        )
        variants = [(schedule, None) for schedule in schedules]
        variants += [(Schedule(), stages) for stages in (3, 4, 6)]
    for layout, (schedule, stages) in itertools.product(Layout, variants):
        start = GroupedGemmConfig(layout=layout, tile=Tile(m=1, n=1, k=1), schedule=schedule)
        is_default = (schedule, stages) == variants[0]
        heights = space.tile_m[:: max(1, len(space.tile_m) // 4)]
        few = space._replace(operands=space.operands[:1], tile_m=heights)
        few = few._replace(split_k=(schedule.split_k,))
        for config in spanned(start, space._replace(split_k=(1,)) if is_default else few):
            varied = config
            if stages is not None:
                varied = replace(config, pipeline=replace(config.pipeline, num_ab_stage=stages))
            if check(varied, arch):
                yield varied


@cache
def prepacked_sweep(arch: Arch) -> tuple[GroupedGemmConfig, ...]:
    """Return every legal config with prepacked weights, every second with a bias, if any."""
    spaces = getattr(rules(arch, "grouped_gemm"), "spaces", ())
    every = (config for space in spaces if space.prepacked for config in gemm.every(space))
    biased = (
        replace(config, epilogue=Epilogue(bias=number % 2 == 1))
        for number, config in enumerate(every)
    )
    return tuple(config for config in biased if check(config, arch))


_ACTIVATION_TILINGS = (
    ActivationTiling(),
    ActivationTiling(rows=2, threads=256, ctas_per_sm=3, use_pdl=True),
    ActivationTiling(rows=1, threads=64, ctas_per_sm=4, held=2),
    ActivationTiling(rows=2, ctas_per_sm=4, loads_ahead=True, is_persistent=False),
)


def activation_quantize_sweep(arch: Arch) -> Iterator[ActivationQuantizeConfig]:
    """Yield legal configs of `activation_quantize`: all words, with a few tilings of each kind."""
    for kind, tiling in itertools.product(
        kinds_of(activation_quantize_space.USUAL), _ACTIVATION_TILINGS
    ):
        config = replace(kind, tiling=tiling)
        if check(config, arch):
            yield config


_BACKWARD_TILINGS = (
    BackwardTiling(),
    BackwardTiling(rows=1, threads=64, ctas_per_sm=8, is_persistent=False),
    BackwardTiling(ctas_per_sm=3),
)


def backward_sweep(arch: Arch) -> Iterator[ActivationBackwardConfig]:
    """Yield legal configs of `activation_backward`: all words, with a few tilings of each kind."""
    if "activation_backward" not in target(arch).operations:
        return
    for kind, tiling in itertools.product(kinds_of(activation_space.USUAL), _BACKWARD_TILINGS):
        config = replace(kind, tiling=tiling)
        if check(config, arch):
            yield config


def fc2_sweep(arch: Arch) -> Iterator[MoEFc2DenseConfig]:
    """Yield legal configs of `moe_fc2_dense`: a sample of every size, and other schedules."""
    if "moe_fc2_dense" not in target(arch).operations:
        return
    every = [config for config in rules(arch, "moe_fc2_dense").configs() if check(config, arch)]
    some = every[:: max(1, len(every) // 40)]
    yield from some
    for schedule in (Schedule(raster=1, stream_b=True), Schedule(use_pdl=False)):
        for config in some[::10] if arch.is_gpu else ():
            yield replace(config, schedule=replace(schedule, split_k=config.schedule.split_k))


def wgrad_sweep(arch: Arch) -> Iterator[GroupedGemmWgradConfig]:
    """Yield legal configs of `grouped_gemm_wgrad`: every size, and other stages and orders."""
    if "grouped_gemm_wgrad" not in target(arch).operations:
        return
    op = "grouped_gemm_wgrad"
    every = [config for config in rules(arch, op).configs() if check(config, arch)]
    yield from every
    for config in every[::10] if arch.is_gpu else ():
        other = replace(config, num_ab_stage=4, raster=1, use_pdl=False)
        if check(other, arch):
            yield other


def quantize_sweep(arch: Arch) -> Iterator[QuantizeConfig]:
    """Yield legal configs of `quantize`: all words, with a few tilings of each kind."""
    if "quantize" not in target(arch).operations:
        return
    for config in itertools.islice(rules(arch, "quantize").configs(), 0, None, 53):
        if check(config, arch):
            yield config
            once = replace(config.tiling, is_persistent=False, use_pdl=True)
            yield replace(config, tiling=once)


def route_sweep(arch: Arch) -> Iterator[RouteConfig]:
    """Yield legal configs of `route`: all words, with one size and the next in turn."""
    if "route" not in target(arch).operations:
        return
    legal = (config for config in rules(arch, "route").configs() if check(config, arch))
    for number, config in enumerate(itertools.islice(legal, 0, None, 29 if arch.is_gpu else 1)):
        yield config
        if arch.is_gpu and number % 2:
            yield replace(config, tiling=replace(config.tiling, use_pdl=True))


_PERMUTE_TILINGS = (
    PermuteTiling(),
    PermuteTiling(rows=2, ctas_per_sm=4, vector=16, is_persistent=True, use_pdl=False),
    PermuteTiling(threads=64, ctas_per_sm=8, held=2, is_eager=True),
    PermuteTiling(threads=64, ctas_per_sm=8, is_eager=True),
    PermuteTiling(threads=64, ctas_per_sm=8, is_relayed=True),
)


def permute_sweep(arch: Arch) -> Iterator[PermuteQuantizeConfig]:
    """Yield legal configs of `permute_quantize`: all words, with a few tilings of each kind."""
    for kind, tiling in itertools.product(kinds_of(permute_space.USUAL), _PERMUTE_TILINGS):
        vector = 16 if kind.walk is Walk.COPY and arch.is_gpu else tiling.vector
        config = replace(kind, tiling=replace(tiling, vector=vector))
        if check(config, arch):
            yield config


def combine_sweep(arch: Arch) -> Iterator[CombineConfig]:
    """Yield legal configs of `combine`, on a GPU a thin sample of tilings among them."""
    step = 17 if arch.is_gpu else 1
    for config in itertools.islice(rules(arch, "combine").configs(), 0, None, step):
        if check(config, arch):
            yield config


def lora_sweep(arch: Arch) -> Iterator[AddLoraConfig]:
    """Yield legal configs of `add_lora`: of every third one also that which starts late."""
    if "add_lora" not in target(arch).operations:
        return
    legal = (config for config in rules(arch, "add_lora").configs() if check(config, arch))
    for number, config in enumerate(legal):
        yield config
        if arch.is_gpu and number % 3 == 0:
            yield replace(config, tiling=replace(config.tiling, use_pdl=False))


def thin_sweep(op: str) -> Callable[[Arch], Iterator[Config]]:
    """Return what yields legal configs of an operation, a thin sample on a GPU."""

    def legal(arch: Arch) -> Iterator[Config]:
        if op not in target(arch).operations:
            return
        step = 7 if arch.is_gpu else 1
        for config in itertools.islice(rules(arch, op).configs(), 0, None, step):
            if check(config, arch):
                yield config

    return legal


def unpack_sweep(arch: Arch) -> Iterator[UnpackWeightsConfig]:
    """Yield legal configs of `unpack_weights`: all words, with a few tilings of each layout."""
    if "unpack_weights" not in target(arch).operations:
        return
    for config in itertools.islice(rules(arch, "unpack_weights").configs(), 0, None, 11):
        if check(config, arch):
            yield config
            yield replace(config, tiling=replace(config.tiling, use_pdl=True))


def candidates_sweep(arch: Arch) -> Iterator[GroupedGemmConfig]:
    """
    Yield the grouped GEMMs that may be chosen, and one of each kind that is only asked for: faster
    than `legal_sweep`, and fewer.
    """
    for layout in Layout:
        yield from every_candidate(arch, layout)
    extra = Schedule(swap_tail=True, extra_rows=True)
    asked = GroupedGemmConfig(
        layout="masked", tile=Tile(m=192, n=128, k=128), cluster=Cluster(n=2), schedule=extra
    )
    if check(asked, arch):
        yield asked
    one_group = GroupedGemmConfig(
        layout="ragged",
        tile=Tile(m=8, n=32, k=256),
        schedule=Schedule(stream_b=True, one_group=True),
    )
    if check(one_group, arch):
        yield one_group


SWEEPS: dict[str, Callable[[Arch], Iterator[Config]]] = {
    "activation_backward": backward_sweep,
    "add_lora": lora_sweep,
    "combine": combine_sweep,
    "combine_ranks": thin_sweep("combine_ranks"),
    "dispatch": thin_sweep("dispatch"),
    "grouped_gemm": candidates_sweep,
    "grouped_gemm_wgrad": wgrad_sweep,
    "moe_decode": thin_sweep("moe_decode"),
    "moe_fc2_dense": fc2_sweep,
    "permute_quantize": permute_sweep,
    "quantize": quantize_sweep,
    "route": route_sweep,
    "activation_quantize": activation_quantize_sweep,
    "unpack_weights": unpack_sweep,
}
"""Sweeps of operations whose rules yield too many configs to look at all of them."""


def sweep(arch: Arch, op: str) -> Iterator[Config]:
    """Yield legal configs of an operation; all of them, where it has no sweep of its own."""
    if op in SWEEPS:
        return SWEEPS[op](arch)
    return (config for config in rules(arch, op).configs() if check(config, arch))
