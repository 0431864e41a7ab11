# SPDX-License-Identifier: Apache-2.0
"""Processes that share a layer with micro-batches: what each does, for tests to start."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import jitgen
from jitgen.errors import InputError
from jitgen.layer.chain import Chain
from jitgen.parallel import balance, connect, share
from jitgen.parallel.windows import Windows
from tests.moe_cases import make
from tests.ranks import given, part_of, told

MOST = 12
"""Tokens of a rank that windows are for, in all micro-batches of a call."""

COUNTS = ((12, 0, 7, 5), (3, 12, 0, 1), (0, 4, 2, 0), (1, 25, 0, 13))
"""Tokens of each rank: few take one pass; the last ones are more than windows are for."""

LIMIT_S, LATE_S = 2.0, 6.0


def bits(rank: int, ranks: int, form: str) -> None:
    """
    Compare micro-batches with calls without them, bit by bit, by windows and by collectives, and
    invariant ones with one rank that has all experts.
    """
    case = make(form, tokens=1)
    mine = part_of(case, rank, ranks)
    sizes: dict[str, Any] = {"hidden": case.config.hidden, "top_k": case.config.top_k}
    for kind, numerics, parts in (
        ("windows", None, 2),
        ("windows", None, 5),
        ("windows", "invariant", 3),
        ("collectives", None, 3),
    ):
        config = replace(case.config, numerics=numerics)
        whole = jitgen.MoELayer(config, case.weights)
        plain, several = (
            connect(
                dist.group.WORLD, device="cpu", kind=kind, numerics=numerics, max_tokens=MOST,
                micro_batches=number, **sizes,
            )
            for number in (1, parts)
        )  # fmt: skip
        layers = [
            jitgen.MoELayer(config, mine, max_tokens=MOST, group=wire) for wire in (plain, several)
        ]
        for number, counts in enumerate(COUNTS):
            x, weights, ids, shared, gate = given(case, rank, counts[rank], number)
            extra: dict[str, Tensor] = {} if number == 0 else {"shared": shared}
            extra |= {"shared_weights": gate} if number == 2 else {}
            into = {"out": torch.empty_like(x)} if number % 2 else {}
            wanted = layers[0](x, weights, ids, rank_tokens=max(counts), **extra)
            found = layers[1](x, weights, ids, rank_tokens=max(counts), **extra, **into)
            assert torch.equal(found, wanted), (kind, numerics, parts, number)
            if numerics is not None:
                assert torch.equal(found, whole(x, weights, ids, **extra)), number
        several.check()


def sizes_of_windows(rank: int, ranks: int) -> None:
    """Windows of many micro-batches are smaller; the workspace is for one of them."""
    case = make("bf16", tokens=1)
    sizes: dict[str, Any] = {"hidden": case.config.hidden, "top_k": case.config.top_k}
    found = []
    for parts in (1, 2, 4):
        wire = connect(
            dist.group.WORLD, device="cpu", max_tokens=MOST, micro_batches=parts, **sizes
        )
        layer = jitgen.MoELayer(
            case.config, part_of(case, rank, ranks), max_tokens=MOST, group=wire
        )
        assert isinstance(wire, Windows)
        assert layer.workspace is not None
        found.append((wire._memory[0].own.numel(), layer.workspace.max_tokens))
    every = found[0][0]
    assert found == [(every, ranks * 12), (every, ranks * 6), (every // 2, ranks * 3)]
    for wrong in (0, MOST + 1, 2.0):
        with pytest.raises(InputError, match=r"micro_batches: must be 1 to max_tokens, 12 \(got"):
            connect(dist.group.WORLD, device="cpu", max_tokens=MOST, micro_batches=wrong, **sizes)  # type: ignore[arg-type]


def memory_of_rows(rank: int, ranks: int) -> None:
    """
    Products write into the workspace, except for rows that an exchange reads beside the next ones.
    """
    case = make("block128", tokens=1)
    found: list[tuple[str, bool]] = []
    usual = Chain.expert_rows

    def noted(chain: Chain, *given: Any, **named: Any) -> Any:
        found.append((str(chain.config.numerics), given[2].y is None))
        return usual(chain, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Chain, "expert_rows", noted)
        for numerics in ("fast", "invariant"):
            config = replace(case.config, numerics=numerics)
            wire = connect(
                dist.group.WORLD, hidden=config.hidden, top_k=config.top_k, max_tokens=4,
                device="cpu", numerics=numerics, micro_batches=2, quantise=True,
            )  # fmt: skip
            layer = jitgen.MoELayer(config, part_of(case, rank, ranks), max_tokens=4, group=wire)
            layer(*given(case, rank, 4, 0)[:3])
    assert found == [("fast", True)] * 2 + [("invariant", True)] * 2


def in_places(rank: int, ranks: int) -> None:
    """Let experts have several places: invariant bits are those of one rank."""
    case = make("block128", tokens=1)
    config = replace(case.config, numerics="invariant")
    experts, replicas = config.experts, 2 * ranks - config.experts % ranks
    wire = connect(
        dist.group.WORLD, hidden=config.hidden, top_k=config.top_k, max_tokens=MOST, device="cpu",
        numerics="invariant", micro_batches=3,
    )  # fmt: skip
    several = balance([*range(experts)], ranks, replicas)
    layer = jitgen.MoELayer(
        config, part_of(case, rank, ranks), max_tokens=MOST, group=wire, expert_map=several
    )
    x, weights, ids, *_ = given(case, rank, MOST - 5 * rank % MOST, 3)
    assert torch.equal(
        layer(x, weights, ids), jitgen.MoELayer(config, case.weights)(x, weights, ids)
    )


def masking(rank: int, ranks: int) -> None:
    """
    Let the last rank be late in the second of three micro-batches: from there on the others go on
    without it, in every micro-batch, and it goes on alone; no one waits again.
    """
    case = make("bf16", tokens=1)
    config, last = case.config, ranks - 1
    whole, mine = jitgen.MoELayer(config, case.weights), part_of(case, rank, ranks)
    x, weights, ids, *_ = given(case, rank, MOST - 2 * rank, 0)
    first, count = share(config.experts, last, ranks)
    of_last = (ids >= first) & (ids < first + count)
    alone = ids.where(of_last if rank == last else ~of_last, -1)

    def connected(limit_s: float) -> jitgen.MoELayer:
        wire = connect(
            dist.group.WORLD, hidden=config.hidden, top_k=config.top_k, max_tokens=MOST,
            device="cpu", limit_s=limit_s, late="mask", micro_batches=3,
        )  # fmt: skip
        return jitgen.MoELayer(config, mine, max_tokens=MOST, group=wire)

    def require(layer: jitgen.MoELayer, experts: Tensor) -> None:
        wanted = whole(x, weights, experts).float()
        off = (layer(x, weights, ids).float() - wanted).norm() / wanted.norm().clamp_min(1e-9)
        assert off < 4e-3, (rank, off)

    require(connected(30.0), ids)  # compiles
    layer = connected(LIMIT_S)
    require(layer, ids)
    wire = layer.wire
    assert isinstance(wire, Windows)
    passed: list[int] = []
    send = wire.dispatch

    def late(*asked: Any) -> Any:
        passed.append(asked[5].pair)
        if rank == last and len(passed) == 2:
            time.sleep(LATE_S)
        return send(*asked)

    wire.dispatch = late  # type: ignore[method-assign]
    with told() as words:
        require(layer, alone)
        begin = time.monotonic()
        for _ in range(2):
            require(layer, alone)
        assert time.monotonic() - begin < LIMIT_S  # nothing waits
    assert passed == [0, 1, 0] * 3
    masked = {each.source: each for each in wire.check()}
    assert {*masked} == ({*range(last)} if rank == last else {last})
    assert all(each.was_told == (rank == last) for each in masked.values())
    assert len(words) == len(masked)
    del wire.dispatch
    dist.barrier()
    require(connected(30.0), ids)


def several(rank: int, ranks: int) -> None:
    """Run the checks that can share processes, because processes take seconds to start."""
    bits(rank, ranks, "block128")
    sizes_of_windows(rank, ranks)
    in_places(rank, ranks)
    masking(rank, ranks)
