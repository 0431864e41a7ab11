# SPDX-License-Identifier: Apache-2.0
"""
The cost of the wire of a layer that ranks share, on GPUs of this host or in processes on its CPU.
The *wire* is the exchange of rows between ranks.

Each rank times the wire alone, the layer by windows, also those of quantised tokens, and by
collectives, and the layer alone on the same rows; a figure is the median over rounds of the slowest
rank. Before that, the run checks that all of these give the same bits, which must be close to the
sum of the results of the layers alone.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import ProcessException, spawn

from jitgen.autotune.measure.errors import NoDevice, WrongResult
from jitgen.bench.layer import NAME
from jitgen.bench.layer.cases import Case
from jitgen.bench.layer.operands import Experts
from jitgen.bench.layer.ours import without_memory
from jitgen.bench.protocol import Row
from jitgen.config import Arch
from jitgen.config.format import Format
from jitgen.errors import ConfigError
from jitgen.layer.config import MoEConfig
from jitgen.layer.module import MoELayer
from jitgen.layer.problems import sent_as
from jitgen.layer.reference import relative_error
from jitgen.parallel import Wire, connect, share
from jitgen.plans.plan import configs
from jitgen.support.documents import parse_json, read_bounded

GPU_CASE = Case(experts=256, tokens=0)
GPU_TOKENS = (1, 8, 16, 32, 64, 128)
CPU_CASE = Case(experts=8, tokens=0, hidden=256, intermediate=128, top_k=2)
CPU_TOKENS = (1, 8)
"""Layers and tokens of each rank, where nothing else is asked for."""

WINDOWS, COLLECTIVES = "windows", "collectives"
QUANTISED = "windows of quantised tokens"
TOLERANCE = 1e-2
"""Tolerance of a sum over ranks, whose results are rounded before they are sent."""

_LIMIT_S = 60


def plan(
    ranks: int, experts: Sequence[int], tokens: Sequence[int], *, is_gpu: bool
) -> tuple[Case, tuple[int, ...]]:
    """
    Return the layer, and the numbers of tokens of each rank.

    Raises:
        ConfigError: `experts` has several numbers, the ranks cannot share the experts evenly, or a
            token has more experts than there are.
    """
    case = GPU_CASE if is_gpu else CPU_CASE
    if len(experts) > 1:
        raise ConfigError("--experts must be one number with --ranks: those of all ranks")
    if experts:
        case = replace(case, experts=experts[0])
    if case.experts % ranks or case.experts < case.top_k:
        raise ConfigError(
            f"--experts must be a multiple of {ranks} ranks, and at least {case.top_k}, those of a "
            f"token (got {case.experts})"
        )
    return case, tuple(tokens) or (GPU_TOKENS if is_gpu else CPU_TOKENS)


def kernel_names(case: Case, ranks: int, most: int, arch: Arch) -> list[str]:
    """Return the kernels that a run with at most `most` tokens of each rank needs."""
    config = replace(_config(case), local_experts=case.experts // ranks)
    weights = without_memory(config.groups, case.intermediate, case.hidden)
    layer = MoELayer(config, weights)
    names: set[str] = set()
    for quantise in (False, True):
        found = layer.plan(most, arch, num_ranks=ranks, quantise=quantise, flags_from=0)
        names |= {each.name(arch) for each in configs(found, arch)}
    return sorted(names)


def rows(ranks: int, experts: Sequence[int], tokens: Sequence[int], rounds: int) -> Iterator[Row]:
    """
    Return the figures of a layer that `ranks` processes of this machine share, which the iterator
    starts; arguments are checked at once.

    Args:
        ranks: Number of processes; each has a GPU if this machine has GPUs.
        experts: Empty, or one number: experts of all ranks.
        tokens: Tokens of each rank; empty: the usual ones.
        rounds: Turns of each side.

    Raises:
        ConfigError: As for `plan`.
        NoDevice: There are GPUs, and fewer than ranks.
        WrongResult: A rank failed, or found a wrong result.
    """
    count = torch.cuda.device_count()
    if 0 < count < ranks:
        raise NoDevice(f"{ranks} ranks need as many GPUs ({count} are here)")
    return _spawned(ranks, *plan(ranks, experts, tokens, is_gpu=count > 0), rounds)


def _spawned(ranks: int, case: Case, numbers: Sequence[int], rounds: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="jitgen-ranks-") as folder:
        try:
            spawn(_rank, (ranks, folder, case, numbers, rounds), nprocs=ranks)
        except ProcessException as error:
            raise WrongResult(str(error).strip()) from None
        for what, value, detail in parse_json(read_bounded(Path(folder) / "rows")):
            yield Row(suite=NAME, what=what, value=value, unit="us", detail=detail)


def _rank(
    rank: int, ranks: int, folder: str, case: Case, numbers: Sequence[int], rounds: int
) -> None:
    """Measure on one rank; the first rank writes the results."""
    is_gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank) if is_gpu else torch.device("cpu")
    if is_gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if is_gpu else "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=_LIMIT_S),
        device_id=device if is_gpu else None,
    )
    with torch.no_grad():
        found = [
            [what, *_summary(seconds)] for what, seconds in _measured(case, numbers, rounds, device)
        ]
    if rank == 0:
        (Path(folder) / "rows").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _summary(seconds: list[float]) -> tuple[float, str]:
    low, high = 1e6 * min(seconds), 1e6 * max(seconds)
    detail = f"{low:.3g}..{high:.3g} us in {len(seconds)} rounds, the slowest rank of each"
    return 1e6 * statistics.median(seconds), detail


def _config(case: Case) -> MoEConfig:
    return MoEConfig(
        hidden=case.hidden,
        intermediate=case.intermediate,
        experts=case.experts,
        top_k=case.top_k,
    )


def _measured(
    case: Case, numbers: Sequence[int], rounds: int, device: torch.device
) -> Iterator[tuple[str, list[float]]]:
    """Yield what was timed on this rank, and the seconds of a call in each round."""
    group: Any = dist.group.WORLD
    config, rank, ranks, most = _config(case), group.rank(), group.size(), max(numbers)
    first, count = share(case.experts, rank, ranks)
    weights = Experts(case, count, str(device)).by_block
    sizes: dict[str, Any] = {"hidden": case.hidden, "top_k": case.top_k, "max_tokens": most}
    sizes |= {"device": device, "limit_s": _LIMIT_S, "flags_from": 0}
    wires: dict[str, Wire] = {
        WINDOWS: connect(group, kind=WINDOWS, quantise=False, **sizes),
        QUANTISED: connect(group, kind=WINDOWS, quantise=True, **sizes),
        COLLECTIVES: connect(group, kind=COLLECTIVES, **sizes),
    }
    shared = {
        kind: MoELayer(config, weights, max_tokens=most, group=wire) for kind, wire in wires.items()
    }
    mine = replace(config, first_expert=first, local_experts=count)
    alone = MoELayer(mine, weights, max_tokens=ranks * most)
    for tokens in numbers:
        x, topk_weights, ids = _tokens(case, tokens, rank, device)
        given = (x, topk_weights, ids)
        every = wires[COLLECTIVES].dispatch(x, ids, topk_weights, tokens)
        of_all = every.x.contiguous(), every.topk_weights, every.topk_ids
        y = alone(*of_all)
        wires[COLLECTIVES].combine(y, tokens)  # whose turn it is
        results = {kind: layer(*given, rank_tokens=tokens) for kind, layer in shared.items()}
        _check(results, y, rank, tokens)
        words = f"{tokens} tokens of each of {ranks} ranks"
        for kind, wire in wires.items():
            form = sent_as(config, weights) if wire.quantises else Format.NONE

            def travel(
                wire: Wire = wire,
                given: tuple[Tensor, ...] = given,
                y: Tensor = y,
                form: Format = form,
            ) -> None:
                wire.dispatch(given[0], given[2], given[1], len(given[0]), form)
                wire.combine(y, len(given[0]))

            yield f"{words}: {kind} alone", _times(travel, rounds, device)
        for kind, layer in shared.items():

            def call(layer: MoELayer = layer, given: tuple[Tensor, ...] = given) -> None:
                layer(*given, rank_tokens=len(given[0]))

            yield f"{words}: the layer by {kind}", _times(call, rounds, device)
        yield (
            f"{words}: the layer alone on the same rows",
            _times(lambda of_all=of_all: alone(*of_all), rounds, device),  # type: ignore[misc]
        )
        for wire in wires.values():
            wire.check()


def _tokens(
    case: Case, count: int, rank: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens of a rank, and their weights and experts; all experts are equally likely."""
    chance = torch.Generator(device).manual_seed(1000 * count + rank)
    x = torch.randn(count, case.hidden, device=device, generator=chance).bfloat16()
    scores = torch.rand(count, case.experts, device=device, generator=chance)
    weights, ids = scores.topk(case.top_k)
    return x, weights, ids.int()


