# SPDX-License-Identifier: Apache-2.0
"""Processes of one machine that share a layer of experts: what each does, for tests to start."""

from __future__ import annotations

import copy
import dataclasses
import errno
import gc
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

import jitgen
from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench.layer import ranks as bench
from jitgen.config.format import Format
from jitgen.errors import InputError, KernelMiss, PeerTimeout
from jitgen.layer.problems import sent_as
from jitgen.parallel import ExpertMap, Wire, balance, connect, memory, share, windows
from jitgen.parallel.windows import Windows
from jitgen.plans.plan import configs
from jitgen.runtime.session import current
from jitgen.settings import settings
from jitgen.verify import device
from tests.moe_cases import Case, make

MOST = 6
"""Tokens of a rank that windows are for."""

COUNTS = ((0, 3, 1, 6), (5, 0, 6, 2), (9, 14, 0, 1))
"""Tokens of each rank in the rounds; the last ones need several passes."""


def run(work: Callable[..., None], ranks: int, folder: Path, *arguments: Any) -> None:
    """Let `work` run in so many processes, one in this; it takes its rank and the arguments."""
    given = (work, ranks, str(folder / "meeting"), *arguments)
    if ranks == 1:
        _begin(0, *given)
    else:
        mp.spawn(_begin, given, nprocs=ranks)


def _begin(rank: int, work: Callable[..., None], ranks: int, meeting: str, *arguments: Any) -> None:
    if ranks > 1:
        torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=60),
    )
    work(rank, ranks, *arguments)
    gc.collect()  # what caught errors keep of the group, whose threads must end here
    dist.barrier()
    dist.destroy_process_group()


def part_of(case: Case, rank: int, ranks: int) -> jitgen.ExpertWeights:
    """Return the weights of a rank's experts."""
    first, count = share(case.config.experts, rank, ranks)
    weights = case.weights
    return weights.of({n: each[first : first + count] for n, each in weights.tensors.items()})


def given(case: Case, rank: int, count: int, seed: int) -> tuple[Tensor, ...]:
    """Return tokens, weights, experts, and a shared expert's rows and weights."""
    config, chance = case.config, torch.Generator().manual_seed(100 * seed + rank)
    x = torch.randn(count, config.hidden, generator=chance).bfloat16()
    scores = torch.rand(count, config.experts, generator=chance)
    weights, ids = scores.topk(config.top_k)
    shared = torch.randn(count, config.hidden, generator=chance).bfloat16()
    return x, weights, ids, shared, torch.rand(count, generator=chance)


def layers(rank: int, ranks: int, form: str) -> None:
    """Compare layers of all ranks with one that has all experts."""
    for kind in ("windows", "collectives"):
        _layers(rank, ranks, form, kind)


def _layers(rank: int, ranks: int, form: str, kind: str) -> None:
    case = make(form, tokens=1)
    config, sizes = case.config, {"hidden": case.config.hidden, "top_k": case.config.top_k}
    wire = connect(dist.group.WORLD, max_tokens=MOST, device="cpu", kind=kind, **sizes)
    layer = jitgen.MoELayer(config, part_of(case, rank, ranks), max_tokens=MOST, group=wire)
    whole = jitgen.MoELayer(config, case.weights)
    for number, counts in enumerate(COUNTS):
        x, weights, ids, shared, gate = given(case, rank, counts[rank], number)
        most = max(counts[:ranks]) if number else None
        out = torch.empty_like(x)
        extra: dict[str, Tensor] = {} if number == 0 else {"shared": shared}
        extra |= {"shared_weights": gate} if number == 2 else {}
        if most is None or most <= MOST:
            found = layer(x, weights, ids, rank_tokens=most, out=out, **extra)
            assert found is out
        else:
            found = layer(x, weights, ids, rank_tokens=most, **extra)
        wanted = whole(x, weights, ids, **extra)
        off = (found.float() - wanted.float()).norm() / wanted.float().norm().clamp_min(1e-9)
        assert found.shape == wanted.shape
        assert off < 4e-3, (form, kind, number, off)
    wire.check()


