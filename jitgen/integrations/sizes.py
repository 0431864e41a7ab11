# SPDX-License-Identifier: Apache-2.0
"""
The sizes of a layer, which an engine knows before its weights exist, and the kernels for these
sizes.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from jitgen.config import Arch
from jitgen.config.config import SCALE_BLOCK
from jitgen.formats.protocol import ceil_div
from jitgen.layer import plan as plans
from jitgen.layer.chain import Chain
from jitgen.layer.config import MoEConfig
from jitgen.layer.weights import BLOCK128, NONE, ROW, ExpertWeights
from jitgen.plans.plan import Plan
from jitgen.plans.prewarm import prewarm
from jitgen.support.frozen import frozen
from jitgen.targets.devices import default_arch

_logger = logging.getLogger(__name__)


@frozen
class Sizes:
    """
    The sizes and formats of a layer, without its weights.

    Attributes:
        hidden: Columns of a token.
        intermediate: Columns between the products, on this rank.
        experts: Experts of the whole layer.
        local_experts: Experts on this rank.
        top_k: Number of experts of a token.
        form: Scales of quantised tokens: ``block128`` or ``row`` for FP8 weights with scales for
            each 128 x 128 block or each row; ``none`` for bfloat16 weights.
        gate: Fields of `MoEConfig` for the activation, with their values.
        has_bias: Whether products have biases.
    """

    hidden: int
    intermediate: int
    experts: int
    local_experts: int
    top_k: int
    form: str = NONE
    gate: tuple[tuple[str, Any], ...] = ()
    has_bias: bool = False

    def plan(self, max_tokens: int, name: str = "engine") -> Plan:
        """Return the plan of the layer for at most `max_tokens` tokens at once."""
        config = MoEConfig(
            hidden=self.hidden,
            intermediate=self.intermediate,
            experts=max(self.experts, self.top_k),
            local_experts=self.local_experts,
            top_k=self.top_k,
            **dict(self.gate),
        )
        chain = Chain(config=config, weights=self._weights(config.is_gated))
        return plans.of(chain, max_tokens, None, name=name)

    def _weights(self, is_gated: bool) -> ExpertWeights:
        """Return weights without memory, which is enough for a plan."""
        found: dict[str, Any] = {}
        shapes = {
            "w13": ((1 + is_gated) * self.intermediate, self.hidden),
            "w2": (self.hidden, self.intermediate),
        }
        dtype = torch.bfloat16 if self.form == NONE else torch.float8_e4m3fn
        for name, (n, k) in shapes.items():
            shape = (self.local_experts, n, k)
            found[name] = torch.empty(shape, dtype=dtype, device="meta")
            sizes = {
                BLOCK128: (ceil_div(n, SCALE_BLOCK), ceil_div(k, SCALE_BLOCK)),
                ROW: (n,),
            }
            if self.form in sizes:
                scales = (self.local_experts, *sizes[self.form])
                found[f"{name}_scale"] = torch.empty(scales, device="meta")
            if self.has_bias:
                found[f"{name}_bias"] = torch.empty(self.local_experts, n, device="meta")
        return ExpertWeights(**found)


def chain_of(weights: ExpertWeights, experts: int, top_k: int, **gate: Any) -> Chain:
    """
    Return the chain of this rank's weights, for `experts` experts on all ranks; `gate` are fields
    of `MoEConfig` for the activation.
    """
    config = MoEConfig(
        hidden=weights.hidden,
        intermediate=weights.intermediate,
        experts=experts,
        local_experts=weights.groups,
        top_k=top_k,
        **gate,
    )
    return Chain(config=config, weights=weights)


_seen: set[tuple[Sizes, int, Arch]] = set()
"""Layers whose kernels are all in the store."""


def prewarmed(sizes: Sizes, *, max_tokens: int) -> None:
    """
    Compile the kernels for `sizes` into the store, once for all layers of these sizes; failures are
    logged. After a failure the next layer compiles them again.
    """
    arch = default_arch()
    if (sizes, max_tokens, arch) in _seen:
        return
    report = prewarm(sizes.plan(max_tokens), arch=arch)
    for row in report.rows:
        if row.error:
            _logger.warning("%s was not compiled: %s", row.name, row.error)
    if report.ok:
        _seen.add((sizes, max_tokens, arch))
