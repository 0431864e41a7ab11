# SPDX-License-Identifier: Apache-2.0
"""
Rules of every target for `combine` and others that add a shared expert: which fields of a config go
together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from jitgen.config.combine import CombineConfig
from jitgen.config.combine_ranks import CombineRanksConfig
from jitgen.config.moe_decode import MoeDecodeConfig
from jitgen.targets.protocol import refuse_unless

_Combining = TypeVar("_Combining", CombineConfig, CombineRanksConfig, MoeDecodeConfig)


def check_kind(config: CombineConfig | CombineRanksConfig | MoeDecodeConfig) -> None:
    """
    Require what is weighted.

    Raises:
        Refusal: There is no shared expert (``E_WEIGHTED``).
    """
    refuse_unless(
        config.has_shared or not config.is_weighted,
        "E_WEIGHTED",
        "is_weighted is for a shared expert: set has_shared",
    )


def legal_kind(config: _Combining) -> _Combining:
    """Return `config` with fields that go together."""
    return replace(config, has_shared=config.has_shared or config.is_weighted)