def traced(rank: int, ranks: int) -> None:
    """
    Compile two layers that share a wire into one graph: two operations in their order, also where
    a result is not used, and for other numbers of tokens, none included.
    """
    from torch._dynamo.testing import CompileCounterWithBackend

    case = make("bf16", tokens=1)
    wire = _connected(case, "windows")
    mine = part_of(case, rank, ranks)
    first, second = (
        jitgen.MoELayer(case.config, mine, max_tokens=MOST, group=wire) for _ in range(2)
    )
    second = copy.deepcopy(second)

    def model(x: Tensor, weights: Tensor, ids: Tensor, shared: Tensor) -> Tensor:
        first(x * 2, weights, ids)
        return second(x, weights, ids, shared=shared, rank_tokens=MOST) + 1

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    with torch.no_grad():
        for number, count in enumerate((3 - rank, 4 + rank, 2 * rank)):
            x, weights, ids, shared, _ = given(case, rank, count, number)
            assert torch.equal(compiled(x, weights, ids, shared), model(x, weights, ids, shared))
        out = torch.empty_like(x)
        into = torch.compile(first, fullgraph=True, backend="aot_eager")
        assert into(x, weights, ids, out=out) is out
        assert torch.equal(out, first(x, weights, ids))
    nodes = [str(node.target) for node in counter.graphs[0].graph.nodes]
    assert nodes.count("jitgen.moe_of_ranks.default") == 2, nodes
    config = dataclasses.replace(case.config, numerics="invariant")
    layer = jitgen.MoELayer(config, mine, max_tokens=MOST, group=dist.group.WORLD)
    found = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, weights, ids)
    assert torch.equal(found, jitgen.MoELayer(config, case.weights)(x, weights, ids))


def moves(rank: int, ranks: int, *forms: str) -> None:
    """Let experts have other places, while the layer serves."""
    for form in forms:
        _moves(rank, ranks, form)


def _moves(rank: int, ranks: int, form: str) -> None:
    case = make(form, tokens=1)
    experts = case.config.experts
    maps = [
        balance([*range(experts)], ranks, replicas=2),
        balance([*range(experts, 0, -1)], ranks, replicas=2),
    ]
    first, count = share(experts, rank, ranks)
    layer = jitgen.MoELayer(
        dataclasses.replace(case.config, first_expert=first, local_experts=count),
        part_of(case, rank, ranks),
        max_tokens=MOST,
        group=_connected(case, "windows"),
        expert_map=maps[0],
    )
    whole = jitgen.MoELayer(case.config, case.weights)
    addresses = [each.data_ptr() for each in layer.weights.tensors.values()]

    def check(expert_map: ExpertMap, seed: int) -> None:
        x, weights, ids, shared, _ = given(case, rank, 5 - rank, seed)
        found = layer(x, weights, ids, shared=shared, rank_tokens=5)
        wanted = whole(x, weights, ids, shared=shared).float()
        assert (found.float() - wanted).norm() < 4e-3 * wanted.norm()
        assert layer.expert_map == expert_map
        for name, each in layer.weights.tensors.items():
            for place, expert in enumerate(expert_map.of_rank(rank)):
                mine, same = (_bits(t) for t in (each[place], case.weights.tensors[name][expert]))
                assert torch.equal(mine, same), (name, place, expert)

    check(maps[0], 0)
    for number, expert_map in enumerate((maps[1], maps[1], maps[0]), start=1):
        before = layer.expert_map
        assert before is not None
        move = layer.move(expert_map)
        check(before, number)
        with pytest.raises(InputError, match="finish\\(\\) the layer's last move first"):
            layer.move(expert_map)
        move.finish()
        move.finish()
        check(expert_map, number)
    assert addresses == [each.data_ptr() for each in layer.weights.tensors.values()]
    for wrong, pattern in (
        (maps[rank % 2], "must be the same on every rank"),
        (balance([1] * experts, ranks, replicas=4), "must have experts, ranks, places"),
        (7, "must be a jitgen.parallel.ExpertMap"),
    ):
        with pytest.raises(InputError, match=pattern):
            layer.move(wrong)  # type: ignore[arg-type]
    check(maps[0], 9)


