# SPDX-License-Identifier: Apache-2.0
"""
Ranks of GPUs that mask one which is late, those with invariant numerics, those that quantise tokens
before they send them, and those with flags: checked, then timed beside the usual ones.

    python -m tests.gpu.ranks_modes prewarm --ranks 2          # anywhere: compiles the kernels
    JITGEN_GPU_CACHE=... python -m tests.gpu.ranks_modes run --ranks 2

Times are medians of replays of CUDA graphs, of the slowest rank, in microseconds a call.
"""

from __future__ import annotations

import time
from copy import copy
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

import jitgen
from jitgen.bench.layer.operands import Experts
from jitgen.bench.layer.ours import without_memory
from jitgen.bench.layer.ranks import GPU_CASE
from jitgen.config.format import Format
from jitgen.parallel import connect, share
from jitgen.parallel.windows import Windows
from tests.gpu.expert_parallel import (
    HIDDEN,
    LARGE,
    SMALL,
    TOKENS,
    TOP_K,
    captured,
    command,
    log,
    part_of,
    run_parts,
    time_of,
    tokens_of,
    weights_of,
)

MOST = 9
MANY = (*TOKENS, 256, 512)
FEW_AND_MANY = (1, 2, 4, *TOKENS[1:], 256, 512)
USUAL: dict[str, Any] = {"quantise": False, "flags_from": 0}
MODES: dict[str, dict[str, Any]] = {
    "usual": {},
    "masking": {"late": "mask"},
    "invariant": {"numerics": "invariant"},
    "quantised": {"quantise": True},
    "flags": {"flags_from": 2},
    "quantised, flags": {"quantise": True, "flags_from": 2},
}


def wire(hidden: int, top_k: int, most: int, limit_s: float = 10.0, **mode: Any) -> Windows:
    """Return windows of all ranks, for bfloat16 without flags where `mode` says nothing else."""
    mode = USUAL | mode
    sizes = {"hidden": hidden, "top_k": top_k, "max_tokens": most}
    found = connect(
        dist.group.WORLD, device="cuda", kind="windows", limit_s=limit_s, **sizes, **mode
    )  # type: ignore[arg-type]
    assert isinstance(found, Windows)
    return found


def require_same_bits(
    rank: int,
    layer: jitgen.MoELayer,
    other: jitgen.MoELayer,
    words: object,
    *,
    has_shared: bool = False,
) -> None:
    """Require the bits of another layer, in 24 calls, also of shared experts, and 24 replays."""
    for number in range(24):
        given = tokens_of(SMALL, (number * 5 + 3 * rank) % (MOST + 1), 100 * number + rank)
        shared = torch.randn(given[0].shape, device="cuda").bfloat16() if has_shared else None
        found, wanted = (each(*given, shared=shared) for each in (layer, other))
        assert torch.equal(found, wanted), (words, number)
    given = tokens_of(SMALL, MOST - rank % 2, 77 + rank)
    out = torch.empty_like(given[0])
    graph = captured(lambda: layer(*given, out=out), 3)
    for number in range(24):
        for old, new in zip(given, tokens_of(SMALL, len(out), number), strict=True):
            old.copy_(new)
        graph.replay()
        assert torch.equal(out, other(*given)), (words, number)


def fast(rank: int, ranks: int) -> None:
    """
    Compare bits with those of collectives, which launch `combine` before they send; eager and in
    graphs, also by flags.
    """
    config, mine = SMALL, part_of(weights_of(SMALL, "cuda"), rank, ranks)
    sizes: dict[str, Any] = {"hidden": config.hidden, "top_k": config.top_k, "max_tokens": MOST}
    way = connect(dist.group.WORLD, device="cuda", kind="collectives", **sizes)
    usual = jitgen.MoELayer(config, mine, max_tokens=MOST, group=way)
    options: dict[str, Any]
    for options in ({}, {"late": "mask"}, {"flags_from": 2}):
        given_wire = wire(config.hidden, config.top_k, MOST, **options)
        layer = jitgen.MoELayer(config, mine, max_tokens=MOST, group=given_wire)
        require_same_bits(rank, layer, usual, options, has_shared=True)
        given_wire.check()
        log(rank, "fast:", options, "bits of collectives, 24 calls and 24 replays")


