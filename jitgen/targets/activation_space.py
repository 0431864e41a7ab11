# SPDX-License-Identifier: Apache-2.0
"""Rules of every target for `activation_backward`: which fields of a config go together."""

from __future__ import annotations

from dataclasses import replace

from jitgen.config.activation_backward import ActivationBackwardConfig
from jitgen.config.config import Layout
from jitgen.targets.protocol import refuse_unless
from jitgen.targets.sums import SumOrder

USUAL = ActivationBackwardConfig(layout=Layout.RAGGED)
"""A config with the default tiling."""

SUMS = SumOrder(
    words="256 columns of a row, each lane its own, then lane with lane",
    free=("layout", "activation", "interleaved", "tiling"),
)


def check_kind(config: ActivationBackwardConfig) -> None:
    """
    Require an activation with gates if gates and ups alternate.

    Raises:
        Refusal: The activation has no gates; the code is ``E_INTERLEAVED``.
    """
    refuse_unless(
        config.activation.is_gated or not config.interleaved,
        "E_INTERLEAVED",
        f"interleaved: {config.activation} has no gates that take turns with ups",
    )


def legal_kind(config: ActivationBackwardConfig) -> ActivationBackwardConfig:
    """
    Return `config`, made legal: without alternating gates and ups if the activation has no gates.
    """
    return replace(config, interleaved=config.interleaved and config.activation.is_gated)