def _bits(values: Tensor) -> Tensor:
    return values.flatten().view(torch.uint8)


def measured(rank: int, ranks: int) -> None:
    """Let a bench find wrong results before it times anything."""
    right = torch.randn(2 * ranks, 8)
    mine = right[2 * rank : 2 * rank + 2]
    bench._check({"windows": mine, "collectives": mine}, right, rank, 2)
    for found, pattern in (
        ({"windows": mine, "collectives": mine + 1}, "windows and collectives differ"),
        ({"windows": mine * 1.1, "collectives": mine * 1.1}, "are off by 1.00e-01"),
    ):
        with pytest.raises(WrongResult, match=pattern):
            bench._check(found, right, rank, 2)
    assert len(bench._times(lambda: None, 3, torch.device("cpu"))) == 3


def warm(rank: int, ranks: int, cache: str) -> None:
    """Call layers in every way where only what was prewarmed can be loaded."""
    case = make("bf16", tokens=1)
    with jitgen.settings.scope(cache_dir=cache, on_miss="error"):
        wire = _connected(case, "windows")
        layer = jitgen.MoELayer(
            case.config, part_of(case, rank, ranks), max_tokens=MOST, group=wire
        )
        for number, count in enumerate((rank, MOST, 2 * MOST + 1)):
            x, weights, ids, shared, gate = given(case, rank, count, number)
            layer(x, weights, ids, rank_tokens=2 * MOST + 1)
            layer(x, weights, ids, shared=shared, rank_tokens=2 * MOST + 1)
            layer(x, weights, ids, shared=shared, shared_weights=gate, rank_tokens=2 * MOST + 1)
        wire.check()


def calls(rank: int, ranks: int) -> None:
    """Call `jitgen.moe` with what connects ranks, also without a token."""
    case = make("bf16", tokens=1)
    wire, mine = _connected(case, "windows"), part_of(case, rank, ranks)
    layer = jitgen.MoELayer(case.config, mine, max_tokens=MOST, group=wire)
    experts, named = case.config.experts, {"w13": mine.w13, "w2": mine.w2}
    for number in range(2):
        x, weights, ids, shared, _ = given(case, rank, 5 * ((rank + number) % 2), number)
        pairs = {"topk_weights": weights, "topk_ids": ids, "shared": shared}
        found = jitgen.moe(x, **named, **pairs, experts=experts, group=wire, rank_tokens=5)
        assert torch.equal(found, layer(x, **pairs))
    wrong: dict[str, Any]
    for wrong, pattern in (
        ({"group": dist.group.WORLD, "experts": experts}, "group: must be what jitgen.parallel"),
        ({"group": wire}, "experts: must be given with a group"),
        ({"group": wire, "experts": experts + 2}, "w13: must have 4 experts, which jitgen.par"),
        (
            {"group": wire, "experts": experts, "numerics": "invariant"},
            "group: must be connected with",
        ),
        ({"experts": experts, "rank_tokens": 5}, "rank_tokens: must be None without a group"),
    ):
        with pytest.raises(InputError, match=pattern):
            jitgen.moe(x, **named, **pairs, **wrong)


def _connected(case: Case, kind: str) -> Wire:
    """Connect the ranks."""
    config = case.config
    sizes = {"hidden": config.hidden, "top_k": config.top_k, "max_tokens": MOST}
    return connect(dist.group.WORLD, device="cpu", kind=kind, **sizes)


