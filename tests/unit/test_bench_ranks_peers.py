# SPDX-License-Identifier: Apache-2.0
"""Peers of a layer that ranks share, without a GPU: who is left out, and why."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from jitgen.bench.layer import ranks, ranks_deepseek, ranks_peers
from jitgen.bench.layer.ranks_peer import Call, Given, Peer, Share
from jitgen.bench.peers import Unavailable
from tests.ranks import run

SHARE = Share(
    case=ranks.CPU_CASE, most=8, device=torch.device("cpu"), weights=Any, alone=Any  # type: ignore[arg-type]
)  # fmt: skip


class Broken(Peer):
    """A peer that cannot be called."""

    def layer(self, given: Given) -> Call:
        """Raise."""
        raise OSError("no library")


class Layer(Peer):
    """A peer with a layer, whose results are off by a part of them."""

    def __init__(self, off: float) -> None:
        self._off = off

    def layer(self, given: Given) -> Call:
        """Return results that are off."""
        found = (given.wanted * (1 + self._off)).bfloat16()
        return lambda: found


def given() -> Given:
    """Return three tokens of one rank."""
    wanted = torch.randn(3, 256, generator=torch.Generator().manual_seed(0))
    x, ids = wanted.bfloat16(), torch.zeros(3, 2, dtype=torch.int32)
    return Given(x=x, weights=torch.ones(3, 2), ids=ids, y=x, wanted=wanted)


def test_peers_with_wrong_results_are_not_timed(tmp_path: Path) -> None:
    peers: dict[str, Peer] = {
        "right": Layer(0.0),
        "wrong": Layer(0.125),
        "no number": Layer(float("nan")),
    }
    peers |= {"broken": Broken()}
    found: dict[str, Any] = {}
    missing: dict[str, str] = {}

    def work(rank: int, count: int) -> None:
        found.update(ranks._of_peers(peers, given(), "3 tokens", missing))

    run(work, 1, tmp_path)

    assert [*found] == ["the layer by right"]
    assert missing == {
        "wrong, 3 tokens": "its results are off by 1.25e-01",
        "no number, 3 tokens": "its results are off by nan",
        "broken, 3 tokens": "OSError: no library",
    }


def test_a_peer_that_one_rank_cannot_make_is_left_out_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank could make it; the other one, whose message is faked, could not."""
    monkeypatch.setattr(ranks_peers, "_made", lambda share, name: Layer(0.0))
    monkeypatch.setattr(ranks_peers, "PEERS", {"a": Layer, "b": Layer})

    def gathered(reasons: list[str | None], mine: str | None) -> None:
        reasons[:] = [mine, next(others)]

    others = iter([None, "no NVLink"])
    monkeypatch.setattr(dist, "all_gather_object", gathered)
    found: list[tuple[dict[str, Peer], dict[str, str]]] = []
    run(lambda rank, count: found.append(ranks_peers.found(SHARE)), 1, tmp_path)

    ((peers, missing),) = found
    assert [*peers] == ["a"]
    assert missing == {"b": "no NVLink"}


def test_without_gpus_every_peer_is_left_out(tmp_path: Path) -> None:
    found: list[tuple[dict[str, Peer], dict[str, str]]] = []
    run(lambda rank, count: found.append(ranks_peers.found(SHARE)), 1, tmp_path)

    assert found == [({}, dict.fromkeys(ranks_peers.PEERS, "it needs GPUs"))]


def test_a_deep_gemm_without_the_layer_for_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deep_gemm", ModuleType("deep_gemm"))

    with pytest.raises(Unavailable, match="this deep_gemm has no fp8_mega_moe"):
        ranks_deepseek.Mega(SHARE)
