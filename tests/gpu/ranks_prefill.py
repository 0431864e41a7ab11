# SPDX-License-Identifier: Apache-2.0
"""
Ranks of GPUs with many tokens, whose calls are micro-batches: checked, then timed beside calls
without them, calls whose tokens travel quantised or with flags, and the layer alone on the same
rows.

    python -m tests.gpu.ranks_prefill prewarm --ranks 2          # anywhere: compiles the kernels
    JITGEN_GPU_CACHE=... python -m tests.gpu.ranks_prefill run --ranks 2

Times are medians of replays of CUDA graphs, of the slowest rank, in microseconds a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

import jitgen
from jitgen.bench.layer.operands import Experts
from jitgen.bench.layer.ours import without_memory
from jitgen.bench.layer.ranks import GPU_CASE
from jitgen.config import Config
from jitgen.layer.reference import relative_error
from jitgen.parallel import share
from tests.gpu.expert_parallel import (
    LARGE,
    SMALL,
    captured,
    command,
    log,
    part_of,
    run_parts,
    time_of,
    tokens_of,
    weights_of,
)
from tests.gpu.ranks_modes import Blank, wire

MOST = 24
MANY = (512, 2048, 4096)
"""Tokens of each rank, in all micro-batches of a call."""

WAYS: dict[str, dict[str, Any]] = {
    "1 part": {},
    "2 parts": {"micro_batches": 2},
    "quantised": {"quantise": True},
    "quantised, 2 parts": {"quantise": True, "micro_batches": 2},
    "flags": {"flags_from": 2},
    "quantised, flags": {"quantise": True, "flags_from": 2},
}
"""What ranks are connected with when they are timed."""

NUMERICS = (None, "invariant")
TOLERANCE = 1e-2


def bits(rank: int, ranks: int) -> None:
    """Compare with one GPU that has all experts, eager and in a graph that ranks replay apart."""
    weights = weights_of(SMALL, "cuda")
    mine = part_of(weights, rank, ranks)
    for numerics in NUMERICS:
        config = replace(SMALL, numerics=numerics)
        whole, sizes = jitgen.MoELayer(config, weights), (config.hidden, config.top_k, MOST)
        for parts in (2, 3, 5):
            way = wire(*sizes, numerics=numerics, micro_batches=parts)
            layer = jitgen.MoELayer(config, mine, max_tokens=MOST, group=way)

            def require(found: torch.Tensor, given: Any) -> None:
                wanted = whole(*given)  # noqa: B023
                error = relative_error(found, wanted)
                assert error < TOLERANCE, (numerics, parts, error)  # noqa: B023
                assert numerics is None or torch.equal(found, wanted)  # noqa: B023

            for number in range(24):
                has_some = ranks == 1 or number % ranks != rank
                count = (number * 7 + 5 * rank) % (MOST + 1) * has_some
                given = tokens_of(config, count, 100 * number + rank)
                require(layer(*given), given)
            given = tokens_of(config, MOST - rank % 2, 77 + rank)
            out = torch.empty_like(given[0])
            graph = captured(lambda: layer(*given, out=out), 3)  # noqa: B023
            for number in range(24):
                for old, new in zip(given, tokens_of(config, len(out), number), strict=True):
                    old.copy_(new)
                if number % ranks == rank:
                    torch.cuda._sleep(2_000_000)
                graph.replay()
                require(out, given)
            way.check()
            log(rank, f"bits: {numerics or 'fast'}, {parts} micro-batches: 24 calls, 24 replays")


def times(rank: int, ranks: int) -> None:
    """Time calls of all ways."""
    first, count = share(LARGE.experts, rank, ranks)
    weights = Experts(GPU_CASE, count, "cuda").by_block
    part = replace(LARGE, first_expert=first, local_experts=count)
    for tokens in MANY:
        x, topk_weights, ids = tokens_of(LARGE, tokens, rank)
        found, results = {}, []
        for name, options in WAYS.items():
            way = wire(LARGE.hidden, LARGE.top_k, tokens, **options)
            layer = jitgen.MoELayer(LARGE, weights, max_tokens=tokens, group=way)
            results.append(layer(x, topk_weights, ids))
            error = relative_error(results[-1], results[0])
            assert error < TOLERANCE, (tokens, name, error)
            found[name] = time_of(lambda layer=layer: layer(x, topk_weights, ids))  # type: ignore[misc]  # noqa: B023
            way.check()
            del way, layer
            torch.cuda.empty_cache()
        alone = jitgen.MoELayer(part, weights, max_tokens=ranks * tokens)
        every = [torch.cat([each] * ranks) for each in (x, topk_weights, ids)]
        for whole, mine in zip(every, (x, topk_weights, ids), strict=True):
            dist.all_gather_into_tensor(whole, mine)
        found["alone"] = time_of(lambda: alone(*every))  # noqa: B023
        log(rank, f"prefill {tokens}:", ", ".join(f"{k} {v:.1f}" for k, v in found.items()))


PARTS = {"bits": bits, "times": times}


def work(rank: int, ranks: int, meeting: str, names: list[str]) -> None:
    """Do the work of one rank."""
    run_parts([PARTS[name] for name in names], rank, ranks, meeting)


def configs(ranks: int) -> Iterator[Config]:
    """Yield the configs of kernels that the parts need."""
    for config, most, kinds in ((SMALL, MOST, NUMERICS), (LARGE, max(MANY), (None,))):
        for numerics in kinds:
            asked = replace(config, numerics=numerics)
            if config is SMALL:
                weights = without_memory(asked.groups, asked.intermediate, asked.hidden)
                yield from jitgen.MoELayer(asked, weights).configs("sm_90a", most)
            for rank in range(ranks):
                first, count = share(config.experts, rank, ranks)
                part = replace(asked, first_expert=first, local_experts=count)
                weights = without_memory(count, part.intermediate, part.hidden)
                for options in WAYS.values() if config is LARGE else ({},):
                    modes = {k: v for k, v in options.items() if k != "micro_batches"}
                    blank: Any = Blank(rank, ranks, most, **modes)
                    layer = jitgen.MoELayer(part, weights, max_tokens=most, group=blank)
                    yield from layer.configs("sm_90a")


def prewarm(ranks: int) -> None:
    """Compile what `run` needs, on any machine."""
    report = jitgen.prewarm(list(dict.fromkeys(configs(ranks))), arch="sm_90a")
    print(*(f"{row.state} {row.name} {row.error}" for row in report.rows), sep="\n")


if __name__ == "__main__":
    command(__doc__, prewarm, work, PARTS)