def invariant(rank: int, ranks: int, form: str) -> None:
    """Compare layers of all ranks with one that has all experts, bit by bit."""
    case = make(form, tokens=1)
    config = dataclasses.replace(case.config, numerics="invariant", top_k=4)
    case = dataclasses.replace(case, config=config)
    sizes = {"hidden": config.hidden, "top_k": config.top_k, "max_tokens": MOST}
    whole, mine = jitgen.MoELayer(config, case.weights), part_of(case, rank, ranks)
    for kind in ("windows", "collectives"):
        wire = connect(dist.group.WORLD, device="cpu", kind=kind, numerics="invariant", **sizes)  # type: ignore[arg-type]
        layer = jitgen.MoELayer(config, mine, max_tokens=MOST, group=wire)
        for number, counts in enumerate(COUNTS):
            x, weights, ids, shared, gate = given(case, rank, counts[rank], number)
            extra: dict[str, Tensor] = {} if number == 0 else {"shared": shared}
            extra |= {"shared_weights": gate} if number == 2 else {}
            found = layer(x, weights, ids, rank_tokens=max(counts), **extra)
            wanted = whole(x, weights, ids, **extra)
            assert torch.equal(found, wanted), (form, kind, number)
            assert torch.equal(found[:1], whole(x[:1], weights[:1], ids[:1], **_first(extra)))
            named = {n: getattr(mine, n) for n in ("w13", "w2", "w13_scale", "w2_scale")}
            called = jitgen.moe(
                x, **named, topk_weights=weights, topk_ids=ids, **extra, experts=config.experts,
                numerics="invariant", group=wire, rank_tokens=max(counts),
            )  # fmt: skip
            assert torch.equal(called, wanted), (form, kind, number)
        _in_places(rank, case, mine, wire)
    wire = connect(dist.group.WORLD, device="cpu", **sizes)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="group: must be connected with numerics"):
        jitgen.MoELayer(config, mine, max_tokens=MOST, group=wire)


def quantised(rank: int, ranks: int, *forms: str) -> None:
    """
    Compare layers whose tokens are quantised before they are sent with those whose tokens are not,
    bit by bit: with sums and with rows of experts, in one pass, in several and in micro-batches,
    and with experts in several places.
    """
    for form, numerics in itertools.product(forms, ("fast", "invariant")):
        case = make(form, tokens=1)
        config = dataclasses.replace(case.config, numerics=numerics)
        mine = part_of(case, rank, ranks)
        sizes: dict[str, Any] = {"hidden": config.hidden, "top_k": config.top_k}
        sizes |= {"max_tokens": MOST, "device": "cpu", "numerics": numerics}
        usual, sent, parts = (
            connect(dist.group.WORLD, kind="windows", quantise=each, micro_batches=number, **sizes)
            for each, number in ((False, 1), (True, 1), (True, 3))
        )
        wanted_of = jitgen.MoELayer(config, mine, max_tokens=MOST, group=usual)
        few = dataclasses.replace(config, chunk_tokens=2 * ranks)
        replicas = 2 * ranks - config.experts % ranks if ranks > 1 else 0
        places = balance([*range(config.experts)], ranks, replicas)
        layers = [
            jitgen.MoELayer(each, mine, max_tokens=MOST, group=wire)
            for each, wire in ((config, sent), (few, sent), (config, parts), (few, parts))
        ]
        if numerics == "invariant":
            layers.append(
                jitgen.MoELayer(config, mine, max_tokens=MOST, group=sent, expert_map=places)
            )
        for number, counts in enumerate(COUNTS):
            x, weights, ids, shared, gate = given(case, rank, counts[rank], number)
            extra: dict[str, Tensor] = {} if number == 0 else {"shared": shared}
            extra |= {"shared_weights": gate} if number == 2 else {}
            wanted = wanted_of(x, weights, ids, rank_tokens=max(counts), **extra)
            for layer in layers:
                found = layer(x, weights, ids, rank_tokens=max(counts), **extra)
                assert torch.equal(found, wanted), (form, numerics, number)
        zeros = dataclasses.replace(config, zero_experts=1)  # which need the tokens themselves
        assert sent_as(zeros, mine) is Format.NONE
        wire = connect(dist.group.WORLD, kind="collectives", quantise=True, **sizes)
        assert not wire.quantises
        with pytest.raises(InputError, match="form: must be none: collectives send bfloat16"):
            wire.dispatch(x, ids, weights, MOST, Format(form.removeprefix("exact1_")))