def invariant(rank: int, ranks: int) -> None:
    """Compare bits with those of one GPU that has all experts, eager and in graphs."""
    config = replace(SMALL, numerics="invariant")
    weights = weights_of(config, "cuda")
    mine, whole = part_of(weights, rank, ranks), jitgen.MoELayer(config, weights)
    way = wire(config.hidden, config.top_k, MOST, numerics="invariant")
    layer = jitgen.MoELayer(config, mine, max_tokens=MOST, group=way)
    require_same_bits(rank, layer, whole, "invariant")
    way.check()
    log(rank, "invariant: equal bits, 24 calls and 24 replays")


def masking(rank: int, ranks: int) -> None:
    """Let the last rank be late: the others go on without it; it comes back with new windows."""
    config = SMALL
    weights, last = weights_of(config, "cuda"), ranks - 1
    mine, whole = part_of(weights, rank, ranks), jitgen.MoELayer(config, weights)
    x, topk, ids = tokens_of(config, MOST, rank)
    first, count = share(config.experts, last, ranks)
    is_last = (ids >= first) & (ids < first + count)
    alone = ids.where(is_last if rank == last else ~is_last, -1)

    def require(layer: jitgen.MoELayer, wanted_ids: torch.Tensor) -> None:
        wanted = whole(x, topk, wanted_ids).float()
        off = (layer(x, topk, ids).float() - wanted).norm() / wanted.norm().clamp_min(1e-9)
        assert off < 1e-2, (rank, off)

    way = wire(config.hidden, config.top_k, MOST, limit_s=0.5, late="mask")
    layer = jitgen.MoELayer(config, mine, max_tokens=MOST, group=way)
    require(layer, ids)
    torch.cuda.synchronize()
    if rank == last:
        time.sleep(2.0)
    layer(x, topk, ids)  # some columns may have the share of the last rank, others not
    torch.cuda.synchronize()
    begin = time.monotonic()
    for _ in range(3):
        require(layer, alone)
    spent = time.monotonic() - begin
    assert spent < 0.5, spent
    found = way.check()
    assert {each.source for each in found} == ({*range(last)} if rank == last else {last}), found
    log(rank, "masking:", found[0], f"3 calls since then {1e3 * spent:.1f} ms")
    dist.barrier()
    layer = jitgen.MoELayer(
        config, mine, max_tokens=MOST, group=wire(config.hidden, config.top_k, MOST, late="mask")
    )
    require(layer, ids)
    require(layer, ids)
    log(rank, "masking: all ranks again, with new windows")


def quantised(rank: int, ranks: int) -> None:
    """
    Compare bits with those of ranks that send bfloat16, eager and in graphs, also with invariant
    numerics, where a late rank is masked, and with flags.
    """
    options: dict[str, Any]
    for options in ({}, {"numerics": "invariant"}, {"late": "mask"}, {"flags_from": 2}):
        config = replace(SMALL, numerics=options.get("numerics"))
        mine = part_of(weights_of(config, "cuda"), rank, ranks)
        usual, sent = (
            jitgen.MoELayer(
                config,
                mine,
                max_tokens=MOST,
                group=wire(config.hidden, config.top_k, MOST, **each),
            )
            for each in (
                {k: v for k, v in options.items() if k != "flags_from"},
                {"quantise": True, **options},
            )
        )
        require_same_bits(rank, sent, usual, options)
        for layer in (usual, sent):
            layer.wire.check()
        log(rank, "quantised:", options, "equal bits, 24 calls and 24 replays")


def layers(rank: int, ranks: int) -> None:
    """
    Time layers of DeepSeek-V3's sizes whose ranks send bfloat16, FP8, and both by flags; those in
    which another launch than `dispatch` sorts; and the layer alone on the tokens of all ranks.
    """
    first, count = share(LARGE.experts, rank, ranks)
    part = replace(LARGE, first_expert=first, local_experts=count)
    mine = Experts(GPU_CASE, count, "cuda").by_block
    most = max(MANY)
    found = {
        name: jitgen.MoELayer(
            part, mine, max_tokens=most, group=wire(HIDDEN, TOP_K, most, **MODES[name])
        )
        for name in ("usual", "quantised", "flags", "quantised, flags")
    }
    for name in ("usual", "quantised"):
        apart = copy(found[name])
        apart._made = replace(apart._made, joins=False)
        found[f"{name}, apart"] = apart
    alone = jitgen.MoELayer(part, mine, max_tokens=ranks * most)
    for tokens in FEW_AND_MANY:
        given = tokens_of(LARGE, tokens, rank)
        every = [tokens_of(LARGE, tokens, each) for each in range(ranks)]
        of_all = tuple(map(torch.cat, zip(*every, strict=True)))
        taken = {
            name: time_of(
                lambda layer=layer, given=given, tokens=tokens: layer(*given, rank_tokens=tokens)
            )
            for name, layer in found.items()
        }
        taken["alone"] = time_of(lambda of_all=of_all: alone(*of_all))
        log(rank, f"layer {tokens}:", ", ".join(f"{k} {v:.1f}" for k, v in taken.items()))
    for layer in found.values():
        layer.wire.check()


