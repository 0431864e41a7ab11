# SPDX-License-Identifier: Apache-2.0
"""
The four forms of a grouped product in torch, as grouped GEMMs of jitgen.

Each form is a function in `_FORMS`, by the dimensions of its operands. Kernels have other names for
the arguments; errors of a kernel's call are translated to the names of the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.nn.functional import pad

from jitgen.errors import InputError
from jitgen.ops.dispatcher import is_traced, require_plain
from jitgen.ops.grouped_gemm.call import grouped_gemm
from jitgen.ops.grouped_gemm_wgrad.call import grouped_gemm_wgrad
from jitgen.torch.operands import WIDE, Call, widened
from jitgen.torch.rules import Given, shapes


class Scales(NamedTuple):
    """
    Scales of the operands, in the form of `jitgen.grouped_gemm`.

    Attributes:
        of_a: Scales of mat_a.
        of_b: Scales of mat_b.
        alpha: A factor of each group.
        is_by_row: Whether each row of mat_a and column of mat_b has a scale.
    """

    of_a: Tensor | None = None
    of_b: Tensor | None = None
    alpha: Tensor | None = None
    is_by_row: bool = False


def product(
    function: str,
    given: Given,
    scales: Scales,
    out_dtype: torch.dtype,
    name_of_out_dtype: str = "out_dtype",
) -> Tensor:
    """
    Return a grouped product of any of the four forms.

    Args:
        function: Name of the called function, for errors and warnings.
        given: Its arguments, which `jitgen.torch.rules.check` has checked.
        scales: Scales of both operands, if they are quantised.
        out_dtype: Type of the result.
        name_of_out_dtype: Name of the argument `out_dtype` in the called function.

    Raises:
        InputError: There is no kernel, or an argument is wrong; the message has the caller's name
            of the argument.
    """
    form = _FORMS[given.mat_a.dim(), given.mat_b.dim()]
    is_plain = scales.of_a is None and given.mat_a.dtype in WIDE
    call = Call.of(function, given.mat_a, out_dtype) if is_plain else Call(function)
    if is_dynamo_compiling():  # it would look into the error, too
        return form.product(given, scales, out_dtype, call)
    try:
        return form.product(given, scales, out_dtype, call)
    except InputError as error:
        _require_plain(given, scales)
        raise _renamed(error, form.names | {"out_dtype": name_of_out_dtype}) from None


def _require_plain(given: Given, scales: Scales) -> None:
    """
    Raise an error for a tensor of the caller that kernels cannot read; the advice names the tensor.
    """
    named = given._asdict() | {"scale_a": scales.of_a, "scale_b": scales.of_b}
    tensors = {name: each for name, each in named.items() if each is not None}
    if not is_traced(tensors.values()):
        require_plain(tensors)


def _renamed(error: InputError, names: Mapping[str, str]) -> InputError:
    """Return an error of a kernel's call with the caller's names of arguments."""
    text = str(error).removeprefix(f"{error.argument}: ")
    scales = {name: other for name, other in names.items() if name.endswith("_scale")}
    for name in scales:  # at once, for they may be swapped
        text = re.sub(rf"\b{name}\b", f"<{name}>", text)
    for name, other in scales.items():
        text = text.replace(f"<{name}>", other)
    return InputError(names.get(error.argument, error.argument), text)


def _ragged(given: Given, scales: Scales, out_dtype: torch.dtype, call: Call) -> Tensor:
    """Return the product with rows of mat_a in groups: activations times weights."""
    return _rows_times_weights(given, scales, out_dtype, call, given.offs, None)


def _batched(given: Given, scales: Scales, out_dtype: torch.dtype, call: Call) -> Tensor:
    """Return the product with one matrix for each group: masked rows, all of which are valid."""
    groups, rows = given.mat_a.shape[:2]
    every = torch.full((groups,), rows, dtype=torch.int32, device=given.mat_a.device)
    return _rows_times_weights(given, scales, out_dtype, call, None, every)


def _rows_times_weights(
    given: Given,
    scales: Scales,
    out_dtype: torch.dtype,
    call: Call,
    offs: Tensor | None,
    masked_m: Tensor | None,
) -> Tensor:
    """Return the product of the first two forms, which differ in how rows belong to groups."""
    columns = given.mat_b.shape[-1]
    mat_a = call.filled("mat_a", given.mat_a, M=1, K=call.k_multiple)
    mat_b = call.filled("mat_b", given.mat_b, K=call.k_multiple, N=call.n_multiple)
    found = grouped_gemm(
        call.rows("mat_a", mat_a, "K"),
        call.weights("mat_b", mat_b, "K or N").transpose(1, 2),
        scales.of_a,
        scales.of_b,
        offs=offs,
        masked_m=masked_m,
        alpha=scales.alpha,
        bias=_bias(given.bias, given.mat_b, mat_b.shape[-1]),
        out_dtype=out_dtype,
    )
    return found if mat_b is given.mat_b else found[..., :columns]


def _columns(given: Given, scales: Scales, out_dtype: torch.dtype, call: Call) -> Tensor:
    """Return the product with columns of mat_b in groups: the transpose of rows in groups."""
    rows = given.mat_a.shape[-2]
    mat_a = call.filled("mat_a", given.mat_a, M=call.n_multiple, K=call.k_multiple)
    mat_b = call.filled("mat_b", given.mat_b, K=call.k_multiple, N=1)
    found = grouped_gemm(
        call.rows("mat_b", mat_b, "K", is_turned=True),
        call.weights("mat_a", mat_a, "K or M"),
        scales.of_b,
        scales.of_a,
        offs=given.offs,
        alpha=scales.alpha,
        out_dtype=out_dtype,
    )
    return (found if mat_a is given.mat_a else found[:, :rows]).t()


def _along_k(given: Given, scales: Scales, out_dtype: torch.dtype, call: Call) -> Tensor:
    """
    Return the product with groups along K: the gradient of weights, which reads mat_a by columns.
    """
    mat_a, mat_b = given.mat_a, given.mat_b
    if scales.of_a is not None:
        return _along_k_of_fp8(given, scales, out_dtype, call)
    rows, columns = mat_a.shape[0], mat_b.shape[1]
    mat_a = call.filled("mat_a", mat_a, M=call.n_multiple, K=1)
    mat_b = call.filled("mat_b", mat_b, K=1, N=call.n_multiple)
    found = grouped_gemm_wgrad(
        call.rows("mat_a", mat_a, "M", is_turned=True),
        call.rows("mat_b", mat_b, "N"),
        offs=given.offs,
        out_dtype=out_dtype,
    )
    is_filled = mat_a is not given.mat_a or mat_b is not given.mat_b
    return found[:, :rows, :columns] if is_filled else found


def _along_k_of_fp8(given: Given, scales: Scales, out_dtype: torch.dtype, call: Call) -> Tensor:
    """
    Return the product with groups along K of float8_e4m3fn operands: the scales of each row and
    column of a group are applied to the sums.
    """
    mat_a, mat_b, offs = given.mat_a, given.mat_b, given.offs
    if not scales.is_by_row or mat_a.dtype is not torch.float8_e4m3fn:
        raise InputError(
            "mat_a",
            f"groups along K ({shapes(mat_a, mat_b)}) are for float8_e4m3fn with scales of rows "
            f"(got {mat_a.dtype} with others): there is no kernel for them",
        )
    groups = 0 if offs is None else offs.numel()
    of_rows = _of_groups("scale_a", scales.of_a, groups, mat_a.shape[0])
    of_columns = _of_groups("scale_b", scales.of_b, groups, mat_b.shape[1])
    mat_a, mat_b = widened(call.function, mat_a, mat_b)
    plain = given._replace(mat_a=mat_a, mat_b=mat_b)
    sums = torch.float32
    found = _along_k(plain, Scales(), sums, Call.of(call.function, mat_a, sums))
    return (found * of_rows[:, :, None] * of_columns[:, None, :]).to(out_dtype)


def _of_groups(name: str, scale: Tensor | None, groups: int, size: int) -> Tensor:
    """Return a scale (G * size,), as torch has it, as (G, size)."""
    found = "None" if scale is None else f"{scale.dtype}, {tuple(scale.shape)}"
    if scale is None or scale.dtype is not torch.float32 or tuple(scale.shape) != (groups * size,):
        raise InputError(
            name,
            f"must be float32, ({groups * size},), {size} for each of {groups} groups (got "
            f"{found})",
        )
    return scale.view(groups, size)


class _Form(NamedTuple):
    """
    One form of a grouped product.

    Attributes:
        product: Function that computes it.
        names: For the arguments of the kernel's call, their names in the called function.
    """

    product: Callable[[Given, Scales, torch.dtype, Call], Tensor]
    names: dict[str, str]


_AS_THEY_ARE = {"a": "mat_a", "b": "mat_b", "a_scale": "scale_a", "b_scale": "scale_b"}
_SWAPPED = {"a": "mat_b", "b": "mat_a", "a_scale": "scale_b", "b_scale": "scale_a"}

_FORMS: dict[tuple[int, int], _Form] = {
    (2, 3): _Form(_ragged, _AS_THEY_ARE),
    (3, 3): _Form(_batched, _AS_THEY_ARE | {"masked_m": "mat_a"}),
    (3, 2): _Form(_columns, _SWAPPED),
    (2, 2): _Form(_along_k, {"dy": "mat_a", "a": "mat_b"}),
}
"""Every form, by the dimensions of mat_a and mat_b."""


def _bias(bias: Tensor | None, mat_b: Tensor, columns: int) -> Tensor | None:
    """
    Return `bias` for each group, padded with zeros to (G, columns) float32; None without a bias.
    """
    if bias is None:
        return None
    groups, size = mat_b.shape[0], mat_b.shape[2]
    return pad(bias.float(), (0, columns - size)).expand(groups, columns)