def _in_places(rank: int, case: Case, mine: jitgen.ExpertWeights, wire: Wire) -> None:
    """Let experts have several places, and passes few tokens: bits are those of one rank still."""
    config = dataclasses.replace(case.config, zero_experts=2)
    whole = jitgen.MoELayer(config, case.weights)
    experts, replicas = config.experts, 2 * wire.ranks - config.experts % wire.ranks
    maps = [balance(loads, wire.ranks, replicas) for loads in ([*range(experts)], [1] * experts)]
    few = dataclasses.replace(config, chunk_tokens=2 * wire.ranks)
    layer = jitgen.MoELayer(few, mine, max_tokens=MOST, group=wire, expert_map=maps[0])
    x, weights, ids, *_ = given(case, rank, 5 - rank % 2, 7)
    ids[::2, 1] = experts + 1  # without weights
    wanted = whole(x, weights, ids)
    assert torch.equal(layer(x, weights, ids), wanted)
    layer.move(maps[1]).finish()
    assert torch.equal(layer(x, weights, ids), wanted)


def _first(extra: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: each[:1] for name, each in extra.items()}


def emulated(rank: int, ranks: int, form: str) -> None:
    """
    Compare layers on an emulated GPU that quantise tokens before and after they are sent, and
    launches that sort the pairs as they arrive with those that sort them later.
    """
    case = make(form, tokens=1)
    sizes: dict[str, Any] = {"hidden": case.config.hidden, "top_k": case.config.top_k}
    sizes |= {"max_tokens": MOST, "device": "cpu", "kind": "windows"}
    wires = [connect(dist.group.WORLD, quantise=each, **sizes) for each in (False, True)]
    with device("sm_90a") as launches:
        layers = [
            jitgen.MoELayer(case.config, part_of(case, rank, ranks), max_tokens=MOST, group=wire)
            for wire in wires
        ]
        x, weights, ids, *_ = given(case, rank, 3, 1)
        usual, sent = (layer(x, weights, ids) for layer in layers)
        few = len(launches)
        for layer in layers:
            layer._made = dataclasses.replace(layer._made, joins=False)
        later = [layer(x, weights, ids) for layer in layers]
    assert usual.float().norm() > 1
    assert all(torch.equal(usual, each) for each in (sent, *later))
    assert len(launches) == 2 * few + 2


def planned(rank: int, ranks: int, folder: str) -> None:
    """Let kernels of ranks that send bfloat16 be all that there is, for ranks that quantise."""
    case = make("block128", tokens=1)
    mine = part_of(case, rank, ranks)
    blank = jitgen.MoELayer(case.config, mine)
    layer = jitgen.MoELayer(case.config, mine, max_tokens=2, group=dist.group.WORLD)
    x, weights, ids, *_ = given(case, rank, 2, 1)
    kernels = {
        quantise: configs(blank.plan(2, "cpu", num_ranks=ranks, quantise=quantise), "cpu")
        for quantise in (None, False, True)
    }
    assert {*kernels[None]} == {*kernels[False]} | {*kernels[True]}
    assert {*layer.configs("cpu")} == {*kernels[True]}
    with settings.scope(cache_dir=folder, on_miss="error"):
        current.get().reset()  # kernels that other tests have loaded into this process
        jitgen.prewarm([each for each in kernels[False] if each.op == "dispatch"], arch="cpu")
        with pytest.raises(KernelMiss, match="dispatch_bf16_block128_cpu"):
            layer(x, weights, ids)


