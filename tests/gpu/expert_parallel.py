# SPDX-License-Identifier: Apache-2.0
"""
Layers that the GPUs of a host share: checked against one GPU with all experts, also while experts
move; the wire alone, by tilings; ranks with balanced experts. `jitgen bench layer --ranks N` times
layers.

    python -m tests.gpu.expert_parallel prewarm --ranks 2          # anywhere: compiles the kernels
    JITGEN_GPU_CACHE=... python -m tests.gpu.expert_parallel run --ranks 2

Times are medians of replays of CUDA graphs, of the slowest rank, in microseconds a call.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

import jitgen
from jitgen.bench.layer.ours import without_memory
from jitgen.bench.layer.ranks import _times as times_of
from jitgen.config.combine_ranks import CombineRanksConfig
from jitgen.config.dispatch import DispatchConfig, Tiling
from jitgen.ops.combine_ranks.call import combine_ranks
from jitgen.ops.dispatch.call import dispatch
from jitgen.parallel import connect, share
from jitgen.parallel.windows import Windows
from jitgen.settings import settings

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 7168, 2048, 256, 8
"""Sizes of a layer of DeepSeek-V3."""

TOKENS = (1, 8, 16, 32, 64, 128)
"""Numbers of tokens of each rank."""

SMALL = jitgen.MoEConfig(hidden=1024, intermediate=512, experts=16, top_k=4)
LARGE = jitgen.MoEConfig(hidden=HIDDEN, intermediate=INTERMEDIATE, experts=EXPERTS, top_k=TOP_K)

TILINGS = [
    Tiling(threads=threads, ctas=ctas)
    for threads, ctas in ((128, 128), (256, 128), (512, 128), (256, 64), (512, 64), (512, 32))
]
"""Tilings of which the wire's times are compared."""

REPLAYS = 15


