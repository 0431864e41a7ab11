# SPDX-License-Identifier: Apache-2.0
"""
The cost of the wire of a layer that ranks share, on GPUs of this host or in processes on its CPU.
The *wire* is the exchange of rows between ranks.

Each rank times jitgen's wires alone (windows, windows of quantised tokens without and with flags,
collectives), the layer by each of them, the layer alone on the same rows, and peers that can be
imported (`ranks_peers`); all of them take turns. A figure is the median over rounds of the slowest
rank. Before that, the run checks that the layer has the same bits by all of jitgen's wires, and
that these and the peers' results are close to the sum of the results of the layers alone.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import ProcessException, spawn

from jitgen.autotune.measure.errors import NoDevice, WrongResult
from jitgen.bench.layer import NAME, ranks_peers
from jitgen.bench.layer.cases import Case
from jitgen.bench.layer.operands import Experts
from jitgen.bench.layer.ours import without_memory
from jitgen.bench.layer.ranks_peer import TOLERANCE, Given, Peer, Share
from jitgen.bench.protocol import Row
from jitgen.config import Arch
from jitgen.config.format import Format
from jitgen.errors import ConfigError
from jitgen.layer.config import MoEConfig
from jitgen.layer.module import MoELayer
from jitgen.layer.problems import sent_as
from jitgen.layer.reference import relative_error
from jitgen.parallel import Wire, connect, share
from jitgen.parallel.wire import FLAGS_FROM
from jitgen.plans.plan import configs
from jitgen.support.documents import parse_json, read_bounded

GPU_CASE = Case(experts=256, tokens=0)
GPU_TOKENS = (1, 8, 16, 32, 64, 128)
CPU_CASE = Case(experts=8, tokens=0, hidden=256, intermediate=128, top_k=2)
CPU_TOKENS = (1, 8)
"""Layers and tokens of each rank, where nothing else is asked for."""

WINDOWS, COLLECTIVES = "windows", "collectives"
QUANTISED, FLAGS = "windows of quantised tokens", "windows of quantised tokens with flags"
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
    for quantise, flags_from in ((False, 0), (True, 0), (True, FLAGS_FROM)):
        found = layer.plan(most, arch, num_ranks=ranks, quantise=quantise, flags_from=flags_from)
        names |= {each.name(arch) for each in configs(found, arch)}
    return sorted(names)


def here(ranks: int, experts: Sequence[int], tokens: Sequence[int]) -> tuple[Case, tuple[int, ...]]:
    """
    Return `plan` for this machine, whose ranks have a GPU each if there are GPUs.

    Raises:
        ConfigError: As for `plan`.
        NoDevice: There are GPUs, and fewer than ranks.
    """
    count = torch.cuda.device_count()
    if 0 < count < ranks:
        raise NoDevice(f"{ranks} ranks need as many GPUs ({count} are here)")
    return plan(ranks, experts, tokens, is_gpu=count > 0)


def rows(
    ranks: int, case: Case, numbers: Sequence[int], rounds: int
) -> tuple[list[Row], dict[str, str]]:
    """
    Start `ranks` processes on this machine that share a layer; return their figures, and for each
    peer that was left out the reason.

    Args:
        ranks: Number of processes.
        case: The layer, with the experts of all ranks.
        numbers: Tokens of each rank.
        rounds: Turns of each side.

    Raises:
        WrongResult: A rank failed, or found a wrong result.
    """
    with tempfile.TemporaryDirectory(prefix="jitgen-ranks-") as folder:
        try:
            spawn(_rank, (ranks, folder, case, numbers, rounds), nprocs=ranks)
        except ProcessException as error:
            raise WrongResult(str(error).strip()) from None
        found = parse_json(read_bounded(Path(folder) / "rows"))
    made = [
        Row(suite=NAME, what=what, value=value, unit="us", detail=detail)
        for what, value, detail in found["rows"]
    ]
    return made, found["missing"]


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
        missing: dict[str, str] = {}
        found = [
            [what, *_summary(seconds)]
            for what, seconds in _measured(case, numbers, rounds, device, missing)
        ]
    if rank == 0:
        text = json.dumps({"rows": found, "missing": missing})
        (Path(folder) / "rows").write_text(text, encoding="utf-8")
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
    case: Case,
    numbers: Sequence[int],
    rounds: int,
    device: torch.device,
    missing: dict[str, str],
) -> Iterator[tuple[str, list[float]]]:
    """
    Yield what was timed on this rank, and the seconds of a call in each round, in which all sides
    take turns. Peers that are left out are added to `missing`, with the reason.
    """
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
    if device.type == "cuda" and most >= FLAGS_FROM:
        how: dict[str, Any] = {"quantise": True, "flags_from": FLAGS_FROM}
        wires[FLAGS] = connect(group, kind=WINDOWS, **(sizes | how))
    shared = {
        kind: MoELayer(config, weights, max_tokens=most, group=wire) for kind, wire in wires.items()
    }
    mine = replace(config, first_expert=first, local_experts=count)
    alone = MoELayer(mine, weights, max_tokens=ranks * most)
    peers, reasons = ranks_peers.found(
        Share(case=case, most=most, device=device, weights=weights, alone=alone)
    )
    missing.update(reasons)
    for tokens in numbers:
        x, topk_weights, ids = _tokens(case, tokens, rank, device)
        given = (x, topk_weights, ids)
        every = wires[COLLECTIVES].dispatch(x, ids, topk_weights, tokens)
        of_all = every.x.contiguous(), every.topk_weights, every.topk_ids
        y = alone(*of_all)
        wires[COLLECTIVES].combine(y, tokens)  # whose turn it is
        used = [kind for kind in wires if kind != FLAGS or tokens >= FLAGS_FROM]
        results = {kind: shared[kind](*given, rank_tokens=tokens) for kind in used}
        wanted = _check(results, y, rank, tokens)
        words = f"{tokens} tokens of each of {ranks} ranks"
        sides: dict[str, Callable[[], object]] = {}
        for kind in used:
            wire = wires[kind]
            form = sent_as(config, weights) if wire.quantises else Format.NONE
            sides[f"{kind} alone"] = partial(_travel, wire, given, y, form)
        for kind in used:
            sides[f"the layer by {kind}"] = partial(shared[kind], *given, rank_tokens=tokens)
        sides["the layer alone on the same rows"] = partial(alone, *of_all)
        rows_of = Given(x=x, weights=topk_weights, ids=ids, y=y, wanted=wanted)
        sides |= _of_peers(peers, rows_of, words, missing)
        for what, seconds in _in_turn(sides, rounds, device).items():
            yield f"{words}: {what}", seconds
        for wire in wires.values():
            wire.check()


def _travel(wire: Wire, given: tuple[Tensor, Tensor, Tensor], y: Tensor, form: Format) -> None:
    """Exchange tokens and sums."""
    x, topk_weights, ids = given
    wire.dispatch(x, ids, topk_weights, len(x), form)
    wire.combine(y, len(x))


def _of_peers(
    peers: Mapping[str, Peer], given: Given, words: str, missing: dict[str, str]
) -> dict[str, Callable[[], object]]:
    """
    Return what can be timed of each peer whose results are right on every rank; others are added to
    `missing`.
    """
    sides: dict[str, Callable[[], object]] = {}
    for name, peer in peers.items():
        if (why := ranks_peers.wrong(peer, given)) is not None:
            missing[f"{name}, {words}"] = why
            continue
        parts = {f"{name} alone": peer.travel(given), f"the layer by {name}": peer.layer(given)}
        sides |= {what: part for what, part in parts.items() if part is not None}
    return sides


def _tokens(
    case: Case, count: int, rank: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens of a rank, and their weights and experts; all experts are equally likely."""
    chance = torch.Generator(device).manual_seed(1000 * count + rank)
    x = torch.randn(count, case.hidden, device=device, generator=chance).bfloat16()
    scores = torch.rand(count, case.experts, device=device, generator=chance)
    weights, ids = scores.topk(case.top_k)
    return x, weights, ids.int()


def _check(results: dict[str, Tensor], y: Tensor, rank: int, tokens: int) -> Tensor:
    """
    Compare the results of all wires with each other, and with the sum of all ranks' results, which
    is returned.

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
    return wanted


def _times(call: Callable[[], object], rounds: int, device: torch.device) -> list[float]:
    """Return the seconds of a call in each round, those of the slowest rank."""
    return _in_turn({"": call}, rounds, device)[""]


def _in_turn(
    sides: Mapping[str, Callable[[], object]], rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """
    Return for each side the seconds of a call in each round, those of the slowest rank. Each round
    begins with another side, because what ran before has an effect on the next side.
    """
    clock = _graph_time if device.type == "cuda" else _host_time
    timed = {what: clock(call) for what, call in sides.items()}
    found: dict[str, list[float]] = {what: [] for what in sides}
    turns = deque(timed)
    for _ in range(rounds):
        for what in turns:
            dist.barrier()
            found[what].append(timed[what]())
        turns.rotate(-1)
    slowest = torch.tensor([*found.values()], dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return dict(zip(sides, slowest.tolist(), strict=True))


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
