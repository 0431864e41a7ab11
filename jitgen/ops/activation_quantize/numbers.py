# SPDX-License-Identifier: Apache-2.0
"""The numbers of an activation: which ones a call must give, and their allowed values."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from jitgen.config.activation_quantize import NUMBERS, Activation
from jitgen.errors import InputError
from jitgen.ops import tensors as common
from jitgen.ops.numbers import SOFTCAPS, is_number, is_softcap


def require_numbers(
    activation: Activation, given: Mapping[str, object], *, per_group: bool = False
) -> tuple[float, ...]:
    """
    Require exactly the numbers that the formula of `activation` has.

    Args:
        activation: Which formula.
        given: Arguments by name; numbers that are left out are None.
        per_group: Whether the call gives numbers for each group, so that none of these arguments
            may be given.

    Returns: The numbers, in the order in which a kernel takes them; empty if each group has its own
    numbers.

    Raises:
        InputError: A number is missing, belongs to another activation, or has a wrong value.
    """
    if per_group:
        _require_none(activation, given)
        return ()
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


def require_group_numbers(
    given: Tensor, activation: Activation, groups: int | None, like: tuple[str, torch.device]
) -> None:
    """
    Check the numbers of an activation for each group.

    Args:
        given: The tensor of numbers.
        activation: Which formula.
        groups: Number of groups; None if it is not known: then any number of at least one is
            allowed.
        like: Another argument, and the device that all are on.

    Raises:
        InputError: The tensor has a wrong type, shape, order or device.
    """
    name, count = "group_numbers", len(activation.numbers)
    names = " and ".join(activation.numbers)
    common.require(name, given, [torch.float32], rank=(2, f"(G, {count}): {names} of each group"))
    groups = max(1, given.shape[0]) if groups is None else groups
    shape = (groups, count), f"{names} of each group"
    common.require(name, given, shape=shape, like=like)
    if not given.is_contiguous():
        raise InputError(name, f"must be contiguous (got strides {given.stride()})")


def _require_none(activation: Activation, given: Mapping[str, object]) -> None:
    """Require that no number is given beside those of groups, and that the formula has numbers."""
    if not activation.numbers:
        of = ", ".join(each for each in Activation if each.numbers)
        raise InputError("group_numbers", f"belongs to {of} (got it for {activation})")
    for name in NUMBERS:
        if given.get(name) is not None:
            raise InputError(
                name, f"must be left out beside group_numbers, which has it (got {given[name]!r})"
            )