def times(rank: int, ranks: int) -> None:
    """
    Time dispatch and combine of each mode alone, with DeepSeek-V3's columns; combine adds up the
    rows of experts, too.
    """
    most = max(MANY)
    ways = {name: wire(HIDDEN, TOP_K, most, **mode) for name, mode in MODES.items()}
    for count in MANY:
        x, weights, ids = tokens_of(LARGE, count, rank)
        first, local = share(LARGE.experts, rank, ranks)
        rows = torch.randn(ranks * count * TOP_K, HIDDEN, device="cuda").bfloat16()
        found = {}
        for name, way in ways.items():
            form = Format.BLOCK128 if way.quantises else Format.NONE
            every = way.dispatch(x, ids, weights, count, form)
            number = torch.arange(every.topk_ids.numel(), device="cuda", dtype=torch.int32)
            is_here = (every.topk_ids >= first) & (every.topk_ids < first + local)
            inverse = number.view_as(every.topk_ids).where(is_here, -1)
            places = {"inverse": inverse, "topk_weights": every.topk_weights}
            places["of_experts"] = name == "invariant"
            way.combine(rows, count, **places)

            def both(way: Windows = way, form: Format = form, places: Any = places) -> None:
                way.dispatch(x, ids, weights, count, form)  # noqa: B023
                way.combine(rows, count, **places)  # noqa: B023

            found[name] = time_of(both)
            way.check()
        log(rank, f"wire {count}:", ", ".join(f"{k} {v:.1f}" for k, v in found.items()))


PARTS = {
    "fast": fast,
    "invariant": invariant,
    "masking": masking,
    "quantised": quantised,
    "times": times,
    "layers": layers,
}


def work(rank: int, ranks: int, meeting: str, names: list[str]) -> None:
    """Do the work of one rank."""
    run_parts([PARTS[name] for name in names], rank, ranks, meeting)


class Blank:
    """What connects ranks, of which a plan needs the numbers and kinds alone."""

    def __init__(self, rank: int, ranks: int, most: int, **mode: Any) -> None:
        self.group_name, self.rank, self.ranks, self.max_tokens = "", rank, ranks, most
        self.can_mask, self.quantises = "late" in mode, mode.get("quantise", False)
        self.flags_from, self.micro_batches = mode.get("flags_from"), 1
        self.stream = None

    def dispatch(self, *_: Any) -> Any:
        """Do nothing: plans do not call this."""

    combine = check = dispatch


def prewarm(ranks: int) -> None:
    """Compile what `run` needs, on any machine."""
    found: dict[Any, None] = {}
    for config, most in ((SMALL, MOST), (LARGE, max(MANY))):
        both = [{**mode, "quantise": True} for mode in MODES.values()]
        for mode in (*MODES.values(), *both):
            asked = replace(config, numerics=mode.get("numerics"))
            if config is SMALL:
                weights = without_memory(asked.groups, asked.intermediate, asked.hidden)
                alone = jitgen.MoELayer(asked, weights)
                found |= dict.fromkeys(alone.configs("sm_90a", most))
            elif not mode:
                first, count = share(config.experts, 0, ranks)
                part = replace(asked, first_expert=first, local_experts=count)
                weights = without_memory(count, part.intermediate, part.hidden)
                alone = jitgen.MoELayer(part, weights)
                found |= dict.fromkeys(alone.configs("sm_90a", ranks * most))
            for rank in range(ranks):
                first, count = share(config.experts, rank, ranks)
                part = replace(asked, first_expert=first, local_experts=count)
                blank: Any = Blank(rank, ranks, most, **mode)
                weights = without_memory(count, part.intermediate, part.hidden)
                layer = jitgen.MoELayer(part, weights, max_tokens=most, group=blank)
                found |= dict.fromkeys(layer.configs("sm_90a"))
    report = jitgen.prewarm(list(found), arch="sm_90a")
    print(*(f"{row.state} {row.name} {row.error}" for row in report.rows), sep="\n")


if __name__ == "__main__":
    command(__doc__, prewarm, work, PARTS)
