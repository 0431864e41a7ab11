# SPDX-License-Identifier: Apache-2.0
"""What a peer of a layer that ranks share is given, and what it has."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from jitgen.bench.layer.cases import Case
from jitgen.layer.module import MoELayer
from jitgen.layer.reference import relative_error
from jitgen.layer.weights import ExpertWeights
from jitgen.support.frozen import frozen

Call = Callable[[], Tensor]
"""Enqueues the work of a rank on the current stream and returns its tokens' results."""

TOLERANCE, COARSE = 1e-2, 5e-2
"""Tolerance of results, and of those that are rounded to FP8 otherwise than jitgen's are."""


@frozen
class Share:
    """
    What a rank has of a layer.

    Attributes:
        case: Sizes of the layer, with the experts of all ranks.
        most: Most tokens of a rank.
        device: The rank's device.
        weights: FP8 weights with scales of blocks, those of the rank's experts.
        alone: The launches of the rank's experts, without an exchange.
    """

    case: Case
    most: int
    device: torch.device
    weights: ExpertWeights
    alone: MoELayer


@frozen
class Given:
    """
    What a rank computes with.

    Attributes:
        x: (T, H) bfloat16, as many tokens on each rank.
        weights: (T, k) float32.
        ids: (T, k) int32, of all ranks' experts.
        y: (ranks * T, H) bfloat16: for each token of all ranks what the rank's experts add to it.
        wanted: (T, H) float32, the layer's results.
    """

    x: Tensor
    weights: Tensor
    ids: Tensor
    y: Tensor
    wanted: Tensor


class Peer:
    """
    A peer on one rank; all ranks make it together.

    Attributes:
        tolerance: How far its results may be off.
        local_experts: Experts of a rank.
    """

    tolerance = TOLERANCE
    local_experts: int

    def travel(self, given: Given) -> Call | None:
        """
        Return the exchange alone, of tokens and of results; None if the peer has no such part.
        """

    def layer(self, given: Given) -> Call | None:
        """Return the whole layer; None if the peer is only an exchange."""

    def error(self, given: Given) -> float:
        """
        Return the relative error of its results: those of the layer, if it has one; otherwise of
        the tokens that it returns if ranks send back what they received.
        """
        if (call := self.layer(given)) is not None:
            return relative_error(call(), given.wanted)
        return relative_error(self.returned(given), given.x.float() * self.copies(given))

    def returned(self, given: Given) -> Tensor:
        """Return tokens that were sent back as they came, (T, H)."""
        raise NotImplementedError

    def copies(self, given: Given) -> Tensor:
        """Return how often a token comes back, (T, 1): from each rank with one of its experts."""
        ranks = torch.arange(dist.get_world_size(), device=given.ids.device)
        owners = given.ids // self.local_experts
        return (owners.unsqueeze(-1) == ranks).any(1).sum(-1, keepdim=True)