def by_flags(rank: int, ranks: int) -> None:
    """Let windows on an emulated GPU have flags for many tokens alone."""
    group: Any = dist.group.WORLD
    sizes = (ranks, 64, 2)
    every = (*Windows.nbytes(*sizes, 2)[:2], *Windows.nbytes_by_flags(*sizes, 4))
    made = [memory.shared(nbytes, group, torch.device("cpu")) for nbytes in every]
    assert not any(isinstance(each, str) for each in made)
    tokens_of, sums_of, *many = made
    wire = Windows(group, tokens_of, sums_of, 4, 1.0, flags_from=3, by_flags=tuple(many))  # type: ignore[arg-type]
    has_flags = []

    def noted(call: Callable[..., Any], place: int) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            has_flags.append(given[place].by_flags)
            return call(*given, **named)

        return wrapped

    rooms = (2, 3, 4, 1)
    with pytest.MonkeyPatch.context() as patch, device("sm_90a"):
        for name, place in (("dispatch", 3), ("combine_ranks", 3)):
            patch.setattr(windows, name, noted(getattr(windows, name), place))
        for number, room in enumerate(rooms):
            x = torch.full((room, 64), 1.0 + number).bfloat16()
            for form in (Format.NONE, Format.ROW):
                ids, weights = torch.zeros(room, 2, dtype=torch.int32), torch.ones(room, 2)
                tokens = wire.dispatch(x, ids, weights, room, form)
                assert torch.equal(tokens.topk_weights, weights)
                assert torch.equal(wire.combine(x, room), x)
                assert form is Format.ROW or torch.equal(tokens.x, x)
    assert has_flags == [room >= 3 for room in rooms for _ in range(4)]
    wire.check()


def several(rank: int, ranks: int) -> None:
    """Run the checks that can share processes, because processes take seconds to start."""
    refused(rank, ranks)
    layers(rank, ranks, "block128")
    invariant(rank, ranks, "block128")
    quantised(rank, ranks, "block128")
    calls(rank, ranks)
    same_bits(rank, ranks)
    moves(rank, ranks, "block128")
    vllm_ranks(rank, ranks)
    sglang_ranks(rank, ranks)
    micro_batches(rank, ranks)
    masking(rank, ranks)
    late(rank, ranks)
    no_room(rank)


def masking(rank: int, ranks: int) -> None:
    """
    Let the last rank be late: the others mask it, are told once, and wait no more. It is told, too,
    has its own experts' share, and comes back with new windows.
    """
    case = make("bf16", tokens=1)
    config, last = case.config, ranks - 1
    sizes = {"hidden": config.hidden, "top_k": config.top_k, "max_tokens": MOST}
    whole, mine = jitgen.MoELayer(config, case.weights), part_of(case, rank, ranks)
    x, weights, ids, *_ = given(case, rank, 3 - rank % 2, 0)

    def again(late: bool) -> jitgen.MoELayer:
        wire = connect(
            dist.group.WORLD, device="cpu", limit_s=2.0 if late else 30.0, late="mask", **sizes
        )  # type: ignore[arg-type]
        return jitgen.MoELayer(config, mine, max_tokens=MOST, group=wire)

    def require(layer: jitgen.MoELayer, left_out: tuple[int, ...]) -> None:
        homes = torch.empty(config.experts, dtype=torch.int64)
        for each in range(ranks):
            first, count = share(config.experts, each, ranks)
            homes[first : first + count] = each
        is_out = torch.isin(homes[ids.long()], torch.tensor(left_out, dtype=torch.int64))
        wanted = whole(x, weights, ids.where(~is_out, -1)).float()
        off = (layer(x, weights, ids).float() - wanted).norm() / wanted.norm().clamp_min(1e-9)
        assert off < 4e-3, (rank, left_out, off)

    again(late=False)(x, weights, ids)  # compiles
    layer = again(late=True)
    require(layer, ())
    others = tuple(each for each in range(ranks) if each != last)
    with told() as words:
        if rank == last:
            time.sleep(6.0)
            require(layer, others)
        for _ in range(3 * (rank != last)):
            begin = time.monotonic()
            require(layer, (last,))
        assert rank == last or time.monotonic() - begin < 2.0  # nothing waits
    (wire,) = (each for each in [layer.wire] if each is not None)
    masked = {each.source: each for each in wire.check()}
    assert {*masked} == ({*others} if rank == last else {last})
    assert all((each.was_told, each.number) == (rank == last, 2) for each in masked.values())
    assert len(words) == len(masked)
    assert f"rank {rank} masks rank {min(masked)} from round 2 on" in words[0]
    dist.barrier()
    layer = again(late=False)
    require(layer, ())
    require(layer, ())


