# SPDX-License-Identifier: Apache-2.0
"""Rules of every target for `combine`: which fields of a config go together."""

from __future__ import annotations

from dataclasses import replace

from jitgen.config.combine import CombineConfig
from jitgen.targets.protocol import refuse_unless


def check_kind(config: CombineConfig) -> None:
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


def legal_kind(config: CombineConfig) -> CombineConfig:
    """Return `config` with fields that go together."""
    return replace(config, has_shared=config.has_shared or config.is_weighted)
