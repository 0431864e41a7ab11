# SPDX-License-Identifier: Apache-2.0
"""The rows of the problem of a call whose rows belong to groups."""

from __future__ import annotations

from typing import Protocol

from jitgen.config import Layout


class Expecting(Protocol):
    """Arguments that may say how many rows a group is expected to have."""

    @property
    def expected_m(self) -> int | None:
        """Expected rows of a group; None if the caller gives no number."""


class OfGroups(Protocol):
    """The validated layout and sizes of a call whose rows belong to groups."""

    @property
    def layout(self) -> Layout:
        """How rows belong to groups."""

    @property
    def groups(self) -> int:
        """Number of groups; 1 for the contiguous layout, whose number is not known."""

    @property
    def rows(self) -> int:
        """Rows of an operand; in the masked layout, of one group."""


def rows_of(args: Expecting, valid: OfGroups) -> int:
    """
    Return the rows of a problem. Without `expected_m`, groups share the rows, and masked matrices
    are full.
    """
    if (mean := mean_of(args, valid)) is not None:
        return mean * valid.groups
    return valid.rows * valid.groups if valid.layout is Layout.MASKED else valid.rows


def mean_of(args: Expecting, valid: OfGroups) -> int | None:
    """
    Return the expected rows of a group; None if the caller does not give them, and for contiguous
    calls, which do not know their groups.
    """
    return None if valid.layout is Layout.CONTIGUOUS else args.expected_m
