# SPDX-License-Identifier: Apache-2.0
"""Rules of every target for `activation_quantize`: which fields of a config go together."""

from __future__ import annotations

from dataclasses import replace

from jitgen.config.activation_quantize import (
    ActivationQuantizeConfig,
)
from jitgen.config.config import Layout
from jitgen.targets.protocol import refuse_unless
from jitgen.targets.sums import SumOrder

USUAL = ActivationQuantizeConfig(layout=Layout.RAGGED)
"""A config with the default tiling."""

SUMS = SumOrder(
    words="nothing: scales are maxima",
    free=(
        *("layout", "scale_granularity", "activation", "interleaved", "power_of_two"),
        *("per_group", "tiling"),
    ),
)


def check_kind(config: ActivationQuantizeConfig) -> None:
    """
    Require scales that the kernel computes if scales are rounded, an activation with gates if gates
    and ups alternate, and one with numbers if groups have their own numbers.

    Raises:
        Refusal: One of these is missing; the code is ``E_POWER_OF_TWO``, ``E_INTERLEAVED`` or
            ``E_PER_GROUP``.
    """
    refuse_unless(
        config.activation.is_gated or not config.interleaved,
        "E_INTERLEAVED",
        f"interleaved: {config.activation} has no gates that take turns with ups",
    )
    refuse_unless(
        bool(config.activation.numbers) or not config.per_group,
        "E_PER_GROUP",
        f"per_group: {config.activation} has no numbers that groups could have of their own",
    )
    refuse_unless(
        config.scale_granularity.has_float_scales or not config.power_of_two,
        "E_POWER_OF_TWO",
        f"power_of_two is for scales that a kernel finds, block128 and row: those of "
        f"{config.scale_granularity} are not its own",
    )


def legal_kind(config: ActivationQuantizeConfig) -> ActivationQuantizeConfig:
    """Return `config`, in which each field that others do not allow has a value that they allow."""
    is_rounded = config.power_of_two and config.scale_granularity.has_float_scales
    takes_turns = config.interleaved and config.activation.is_gated
    is_per_group = config.per_group and bool(config.activation.numbers)
    return replace(config, power_of_two=is_rounded, interleaved=takes_turns, per_group=is_per_group)
