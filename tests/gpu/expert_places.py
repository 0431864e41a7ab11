# SPDX-License-Identifier: Apache-2.0
"""
Experts in several places of ranks: moved while graphs replay, and times of ranks where few experts
have most tokens. Parts of `python -m tests.gpu.expert_parallel`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

import jitgen
from jitgen.bench.layer.ours import without_memory
from jitgen.bench.layer.ranks import _graph_time as graph_time
from jitgen.config import Config
from jitgen.parallel import ExpertMap, balance
from tests.gpu.expert_parallel import (
    LARGE,
    REPLAYS,
    SMALL,
    captured,
    log,
    part_of,
    slowest,
    tokens_of,
    weights_of,
)
from tests.gpu.ranks_modes import wire
from tests.unit.test_expert_maps import placed, zipf

MOST = 9
"""Most tokens of a rank in the small layer."""

MANY = 1024
"""Tokens of a rank in the large layer."""


def moves(rank: int, ranks: int, rounds: int = 20) -> None:
    """Move experts between replays of a graph, and compare with one GPU's."""
    weights = weights_of(SMALL, "cuda")
    whole = jitgen.MoELayer(SMALL, weights)
    counts = torch.arange(SMALL.experts)
    maps = [balance(each, ranks, ranks) for each in (counts, counts.flip(0))]
    layer = jitgen.MoELayer(
        SMALL,
        part_of(weights, rank, ranks),
        max_tokens=MOST,
        group=wire(SMALL.hidden, SMALL.top_k, MOST),
        expert_map=maps[0],
    )
    given = tokens_of(SMALL, MOST - rank % 2, 77 + rank)
    out = torch.empty_like(given[0])
    graph = captured(lambda: layer(*given, out=out, rank_tokens=MOST), 2)
    worst = 0.0

    def replay(seed: int) -> None:
        nonlocal worst
        for old, new in zip(given, tokens_of(SMALL, len(out), seed), strict=True):
            old.copy_(new)
        graph.replay()
        wanted = whole(*given).float()
        worst = max(worst, ((out.float() - wanted).norm() / wanted.norm()).item())

    for number in range(rounds):
        move = layer.move(maps[(number + 1) % 2])
        for step in range(3):
            replay(100 * number + step)
        move.finish()
        replay(100 * number + 50)
    assert layer.wire is not None
    layer.wire.check()
    worst = slowest(worst)
    log(rank, f"moves: {rounds} maps between replays of a graph: error {worst:.2e}")
    assert worst < 1e-2, worst
    graph.reset()


def balanced(rank: int, ranks: int) -> None:
    """Time each rank's share of tokens that Zipf's law brings to experts, without and with maps."""
    seen = torch.bincount(zipf(4 * MANY, 0).flatten(), minlength=LARGE.experts)
    for name, expert_map in (
        ("each expert once", ExpertMap.plain(LARGE.experts, ranks)),
        ("a quarter more places", balance(seen, ranks, LARGE.experts // 4)),
    ):
        of_ranks = [placed(expert_map, r, MANY).choose(zipf(MANY, 1 + r)) for r in range(ranks)]
        own = _time_of(expert_map, rank, torch.cat(of_ranks).cuda())
        torch.cuda.empty_cache()
        every = [torch.zeros(1, device="cuda") for _ in range(ranks)]
        dist.all_gather(every, torch.tensor([own], device="cuda"))
        times = [each.item() for each in every]
        words = ", ".join(f"{each:.1f}" for each in times)
        mean = statistics.mean(times)
        log(rank, f"balance, {name}: {words} us; slowest {max(times) / mean:.3f} of the mean")


def _time_of(expert_map: ExpertMap, rank: int, ids: Tensor) -> float:
    """Return the microseconds of this rank's share of all ranks' tokens, whose places are `ids`."""
    groups = len(expert_map.part(rank))
    weights = weights_of(replace(LARGE, experts=groups, local_experts=None), "cuda")
    layer = jitgen.MoELayer(_config(expert_map, rank), weights, max_tokens=len(ids))
    x, topk_weights, _ = tokens_of(LARGE, len(ids), 5)
    timed = graph_time(lambda: layer(x, topk_weights, ids))
    return 1e6 * statistics.median(timed() for _ in range(REPLAYS))


def configs(ranks: int) -> Iterator[Config]:
    """Yield the configs of kernels that the parts need."""
    small = ExpertMap(
        experts=SMALL.experts + ranks, ranks=ranks, placed=tuple(range(SMALL.experts + ranks))
    )
    quarter = LARGE.experts // 4
    for config, expert_map, most in (
        (SMALL, small, MOST),
        (LARGE, ExpertMap.plain(LARGE.experts, ranks), MANY),
        (LARGE, ExpertMap.plain(LARGE.experts + quarter, ranks), MANY),
    ):
        for rank in range(ranks):
            mine = replace(_config(expert_map, rank), hidden=config.hidden)
            mine = replace(mine, intermediate=config.intermediate, top_k=config.top_k)
            weights = without_memory(mine.groups, mine.intermediate, mine.hidden)
            yield from jitgen.MoELayer(mine, weights).configs("sm_90a", ranks * most)


def _config(expert_map: ExpertMap, rank: int) -> jitgen.MoEConfig:
    """Return the large layer, as a rank has the places of a map."""
    mine = expert_map.part(rank)
    places = len(expert_map.placed)
    return replace(LARGE, experts=places, first_expert=mine.start, local_experts=len(mine))
