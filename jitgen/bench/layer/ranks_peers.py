# SPDX-License-Identifier: Apache-2.0
"""
Other implementations of a layer that ranks of a host share, or of its exchange of rows alone, and
which of them can be made here.

*NCCL*: three all-gathers of tokens, their experts and weights, and a reduce-scatter of sums.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from jitgen.bench.layer import ranks_deepseek as deepseek
from jitgen.bench.layer import ranks_flashinfer as flashinfer
from jitgen.bench.layer.ranks_peer import Call, Given, Peer, Share
from jitgen.bench.peers import Unavailable, find_all
from jitgen.layer.reference import relative_error


class Nccl(Peer):
    """The collectives of torch, without a launch of jitgen's."""

    def travel(self, given: Given) -> Call:
        """Return three all-gathers and a reduce-scatter."""
        parts, out = (given.x, given.ids, given.weights), torch.empty_like(given.x)
        gathered = [each.new_empty(len(given.y), each.shape[1]) for each in parts]

        def call() -> Tensor:
            for whole, part in zip(gathered, parts, strict=True):
                dist.all_gather_into_tensor(whole, part)
            dist.reduce_scatter_tensor(out, given.y)
            return out

        return call

    def error(self, given: Given) -> float:
        """Compare the sums."""
        return relative_error(self.travel(given)(), given.wanted)


PEERS: dict[str, Callable[[Share], Peer]] = {
    "NCCL": lambda _: Nccl(),
    "FlashInfer one-sided": flashinfer.OneSided,
    "FlashInfer one-sided, FP8 tokens": flashinfer.OneSidedFp8,
    "FlashInfer push": flashinfer.Push,
    "DeepGEMM mega MoE": deepseek.Mega,
    "DeepEP intranode": deepseek.Intranode,
    "DeepEP low-latency": deepseek.LowLatency,
}
"""Every peer."""


def found(share: Share) -> tuple[dict[str, Peer], dict[str, str]]:
    """Return the peers that all ranks could make, and for each other one the reason."""
    peers: dict[str, Peer] = {}
    missing: dict[str, str] = {}
    for name in PEERS:
        made, why = find_all([name], partial(_made, share))
        if (reason := _first(why.get(name))) is not None:
            missing[name] = reason
        else:
            peers[name] = made[0]
    return peers, missing


def wrong(peer: Peer, given: Given) -> str | None:
    """Return why results of a peer are wrong on some rank; None: they are right on all."""
    errors, why = find_all(["results"], lambda _: peer.error(given))
    if errors and not errors[0] < peer.tolerance:
        why["results"] = f"its results are off by {errors[0]:.2e}"
    return _first(why.get("results"))


def _first(reason: str | None) -> str | None:
    """Return the first reason that a rank has; None: no rank has one."""
    reasons: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(reasons, reason)
    return next((each for each in reasons if each is not None), None)


def _made(share: Share, name: str) -> Peer:
    """
    Return a peer.

    Raises:
        Unavailable: There is no GPU.
    """
    if share.device.type != "cuda":
        raise Unavailable("it needs GPUs")
    return PEERS[name](share)
