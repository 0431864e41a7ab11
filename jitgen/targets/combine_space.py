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
from jitgen.targets import dispatch_space
from jitgen.targets.protocol import refuse_unless
from jitgen.targets.sums import SumOrder

SUMS_OF_RANKS = SumOrder(
    words="rank by rank, or expert by expert; what is shared last",
    free=("has_shared", "is_weighted", "can_mask", "of_experts", "by_flags", "tiling"),
)

_Combining = TypeVar("_Combining", CombineConfig, CombineRanksConfig, MoeDecodeConfig)


def adds_rows(config: CombineRanksConfig) -> bool:
    """Say whether rows of experts are added up, not sums of ranks."""
    return config.of_experts


def check_kind(config: CombineConfig | CombineRanksConfig | MoeDecodeConfig) -> None:
    """
    Require a shared expert if its rows have weights.

    Raises:
        Refusal: There is no shared expert (``E_WEIGHTED``).
    """
    refuse_unless(
        config.has_shared or not config.is_weighted,
        "E_WEIGHTED",
        "is_weighted is for a shared expert: set has_shared",
    )


def check_ranks(config: CombineRanksConfig) -> None:
    """
    Require a shared expert if its rows have weights, and refuse masking of ranks if they send rows
    of experts.

    Raises:
        Refusal: There is no shared expert (``E_WEIGHTED``), ranks that send rows of experts can be
            masked (``E_MASK``), or there are flags with either of these (``E_FLAGS``).
    """
    check_kind(config)
    refuse_unless(
        not (config.can_mask and config.of_experts),
        "E_MASK",
        "can_mask is for sums of ranks: leave out of_experts",
    )
    refuse_unless(
        not (config.by_flags and config.of_experts),
        "E_FLAGS",
        "by_flags is for sums of ranks: leave out of_experts",
    )
    dispatch_space.check_flags(config)


def legal_ranks(config: CombineRanksConfig) -> CombineRanksConfig:
    """
    Return `config`, made legal: with a shared expert if that is weighted, without masking of ranks
    if they send rows of experts, and without flags in both of these cases.
    """
    can_mask = config.can_mask and not config.of_experts
    by_flags = config.by_flags and not (can_mask or config.of_experts)
    return replace(legal_kind(config), can_mask=can_mask, by_flags=by_flags)


def legal_kind(config: _Combining) -> _Combining:
    """Return `config`, made legal: with a shared expert if that is weighted."""
    return replace(config, has_shared=config.has_shared or config.is_weighted)
