# SPDX-License-Identifier: Apache-2.0
"""Numbers that calls pass to kernels as float32."""

from __future__ import annotations

from typing import TypeGuard

_LARGEST = 2.0**128 - 2.0**104
"""The largest float32: a larger number would be an infinity in a kernel."""

SOFTCAPS = 1e-30, 1e30
"""
Range of the bounds of logits and gates; kernels divide by them, so their reciprocals must be
float32 numbers, too.
"""


def is_number(value: object) -> TypeGuard[float]:
    """Say whether `value` is a number (not a bool) that is finite as float32."""
    # Comparisons take integers of any size, and are False for NaN.
    return type(value) in (int, float) and abs(value) <= _LARGEST  # type: ignore[arg-type]


def is_softcap(value: object) -> TypeGuard[float]:
    """Say whether `value` is allowed as a bound of logits or gates."""
    least, most = SOFTCAPS
    return is_number(value) and least <= value <= most