def weights_of(config: jitgen.MoEConfig, device: str) -> jitgen.ExpertWeights:
    """Return weights of FP8 with block scales, the same on every rank."""
    chance = torch.Generator(device).manual_seed(1)

    def matrices(n: int, k: int) -> tuple[Tensor, Tensor]:
        bits = torch.empty(config.experts, n, k, dtype=torch.uint8, device=device)
        for each in bits:  # one by one, which takes less memory
            drawn = torch.randint(0, 240, each.shape, device=device, generator=chance)
            each.copy_(torch.where(drawn < 120, drawn, drawn + 8))  # of both signs, no NaN
        scale = torch.rand(config.experts, n // 128, k // 128, device=device, generator=chance)
        return bits.view(torch.float8_e4m3fn), scale * 2e-3

    w13, w13_scale = matrices(2 * config.intermediate, config.hidden)
    w2, w2_scale = matrices(config.hidden, config.intermediate)
    return jitgen.ExpertWeights(w13=w13, w2=w2, w13_scale=w13_scale, w2_scale=w2_scale)


def part_of(weights: jitgen.ExpertWeights, rank: int, ranks: int) -> jitgen.ExpertWeights:
    """Return a rank's share."""
    first, count = share(weights.groups, rank, ranks)
    return weights.of(
        {name: each[first : first + count].clone() for name, each in weights.tensors.items()}
    )


def tokens_of(config: jitgen.MoEConfig, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, weights and experts."""
    chance = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(count, config.hidden, device="cuda", generator=chance).bfloat16()
    scores = torch.rand(count, config.experts, device="cuda", generator=chance)
    weights, ids = scores.topk(config.top_k)
    return x, weights, ids.int()


def log(rank: int, *words: object) -> None:
    """Print `words` on rank 0 alone."""
    if rank == 0:
        print(*words, flush=True)


def slowest(value: float) -> float:
    """Return the largest of all ranks' values, on every rank."""
    found = torch.tensor([value], device="cuda")
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return found.item()


def captured(call: Callable[[], object], calls: int) -> torch.cuda.CUDAGraph:
    """Return a graph of some calls."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            call()
    torch.cuda.synchronize()
    dist.barrier()
    return graph


def time_of(call: Callable[[], object]) -> float:
    """Return the time of a call in microseconds."""
    return 1e6 * statistics.median(times_of(call, REPLAYS, torch.device("cuda")))


def check(config: jitgen.MoEConfig, rank: int, ranks: int, most: int, rounds: int) -> None:
    """Compare layers with one GPU's: eager, with different numbers of tokens; and in a graph."""
    weights = weights_of(config, "cuda")
    whole = jitgen.MoELayer(config, weights)
    mine = part_of(weights, rank, ranks)
    sizes = {"hidden": config.hidden, "top_k": config.top_k, "max_tokens": most}
    for kind in ("windows", "collectives"):
        wire = connect(dist.group.WORLD, device="cuda", kind=kind, limit_s=10, **sizes)
        layer = jitgen.MoELayer(config, mine, max_tokens=most, group=wire)
        worst = 0.0
        for number in range(rounds):
            count = (number * 5 + rank * 3) % (most + 1)
            x, topk_weights, ids = tokens_of(config, count, 1000 * rank + number)
            shared = torch.randn(x.shape, device="cuda").bfloat16()
            found = layer(x, topk_weights, ids, shared=shared)
            wanted = whole(x, topk_weights, ids, shared=shared).float()
            off = (found.float() - wanted).norm() / wanted.norm().clamp_min(1e-9)
            worst = max(worst, off.item())
        wire.check()
        worst = slowest(worst)
        log(rank, f"check {config.hidden}: {kind}, eager, {rounds} calls: error {worst:.2e}")
        assert worst < 1e-2, worst
        given = tokens_of(config, most - rank % 2, 77 + rank)
        out = torch.empty_like(given[0])
        graph = captured(lambda: layer(*given, out=out, rank_tokens=most), 3)  # noqa: B023
        for number in range(rounds):
            for old, new in zip(given, tokens_of(config, len(out), number), strict=True):
                old.copy_(new)
            if number % ranks == rank:
                torch.cuda._sleep(2_000_000)  # ranks replay at different times
            graph.replay()
        off = (out.float() - (wanted := whole(*given).float())).norm() / wanted.norm()
        wire.check()
        worst = slowest(off.item())
        log(rank, f"check {config.hidden}: {kind}, graph, {rounds} replays: error {worst:.2e}")
        assert worst < 1e-2, worst
        del graph


def wire_of(rank: int, ranks: int) -> None:
    """Time dispatch and combine alone, each tiling, beside NCCL."""
    most = max(TOKENS)
    wire = connect(
        dist.group.WORLD, hidden=HIDDEN, top_k=TOP_K, max_tokens=most, device="cuda",
        kind="windows", limit_s=10,
    )  # fmt: skip
    assert isinstance(wire, Windows)
    for count in TOKENS:
        x, weights, ids = tokens_of(LARGE, count, rank)
        y = torch.randn(ranks * count, HIDDEN, device="cuda").bfloat16()
        places = [each[: len(y)] for each in wire._as_they_are]

        def both(first: Any = None, second: Any = None) -> None:
            dispatch(x, ids, weights, wire._tokens[0], room=count, config=first)  # noqa: B023
            combine_ranks(y, *places, wire._sums[0], tokens=count, config=second)  # noqa: B023

        gathered = [x.new_empty(ranks * count, HIDDEN)]
        gathered += [each.new_empty(ranks * count, TOP_K) for each in (ids, weights)]
        out = torch.empty_like(x)

        def nccl() -> None:
            for whole, part in zip(gathered, (x, ids, weights), strict=True):  # noqa: B023
                dist.all_gather_into_tensor(whole, part)
            dist.reduce_scatter_tensor(out, y)  # noqa: B023

        times = {"chosen": time_of(both), "nccl": time_of(nccl)}
        usual = DispatchConfig(), CombineRanksConfig()
        for tiling in TILINGS:
            for name, pair in (
                ("d", (replace(usual[0], tiling=tiling), usual[1])),
                ("c", (usual[0], replace(usual[1], tiling=tiling))),
                ("both", tuple(replace(each, tiling=tiling) for each in usual)),
            ):
                words = f"{name} t{tiling.threads} c{tiling.ctas}"
                times[words] = time_of(lambda pair=pair: both(*pair))  # type: ignore[misc]
        wire.check()
        log(rank, f"wire {count}:", ", ".join(f"{k} {v:.1f}" for k, v in times.items()))


PARTS: dict[str, Callable[[int, int], None]] = {
    "check": lambda rank, ranks: check(SMALL, rank, ranks, 9, 24),
    "wire": wire_of,
    "check-large": lambda rank, ranks: check(LARGE, rank, ranks, 16, 4),
    "moves": lambda rank, ranks: _places().moves(rank, ranks),
    "balance": lambda rank, ranks: _places().balanced(rank, ranks),
}


def _places() -> Any:
    """Return the module of the last parts, which imports this one."""
    return importlib.import_module("tests.gpu.expert_places")


@contextlib.contextmanager
def carried() -> Iterator[None]:
    """Use the carried cache, without compiling, where there is one."""
    cache = os.environ.get("JITGEN_GPU_CACHE")
    with settings.scope(cache_dir=cache, on_miss="error") if cache else contextlib.nullcontext():
        yield


def work(rank: int, ranks: int, meeting: str, names: list[str]) -> None:
    """Do the work of one rank."""
    run_parts([PARTS[name] for name in names], rank, ranks, meeting)


def run_parts(
    parts: Iterable[Callable[[int, int], None]], rank: int, ranks: int, meeting: str
) -> None:
    """Join the other ranks, and run each part as this rank."""
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=ranks,
        device_id=torch.device("cuda", rank),
    )
    log(rank, torch.cuda.get_device_name(), "x", ranks, "torch", torch.__version__)
    with carried(), torch.no_grad():
        for part in parts:
            part(rank, ranks)
            torch.cuda.empty_cache()
    dist.barrier()
    torch.cuda.synchronize()


def prewarm(ranks: int) -> None:
    """Compile what `run` needs, on any machine."""
    found: dict[Any, None] = {}
    for config, most in ((SMALL, 9), (LARGE, max(TOKENS))):
        for first, count in {share(config.experts, rank, ranks) for rank in range(ranks)} | {
            (0, config.experts)
        }:
            mine = replace(config, first_expert=first, local_experts=count)
            weights = without_memory(count, config.intermediate, config.hidden)
            blank = jitgen.MoELayer(mine, weights)
            found |= dict.fromkeys(blank.configs("sm_90a", ranks * most))
    found |= dict.fromkeys(_places().configs(ranks))
    for kind in (DispatchConfig(), CombineRanksConfig()):
        found |= dict.fromkeys(replace(kind, tiling=tiling) for tiling in TILINGS)
    shared = CombineRanksConfig(has_shared=True)
    found |= dict.fromkeys(
        replace(shared, tiling=tiling) for tiling in (Tiling(), Tiling(threads=512))
    )
    report = jitgen.prewarm(list(found), arch="sm_90a")
    print(*(f"{row.state} {row.name} {row.error}" for row in report.rows), sep="\n")


def command(
    words: str | None,
    prewarm: Callable[[int], None],
    work: Callable[..., None],
    every: Iterable[str],
) -> None:
    """Compile kernels for so many ranks, or run parts of `every` in a process for each of them."""
    parser = argparse.ArgumentParser(description=words)
    parser.add_argument("action", choices=["prewarm", "run"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--parts", default=",".join(every), help=f"of the run: {', '.join(every)}")
    asked = parser.parse_args()
    names = asked.parts.split(",")
    if unknown := {*names} - {*every}:
        parser.error(f"--parts must be among {', '.join(every)} (got {', '.join(unknown)})")
    if asked.action == "prewarm":
        prewarm(asked.ranks)
        return
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (asked.ranks, f"{folder}/meeting", names), nprocs=asked.ranks)


if __name__ == "__main__":
    command(__doc__, prewarm, work, PARTS)
