# SPDX-License-Identifier: Apache-2.0
"""Rules of every target for `dispatch`: its templates, and its sizes."""

from __future__ import annotations

from functools import cache

from jitgen.config.dispatch import DispatchProblem
from jitgen.config.format import Format
from jitgen.targets.protocol import Template, refuse_unless
from jitgen.targets.sums import SumOrder
from jitgen.templates import ROOT

SUMS = SumOrder(
    words="nothing: tokens are copied, and scales are maxima",
    free=("format", "can_mask", "tiling"),
)

_COLUMNS = 16
"""Columns of quantised tokens are a multiple of this, as GEMMs take 16 bytes of e4m3."""


@cache
def templates_of(of_tokens: str, of_records: str) -> tuple[Template, ...]:
    """Return the templates of `dispatch`: of tokens in bfloat16, and of quantised ones."""
    return (
        Template(root=ROOT, entry=of_tokens, takes=lambda config: config.format is Format.NONE),
        Template(
            root=ROOT, entry=of_records, takes=lambda config: config.format is not Format.NONE
        ),
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
