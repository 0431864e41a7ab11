# SPDX-License-Identifier: Apache-2.0
"""Rules about the arguments of torch's grouped products, by the names that torch gives them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.ops.tensors import describe, needs_gradient, refuse_gradients, require
from jitgen.torch.operands import WIDE

_QUANTISED = (torch.float8_e4m3fn, torch.float4_e2m1fn_x2)

_SIZES = {(2, 3): "KN", (3, 3): "KN", (3, 2): "MK", (2, 2): "MN"}
"""Sizes that must not be 0, by the dimensions of the operands: all except the number of rows."""


class Given(NamedTuple):
    """The arguments of a grouped product, without scales."""

    mat_a: Tensor
    mat_b: Tensor
    offs: Tensor | None
    bias: Tensor | None


def check(
    function: str,
    given: Given,
    scales: tuple[tuple[str, Tensor], ...],
    out_dtype: tuple[str, object],
) -> None:
    """
    Check that the arguments fit each other.

    Args:
        function: Name of the called function.
        given: The arguments.
        scales: The scales of mat_a and mat_b, with their names; empty for operands without scales.
        out_dtype: Type of the result, None for that of mat_a, with the argument's name.

    Raises:
        InputError: They do not; the message says what is required and what was given.
    """
    mat_a, mat_b, offs, bias = given
    for name, matrix in (("mat_a", mat_a), ("mat_b", mat_b)):
        require(name, matrix)
        if matrix.dim() not in {2, 3}:
            raise InputError(name, f"must have 2 or 3 dimensions (got shape {tuple(matrix.shape)})")
    is_batched = mat_a.dim() == mat_b.dim() == 3
    if (offs is None) != is_batched:
        what = "belongs to 2D operands" if offs is not None else "is required with a 2D operand"
        raise InputError("offs", f"{what} (got {shapes(mat_a, mat_b)})")
    for name, tensor in (("mat_b", mat_b), ("offs", offs), ("bias", bias), *scales):
        if tensor is not None:
            require(name, tensor, like=("mat_a", mat_a.device))
    _check_types(given, out_dtype, is_scaled=bool(scales))
    _check_sizes(mat_a, mat_b, is_batched=is_batched)
    _check_bias(given)
    _check_order(mat_a, mat_b)
    if scales:
        _refuse_gradients(function, given._asdict() | dict(scales))


def shapes(mat_a: Tensor, mat_b: Tensor) -> str:
    """Return a text with the shapes of both operands."""
    return f"mat_a {tuple(mat_a.shape)} and mat_b {tuple(mat_b.shape)}"


def _check_types(given: Given, out_dtype: tuple[str, object], *, is_scaled: bool) -> None:
    """Require types for which some target has kernels; the kernel's call checks the target."""
    mat_a, mat_b = given.mat_a, given.mat_b
    if not is_scaled and mat_a.dtype in _QUANTISED:
        raise InputError(
            "mat_a",
            f"must be {describe(set(WIDE))} (got {mat_a.dtype}, which has scales: "
            "jitgen.torch.scaled_grouped_mm takes them)",
        )
    require("mat_a", mat_a, [*WIDE, *_QUANTISED * is_scaled])
    if mat_b.dtype is not mat_a.dtype:
        of_a = describe({mat_a.dtype})
        raise InputError("mat_b", f"must be {of_a}, as mat_a is (got {mat_b.dtype})")
    name, dtype = out_dtype
    if dtype is not None and dtype not in WIDE:
        raise InputError(name, f"must be {describe(set(WIDE))}, or None (got {dtype!r})")


def _check_sizes(mat_a: Tensor, mat_b: Tensor, *, is_batched: bool) -> None:
    """
    Require mat_b to have K before N, as in torch, and as many matrices as mat_a, and no size but
    the number of rows to be 0.
    """
    size_k = mat_a.shape[-1]
    if mat_b.shape[-2] != size_k:
        advice = ""
        if mat_b.dim() == 3 and mat_b.shape[-1] == size_k:
            advice = "; weights (G, N, K) are what jitgen.grouped_gemm takes"
        raise InputError(
            "mat_b",
            f"must have K = {size_k} in its dimension before the last, as mat_a has in its last "
            f"(got {shapes(mat_a, mat_b)}){advice}",
        )
    if is_batched and mat_b.shape[0] != mat_a.shape[0]:
        raise InputError(
            "mat_b",
            f"must have G = {mat_a.shape[0]} matrices, as mat_a has (got {shapes(mat_a, mat_b)})",
        )
    of_sides = {"M": ("mat_a", -2), "K": ("mat_a", -1), "N": ("mat_b", -1)}
    for side in _SIZES[mat_a.dim(), mat_b.dim()]:
        name, place = of_sides[side]
        if (mat_a if name == "mat_a" else mat_b).shape[place] == 0:
            raise InputError(name, f"must have {side} of at least 1 (got {shapes(mat_a, mat_b)})")


def _check_bias(given: Given) -> None:
    """
    Require a bias of N for all groups or (G, N); refuse one if mat_b has no matrix for each group.
    """
    bias, mat_a, mat_b = given.bias, given.mat_a, given.mat_b
    if bias is None:
        return
    if mat_b.dim() == 2:
        what = "groups along N" if mat_a.dim() == 3 else "groups along K"
        raise InputError(
            "bias", f"has no kernel for {what} ({shapes(mat_a, mat_b)}): add it afterwards"
        )
    shape = (mat_b.shape[0], mat_b.shape[2])
    if tuple(bias.shape) not in {shape, shape[1:]}:
        raise InputError(
            "bias", f"must have shape {shape[1:]} or {shape} (got {tuple(bias.shape)})"
        )


def _check_order(mat_a: Tensor, mat_b: Tensor) -> None:
    """Require K to be contiguous in quantised operands, as torch does."""
    for name, matrix, side in (("mat_a", mat_a, -1), ("mat_b", mat_b, -2)):
        if matrix.dtype in WIDE or matrix.shape[side] <= 1 or matrix.stride(side) == 1:
            continue
        raise InputError(
            name,
            f"must have K contiguous where it is {describe({matrix.dtype})} (got shape "
            f"{tuple(matrix.shape)}, strides {matrix.stride()})",
        )


def _refuse_gradients(function: str, named: dict[str, Tensor | None]) -> None:
    """Refuse gradients of operands with scales, which have none."""
    if needs_gradient(named.values()):
        refuse_gradients(
            named,
            f"jitgen.torch.{function}",
            "quantised operands have none",
            "train with jitgen.torch.grouped_mm and quantise for inference, ",
        )
