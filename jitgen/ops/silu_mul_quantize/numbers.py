# SPDX-License-Identifier: Apache-2.0
"""Numbers of an activation: which a call must give, and which values they may have."""

from __future__ import annotations

from collections.abc import Mapping

from jitgen.config.silu_mul_quantize import NUMBERS, Activation
from jitgen.errors import InputError
from jitgen.ops.numbers import SOFTCAPS, is_number, is_softcap


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
            raise InputError(name, f"must be a finite number of float32 (got {value!r})")
        if name == "swiglu_limit" and value < 0:
            raise InputError(name, f"must be at least 0 (got {value!r})")
        if name.endswith("softcap") and not is_softcap(value):
            least, most = SOFTCAPS
            raise InputError(name, f"must be from {least:g} to {most:g} (got {value!r})")
    return tuple(float(given[name]) for name in activation.numbers)  # type: ignore[arg-type]
