# SPDX-License-Identifier: Apache-2.0
"""Rules of every target for `dispatch`: its templates, and its sizes."""

from __future__ import annotations

from dataclasses import replace

from jitgen.config.combine_ranks import CombineRanksConfig
from jitgen.config.dispatch import DispatchConfig, DispatchProblem
from jitgen.config.format import Format
from jitgen.targets.protocol import refuse_unless
from jitgen.targets.sums import SumOrder

SUMS = SumOrder(
    words="nothing: tokens are copied, and scales are maxima",
    free=("format", "can_mask", "by_flags", "sorts", "leaves", "tiling"),
)

_COLUMNS = 16
"""Columns of quantised tokens are a multiple of this, as GEMMs take 16 bytes of e4m3."""


def is_quantised(config: DispatchConfig) -> bool:
    """Say whether tokens are quantised before they are sent."""
    return config.format is not Format.NONE


def check_flags(config: DispatchConfig | CombineRanksConfig) -> None:
    """
    Refuse flags where ranks can be masked, because a masked rank's data lies beside that of others
    without a number.

    Raises:
        Refusal: Both are asked for (``E_FLAGS``).
    """
    refuse_unless(
        not (config.by_flags and config.can_mask),
        "E_FLAGS",
        "by_flags is for ranks that fail if one is late: leave out can_mask",
    )


def check_kind(config: DispatchConfig) -> None:
    """
    Refuse flags where ranks can be masked, kernels with flags that sort, and rows that stay in the
    inbox where pairs are not sorted, tokens are quantised or ranks can be masked.

    Raises:
        Refusal: They are asked for (``E_FLAGS``, ``E_SORTS``, ``E_LEAVES``).
    """
    check_flags(config)
    refuse_unless(
        not config.leaves or _may_leave(config),
        "E_LEAVES",
        "leaves is for kernels that sort, of bfloat16 tokens, from ranks that fail if one is late",
    )
    refuse_unless(
        not (config.sorts and config.by_flags),
        "E_SORTS",
        "sorts is for few tokens, and by_flags for many: leave out one of them",
    )


def legal_kind(config: DispatchConfig) -> DispatchConfig:
    """
    Return `config`, made legal: without flags where ranks can be masked or pairs are sorted, and
    with rows in the inbox only where they may stay there.
    """
    return replace(
        config,
        by_flags=config.by_flags and not (config.can_mask or config.sorts),
        leaves=config.leaves and _may_leave(config),
    )


def _may_leave(config: DispatchConfig) -> bool:
    return config.sorts and not config.can_mask and not is_quantised(config)


def refuse_gpu_kinds(config: DispatchConfig) -> None:
    """
    Refuse flags and sorting on a CPU.

    Raises:
        Refusal: They are asked for (``E_FLAGS``, ``E_SORTS``).
    """
    refuse_flags(config)
    refuse_unless(
        not (config.sorts or config.leaves),
        "E_SORTS",
        "sorts and leaves are for GPUs: on a cpu sort_pairs takes no launch",
    )


def refuse_flags(config: DispatchConfig | CombineRanksConfig) -> None:
    """
    Refuse flags on a CPU.

    Raises:
        Refusal: Flags are asked for (``E_FLAGS``).
    """
    refuse_unless(
        not config.by_flags, "E_FLAGS", "by_flags is for GPUs: a cpu kernel has no CTAs to tell of"
    )


def require_records(problem: DispatchProblem) -> None:
    """
    Require columns that can be sent quantised.

    Raises:
        Refusal: They cannot (``E_SIZE``).
    """
    refuse_unless(
        problem.format is Format.NONE or problem.k % _COLUMNS == 0,
        "E_SIZE",
        f"must have K a multiple of {_COLUMNS} if tokens are sent as {problem.format} (got "
        f"{problem.k})",
    )
