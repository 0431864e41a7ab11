# SPDX-License-Identifier: Apache-2.0
"""
How rows belong to groups: the alignment of contiguous groups, and the argument of each layout.

The layouts themselves are `jitgen.config.Layout`.
"""

from __future__ import annotations

from jitgen.config import Layout

GROUP_ALIGNMENT = 128
"""Rows at whose multiples the groups of the contiguous layout start."""

ARGUMENT = {
    Layout.RAGGED: "offs",
    Layout.CONTIGUOUS: "m_indices",
    Layout.MASKED: "masked_m",
}
"""The argument of a call that says which rows belong to which group."""
