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
from jitgen.layer import plan as plans
from jitgen.layer.chain import Chain
from jitgen.layer.checkpoints import blank
from jitgen.layer.config import MoEConfig
from jitgen.layer.weights import NONE, ExpertWeights
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
        form: Format of the weights: ``block128`` or ``row`` for FP8 with scales for each 128 x 128
            block or each row; a `PrepackedFormat`; ``none`` for bfloat16.
        activation_format: Format to which tokens are quantised, if the weights allow several.
        gate: Fields of `MoEConfig` for the activation, with their values.
        has_bias: Whether products have biases.
    """

    hidden: int
    intermediate: int
    experts: int
    local_experts: int
    top_k: int
    form: str = NONE
    activation_format: str | None = None
    gate: tuple[tuple[str, Any], ...] = ()
    has_bias: bool = False

    @property
    def config(self) -> MoEConfig:
        """The config of the layer."""
        return MoEConfig(
            hidden=self.hidden,
            intermediate=self.intermediate,
            experts=max(self.experts, self.top_k),
            local_experts=self.local_experts,
            top_k=self.top_k,
            **dict(self.gate),
        )

    @property
    def between(self) -> int:
        """Columns of the first product's result: 2 I, or I without gates."""
        return (1 + self.config.is_gated) * self.intermediate

    @property
    def formats(self) -> str:
        """The formats of weights and tokens, as the log names them."""
        if self.activation_format is None:
            return self.form
        tokens = "bfloat16" if self.activation_format == NONE else self.activation_format
        return f"{self.form}, tokens {tokens}"

    def plan(self, max_tokens: int, name: str = "engine") -> Plan:
        """Return the plan of the layer for at most `max_tokens` tokens at once."""
        return plans.of(
            Chain(config=self.config, weights=self._weights()), max_tokens, None, name=name
        )

    def _weights(self) -> ExpertWeights:
        """Return weights without memory, which is enough for a plan."""
        nowhere = torch.device("meta")
        found: dict[str, Any] = {"activation_format": self.activation_format}
        shapes = {
            "w13": (self.local_experts, self.between, self.hidden),
            "w2": (self.local_experts, self.hidden, self.intermediate),
        }
        for name, shape in shapes.items():
            found[name], found[f"{name}_scale"] = blank.zeros(
                self.form, shape, nowhere, self.activation_format
            )
            if self.has_bias:
                found[f"{name}_bias"] = torch.zeros(shape[:2], dtype=torch.float32, device=nowhere)
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