@contextmanager
def told() -> Iterator[list[str]]:
    """Collect what is warned of."""
    words: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            words.append(record.getMessage())

    handler = Collect()
    logging.getLogger("jitgen").addHandler(handler)
    yield words
    logging.getLogger("jitgen").removeHandler(handler)


def dying(rank: int, ranks: int, folder: str) -> None:
    """Let the last rank end without a word after a round: the others go on without it."""
    wire = connect(
        dist.group.WORLD, hidden=64, top_k=1, max_tokens=2, device="cpu", limit_s=2.0, late="mask"
    )
    x = torch.full((2, 64), 1.0 + rank).bfloat16()
    ids, ones = torch.zeros(2, 1, dtype=torch.int32), torch.ones(2, 1)
    for number in range(1, 4):
        if (rank, number) == (ranks - 1, 3):
            os._exit(0)
        tokens = wire.dispatch(x, ids, ones, 2)
        found = wire.combine(tokens.x, 2)
        count = ranks if number < 3 else ranks - 1
        assert torch.equal(found, x * count), (rank, number, found)
    assert [each.source for each in wire.check()] == [ranks - 1]
    Path(folder, f"done-{rank}").touch()
    os._exit(0)  # the group has lost a rank: a barrier of all would wait for it


def no_room(rank: int) -> None:
    """Let the last rank's memory be full: no rank has windows, and each says why."""

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    sizes = {"hidden": 64, "top_k": 1, "max_tokens": 2}
    with pytest.MonkeyPatch.context() as patch:
        if rank:
            patch.setattr("jitgen.parallel.memory.os.posix_fallocate", full)
        why = "No space left" if rank else "another rank cannot share its memory"
        with pytest.raises(InputError, match=f"kind: windows cannot be had: .*{why}"):
            connect(dist.group.WORLD, device="cpu", kind="windows", **sizes)  # type: ignore[arg-type]


def same_bits(rank: int, ranks: int) -> None:
    """Compare what windows and collectives give, bit by bit; layers may share what connects."""
    case = make("bf16", tokens=1)
    found = []
    x, weights, ids, shared, _ = given(case, rank, 3 - rank, 0)
    for kind in ("windows", "collectives"):
        wire = connect(
            dist.group.WORLD, hidden=case.config.hidden, top_k=case.config.top_k, max_tokens=MOST,
            device="cpu", kind=kind,
        )  # fmt: skip
        mine = part_of(case, rank, ranks)
        first, second = (
            jitgen.MoELayer(case.config, mine, max_tokens=MOST, group=wire) for _ in range(2)
        )
        found.append(second(first(x, weights, ids), weights, ids, shared=shared))
    assert torch.equal(*found)


def vllm_ranks(rank: int, ranks: int) -> None:
    """Compare layers whose tokens travel through vLLM's interface with one that has all experts."""
    from tests import vllm_ranks  # which imports this

    vllm_ranks.work(rank, ranks)


def sglang_ranks(rank: int, ranks: int) -> None:
    """Likewise through SGLang's interface."""
    from tests import sglang_ranks  # which imports this

    sglang_ranks.work(rank, ranks)


def micro_batches(rank: int, ranks: int) -> None:
    """Compare calls of several micro-batches with calls of one, and let a rank be late in one."""
    from tests import ranks_micro  # likewise

    ranks_micro.several(rank, ranks)


def late(rank: int, ranks: int) -> None:
    """Let the last rank stay away: the others say whom they waited for."""
    wire = connect(
        dist.group.WORLD, hidden=64, top_k=1, max_tokens=2, device="cpu", limit_s=0.2
    )  # fmt: skip
    if rank == 0:
        tokens = torch.zeros(1, 64, dtype=torch.bfloat16)
        one = torch.zeros(1, 1)
        with pytest.raises(PeerTimeout, match="rank 0 waited for rank 1 in dispatch") as caught:
            wire.dispatch(tokens, one.int(), one, 1)
        assert (caught.value.rank, caught.value.source, caught.value.number) == (0, 1, 1)
        with pytest.raises(PeerTimeout):
            wire.check()


