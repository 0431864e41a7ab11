# SPDX-License-Identifier: Apache-2.0
"""Numbers of an activation: which a call must give, and which values they may have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeGuard

from jitgen.config.silu_mul_quantize import NUMBERS, Activation
from jitgen.errors import InputError


def require_numbers(activation: Activation, given: Mapping[str, object]) -> tuple[float, ...]:
    """
    Require those numbers that the formula of `activation` has, and no others.

    Args:
        activation: Which formula.
        given: Arguments by their names; of `NUMBERS`, those that are left out are None.

    Returns:
        The numbers, in the order in which a kernel takes them.

    Raises:
        InputError: One is missing, belongs to another activation, or has a wrong value.
    """
    for name in NUMBERS:
        value, is_needed = given.get(name), name in activation.numbers
        if (value is not None) != is_needed:
            of = ", ".join(each for each in Activation if name in each.numbers)
            what = f"is required for {activation}" if is_needed else f"belongs to {of}"
            raise InputError(name, f"{what} (got {value!r} for {activation})")
        if value is None:
            continue
        if not is_number(value):
            raise InputError(name, f"must be a finite number (got {value!r})")
        if name == "swiglu_limit" and value < 0:
            raise InputError(name, f"must be at least 0 (got {value!r})")
        if name.endswith("softcap") and value <= 0:
            raise InputError(name, f"must be above 0 (got {value!r})")
    return tuple(float(given[name]) for name in activation.numbers)  # type: ignore[arg-type]


def is_number(value: object) -> TypeGuard[float]:
    """Say whether `value` can be a number of an activation."""
    return (
        isinstance(value, (int, float))
        and type(value) in (int, float)  # no bool
        and math.isfinite(value)
    )