def _check(results: dict[str, Tensor], y: Tensor, rank: int, tokens: int) -> None:
    """
    Compare the results of all wires with each other, and with the sum of all ranks' results.

    Raises:
        WrongResult: They differ.
    """
    total = y.float()
    dist.all_reduce(total)
    wanted = total[rank * tokens : (rank + 1) * tokens]
    error = relative_error(results[WINDOWS], wanted)
    for kind, found in results.items():
        if not torch.equal(results[WINDOWS], found):
            raise WrongResult(f"windows and {kind} differ for {tokens} tokens of rank {rank}")
    if not error < TOLERANCE:
        raise WrongResult(f"{tokens} tokens of rank {rank} are off by {error:.2e}")


def _times(call: Callable[[], object], rounds: int, device: torch.device) -> list[float]:
    """Return the seconds of a call in each round, those of the slowest rank."""
    timed = _graph_time(call) if device.type == "cuda" else _host_time(call)
    found = []
    for _ in range(rounds):
        dist.barrier()
        found.append(timed())
    slowest = torch.tensor(found, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.tolist()


def _host_time(call: Callable[[], object], calls: int = 5) -> Callable[[], float]:
    call()

    def timed() -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - begin) / calls

    return timed


def _graph_time(call: Callable[[], object], calls: int = 8) -> Callable[[], float]:
    """
    Return a function that replays a graph of `calls` calls and returns the seconds of one call.
    """
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

    def timed() -> float:
        torch.cuda.synchronize()  # the barrier before it, too
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1000 / calls

    return timed
