# SPDX-License-Identifier: Apache-2.0
"""Whether the weights of a layer fit the activation of its config."""

from __future__ import annotations

from jitgen.config.activation_quantize import Activation
from jitgen.errors import InputError
from jitgen.layer.config import MoEConfig
from jitgen.layer.weights import ExpertWeights
from jitgen.ops.activation_quantize.numbers import require_group_numbers


def require_gates(config: MoEConfig, weights: ExpertWeights) -> None:
    """
    Check that the weights have gates if and only if the activation has, and that they have numbers
    for each expert if and only if the config says so.

    Raises:
        InputError: The weights do not fit the config.
    """
    if weights.is_gated != config.is_gated:
        wanted, given = (
            "(G, 2 I, H), gates and ups" if is_gated else "(G, I, H), no gates"
            for is_gated in (config.is_gated, weights.is_gated)
        )
        raise InputError("w13", f"must be {wanted}, for {config.activation} (got {given})")
    numbers = weights.group_numbers
    if config.per_group and numbers is None:
        raise InputError("group_numbers", "is required for a config with per_group (got None)")
    if numbers is not None:
        if not config.per_group:
            text = "belongs to a config with per_group=True, which has no numbers of its own"
            raise InputError("group_numbers", text)
        activation, like = Activation(config.activation), ("w13", weights.device)
        require_group_numbers(numbers, activation, weights.groups, like)