def refused(rank: int, ranks: int) -> None:
    """Give what is wrong: every rank refuses it before it sends anything."""
    case = make("bf16", tokens=1)
    mine = part_of(case, rank, ranks)
    group = dist.group.WORLD
    layer = jitgen.MoELayer(case.config, mine, max_tokens=MOST, group=group)
    x, weights, ids, *_ = given(case, rank, 2, 0)
    for wrong, pattern in (
        ({"rank_tokens": 1}, "rank_tokens: must be at least 2"),
        ({"sorting": jitgen.sort_pairs(ids.int(), experts=case.config.experts)}, "sorting: must"),
        ({"shared_weights": torch.ones(2)}, "shared_weights: must be None without shared"),
    ):
        with pytest.raises(InputError, match=pattern):
            layer(x, weights, ids, **wrong)  # type: ignore[arg-type]
    rows = torch.cat([x, x])
    with pytest.raises(InputError, match="out: must not share memory with x"):
        layer(rows[:2], weights, ids, out=rows[1:3])
    with pytest.raises(InputError, match="x: must not require a gradient"):
        layer(x.clone().requires_grad_(), weights, ids)
    alone = jitgen.MoELayer(case.config, case.weights)
    with pytest.raises(InputError, match="rank_tokens: must be None without a group"):
        alone(x, weights, ids, rank_tokens=4)
    some = {"expert_map": balance([1] * case.config.experts, 2, 1)}
    for config, options, pattern in (
        (case.config, some, "expert_map: must be None without a group"),
        (case.config, {"expert_map": 7, "group": group}, "expert_map: must be a jitgen.parallel"),
        (case.config, {"expert_map": balance([1], 1), "group": group}, "expert_map: must be for"),
        (
            dataclasses.replace(case.config, first_expert=1, local_experts=3),
            {**some, "group": group},
            "config: must be of the whole layer, or of the rank's share, 3 experts",
        ),
    ):
        with pytest.raises(InputError, match=pattern):
            jitgen.MoELayer(config, mine, max_tokens=MOST, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="weights: must be the 3 experts from"):
        jitgen.MoELayer(case.config, case.weights, max_tokens=MOST, group=group, **some)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="expert_map: must be given to MoELayer first"):
        layer.move(balance([1] * case.config.experts, 2))
    with pytest.raises(InputError, match="max_tokens: must be given with a group"):
        jitgen.MoELayer(case.config, mine, group=group)
    with pytest.raises(InputError, match="group: must be a group of"):
        jitgen.MoELayer(case.config, mine, max_tokens=MOST, group=7)  # type: ignore[arg-type]
    wrongs = [("kind", "tcp"), ("hidden", 6), ("top_k", 33), ("max_tokens", 0)]
    wrongs += [("late", "wait"), ("numerics", "exact"), ("quantise", 1), ("flags_from", 1)]
    wrongs += [("limit_s", True), ("micro_batches", True), ("flags_from", True)]
    for name, value in [*wrongs, ("flags_from", 2)]:  # on a CPU
        sizes = {"hidden": 64, "top_k": 1, "max_tokens": 2, name: value}
        with pytest.raises(InputError, match=f"{name}: must be"):
            connect(group, device="cpu", **sizes)  # type: ignore[arg-type]
    sizes = {"hidden": 64, "top_k": 1, "max_tokens": 2, "flags_from": 2}
    for wrong, reason in (
        ({"kind": "collectives"}, "collectives"),
        ({"late": "mask"}, "late='mask' or invariant"),
        ({"numerics": "invariant"}, "late='mask' or invariant"),
        ({"micro_batches": 2}, "micro-batches"),
    ):
        with pytest.raises(InputError, match=f"flags_from: must be None with {reason}"):
            connect(group, device="cpu", **sizes, **wrong)  # type: ignore[arg-type]
    for name, value in (("kind", "collectives"), ("numerics", "invariant")):
        with pytest.raises(InputError, match="late: must be fail with"):
            connect(
                group, hidden=64, top_k=1, max_tokens=2, device="cpu", late="mask", **{name: value}
            )  # type: ignore[arg-type]
