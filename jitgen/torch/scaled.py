# SPDX-License-Identifier: Apache-2.0
"""
`jitgen.torch.scaled_grouped_mm`: torch's functions of that name, of which there are two.

``torch._scaled_grouped_mm`` derives the kind of scales from the scales themselves;
``torch.nn.functional.scaled_grouped_mm`` takes recipes. The argument after `scale_a` decides which
of the two is meant: it is a tensor in the first, and a recipe in the second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from torch import Tensor
from torch.nn.functional import ScalingType, SwizzleType

from jitgen.errors import InputError
from jitgen.formats.atoms import BYTES, PLACES, ROWS
from jitgen.formats.protocol import ceil_div
from jitgen.torch.forms import Scales, product
from jitgen.torch.rules import Given, check, shapes

_NAME = "scaled_grouped_mm"

_Tensors = Tensor | Sequence[Tensor]
_Recipes = ScalingType | Sequence[ScalingType]
_Swizzles = SwizzleType | Sequence[SwizzleType] | None
_Operand = tuple[tuple[Any, ...], tuple[Any, ...]]
"""Scales and their recipes."""


@overload
def scaled_grouped_mm(  # torch's own
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor: ...


@overload
def scaled_grouped_mm(  # torch's own
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: _Tensors,
    scale_recipe_a: _Recipes,
    scale_b: _Tensors,
    scale_recipe_b: _Recipes,
    swizzle_a: _Swizzles = None,
    swizzle_b: _Swizzles = None,
    bias: Tensor | None = None,
    offs: Tensor | None = None,
    output_dtype: torch.dtype | None = torch.bfloat16,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Tensor: ...


def scaled_grouped_mm(
    mat_a: Tensor, mat_b: Tensor, scale_a: Any, *given: Any, **named: Any
) -> Tensor:
    """
    Replace ``torch._scaled_grouped_mm`` and ``torch.nn.functional.scaled_grouped_mm``; the
    arguments may be those of either.

    The forms are those of `grouped_mm`. Both operands have K contiguous: `mat_b` is
    ``w.transpose(-2, -1)`` of weights (G, N, K). There are no gradients.

    ================================  ==========================  ==============================
    recipe                            scale_a, (M, K) mat_a       scale_b, (G, K, N) mat_b
    ================================  ==========================  ==============================
    RowWise                           (M,) float32                (G, N) float32
    TensorWise                        (1,) float32                (G,) float32
    BlockWise1x128, mat_b's           (M, ceil(K / 128)) float32  (G, ceil(K / 128),
    BlockWise128x128                                              ceil(N / 128)) float32
    BlockWise1x32                     (R, S) float8_e8m0fnu       (G, R * S) float8_e8m0fnu
    [BlockWise1x16, TensorWise]       (R, S) float8_e4m3fn and    (G, R * S) float8_e4m3fn and
                                      (1,) float32                (G,) or (1,) float32
    ================================  ==========================  ==============================

    With groups along K, where both operands are 2D, only RowWise is supported, with scales (G * M,)
    and (G * N,). No kernel sums float8_e4m3fn products along groups, so both operands are converted
    to bfloat16, which represents all of their values; there is one warning with the bytes.

    With a 3D `mat_a`, scale_a of RowWise is (G, M), of BlockWise1x128 (G, M, ceil(K / 128)), and of
    the last two recipes (G, R * S). R and S are the numbers of rows and of scales along K, rounded
    up to multiples of 128 and 4 (rows for each group separately), swizzled as SWIZZLE_32_4_4:
    torch's blocked order, which `jitgen.quantize.to_torch` gives. Operands are float8_e4m3fn, or
    float4_e2m1fn_x2 with the last two recipes. Without recipes, float32 scales mean RowWise, and
    float8_e8m0fnu scales BlockWise1x32.

    Args:
        mat_a: As `grouped_mm` takes it.
        mat_b: Likewise.
        scale_a: See above; several scales are a list.
        given: The further arguments of either function.
        named: Named arguments of either function. `use_fast_accum` has no effect, because the
            kernel decides how sums are promoted.

    Raises:
        InputError: An argument is wrong, or there is no kernel: the message says what is allowed.
        JitgenError: As `jitgen.grouped_gemm`.
    """
    has_recipes = "scale_recipe_a" in named or "scale_recipe_b" in named
    if has_recipes or (given and not isinstance(given[0], Tensor | None)):
        return _by_recipes(mat_a, mat_b, scale_a, *given, **named)
    return _by_scales(mat_a, mat_b, scale_a, *given, **named)


def _by_scales(  # noqa: PLR0913, PLR0917  # torch's own
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,  # noqa: ARG001  # torch's own
) -> Tensor:
    if scale_result is not None:
        raise InputError("scale_result", "must be None: no kernel scales its result")
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if not isinstance(scale, Tensor):
            raise InputError(name, f"must be a torch tensor (got {type(scale).__name__})")
    is_mx = scale_a.dtype is torch.float8_e8m0fnu
    return _product(
        mat_a,
        mat_b,
        ((scale_a,), (ScalingType.BlockWise1x32 if is_mx else ScalingType.RowWise,)),
        ((scale_b,), (ScalingType.BlockWise1x32 if is_mx else ScalingType.RowWise,)),
        (offs, bias, out_dtype),
        "out_dtype",
    )


def _by_recipes(  # noqa: PLR0913, PLR0917  # torch's own
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: _Tensors,
    scale_recipe_a: _Recipes,
    scale_b: _Tensors,
    scale_recipe_b: _Recipes,
    swizzle_a: _Swizzles = None,
    swizzle_b: _Swizzles = None,
    bias: Tensor | None = None,
    offs: Tensor | None = None,
    output_dtype: torch.dtype | None = torch.bfloat16,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,  # noqa: ARG001  # torch's own
) -> Tensor:
    operands: list[_Operand] = []
    for name, scales, recipes, swizzles in (
        ("a", scale_a, scale_recipe_a, swizzle_a),
        ("b", scale_b, scale_recipe_b, swizzle_b),
    ):
        listed = _listed(f"scale_recipe_{name}", recipes, ScalingType)
        _require_swizzle(name, listed, _listed(f"swizzle_{name}", swizzles, SwizzleType))
        operands.append((_listed(f"scale_{name}", scales, Tensor), listed))
    of_a, of_b = operands
    rest = (offs, bias, output_dtype)
    return _product(mat_a, mat_b, of_a, of_b, rest, "output_dtype", contraction_dim)


def _product(
    mat_a: Tensor,
    mat_b: Tensor,
    of_a: _Operand,
    of_b: _Operand,
    rest: tuple[Tensor | None, Tensor | None, torch.dtype | None],
    name_of_out_dtype: str,
    contraction_dim: Sequence[int] = (),
) -> Tensor:
    """
    Return the product of operands with their scales and recipes; `rest`: offs, bias, dtype, which
    the caller's function calls `name_of_out_dtype`.
    """
    names = tuple("+".join(recipe.name for recipe in recipes) for _, recipes in (of_a, of_b))
    if names not in _KINDS:
        known = ", ".join(f"{a} with {b}" for a, b in _KINDS)
        found = " with ".join(name or "none" for name in names)
        raise InputError("scale_recipe_a", f"must be one of {known} (got {found})")
    for name, (scales, recipes) in (("scale_a", of_a), ("scale_b", of_b)):
        if len(scales) != len(recipes):
            raise InputError(
                name, f"must be a tensor for each recipe, {len(recipes)} (got {len(scales)})"
            )
    offs, bias, out_dtype = rest
    given = Given(mat_a=mat_a, mat_b=mat_b, offs=offs, bias=bias)
    every = (("scale_a", x) for x in of_a[0]), (("scale_b", x) for x in of_b[0])
    check(_NAME, given, (*every[0], *every[1]), (name_of_out_dtype, out_dtype))
    _require_contraction(mat_a, mat_b, contraction_dim)
    if mat_a.dim() == mat_b.dim() == 2 and names != _ALONG_K:
        raise InputError(
            "scale_recipe_a",
            f"must be {' with '.join(_ALONG_K)} where groups are along K, as in "
            f"{shapes(mat_a, mat_b)} (got {' with '.join(names)})",
        )
    scales = _KINDS[names](mat_a, mat_b, of_a[0], of_b[0])
    return product(_NAME, given, scales, out_dtype or torch.bfloat16, name_of_out_dtype)


_Scales = tuple[Tensor, ...]


def _of_rows(_mat_a: Tensor, _mat_b: Tensor, of_a: _Scales, of_b: _Scales) -> Scales:
    return Scales(of_a[0], of_b[0], is_by_row=True)


def _of_tensors(_mat_a: Tensor, _mat_b: Tensor, of_a: _Scales, of_b: _Scales) -> Scales:
    return Scales(of_a[0], of_b[0])


def _blocks(_mat_a: Tensor, mat_b: Tensor, of_a: _Scales, of_b: _Scales) -> Scales:
    """
    Return block scales in the order of kernels: those of mat_b, (G, KB, NB) in torch, become (G,
    NB, KB).
    """
    if mat_b.dim() != 3 or of_b[0].dim() != 3:
        raise InputError(
            "scale_b",
            "must have 3 dimensions, (G, ceil(K / 128), ceil(N / 128)), as a 3D mat_b has (got "
            f"{tuple(of_b[0].shape)} for {tuple(mat_b.shape)})",
        )
    return Scales(of_a[0], of_b[0].transpose(1, 2))


def _mx(mat_a: Tensor, mat_b: Tensor, of_a: _Scales, of_b: _Scales) -> Scales:
    return Scales(
        _atoms("scale_a", of_a[0], mat_a, mat_a.shape[-1], 32),
        _atoms("scale_b", of_b[0], mat_b, mat_b.shape[-2], 32),
    )


def _nv(mat_a: Tensor, mat_b: Tensor, of_a: _Scales, of_b: _Scales) -> Scales:
    groups = max((mat.shape[0] for mat in (mat_a, mat_b) if mat.dim() == 3), default=1)
    return Scales(
        _atoms("scale_a", of_a[0], mat_a, mat_a.shape[-1], 16),
        _atoms("scale_b", of_b[0], mat_b, mat_b.shape[-2], 16),
        (of_a[1] * of_b[1]).reshape(-1).expand(groups).contiguous(),
    )


def _atoms(name: str, scale: Tensor, matrix: Tensor, elements: int, values: int) -> Tensor:
    """Return a view of scales in torch's blocked order as kernels take them."""
    per_element = 2 if matrix.dtype is torch.float4_e2m1fn_x2 else 1
    columns = ceil_div(ceil_div(elements * per_element, values), PLACES)
    front = matrix.shape[:-2]
    wanted = columns * (BYTES if front else PLACES)
    is_right = scale.dim() == 2 and scale.is_contiguous() and scale.shape[1] % wanted == 0
    if not is_right or (front and scale.shape[0] != front[0]):
        size = f"(G, a multiple of {wanted})" if front else f"(R, {wanted})"
        raise InputError(
            name,
            f"must be contiguous, {size}, in blocks of 128 rows x 4 scales along K (got "
            f"{tuple(scale.shape)}, strides {scale.stride()})",
        )
    if not front:
        scale = scale[: scale.shape[0] // ROWS * ROWS]
    return scale.reshape(*front, -1, columns, BYTES)


_ALONG_K = ("RowWise", "RowWise")
"""The recipes of operands whose groups are along K: their scales are applied after the sums."""

_KINDS: dict[tuple[str, ...], Callable[[Tensor, Tensor, _Scales, _Scales], Scales]] = {
    _ALONG_K: _of_rows,
    ("TensorWise", "TensorWise"): _of_tensors,
    ("BlockWise1x128", "BlockWise128x128"): _blocks,
    ("BlockWise1x32", "BlockWise1x32"): _mx,
    ("BlockWise1x16+TensorWise", "BlockWise1x16+TensorWise"): _nv,
}
"""Functions that make jitgen's scales of torch's, by the recipes of both operands."""


def _listed(name: str, value: Any, kind: type) -> tuple[Any, ...]:
    """
    Return, as a tuple, an argument that torch takes alone or in a list; each value must be a
    `kind`.
    """
    if value is None:
        return ()
    found = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if wrong := [each for each in found if not isinstance(each, kind)]:
        raise InputError(
            name,
            f"must be a {kind.__name__.removeprefix('_')}, or several (got "
            f"{type(wrong[0]).__name__})",
        )
    return found


def _require_swizzle(name: str, recipes: tuple[Any, ...], swizzles: tuple[Any, ...]) -> None:
    """
    Require scales of one byte to be swizzled, and all others not to be; a swizzle that is left out
    is none.
    """
    for place, recipe in enumerate(recipes):  # without any, that is the mistake to tell
        is_blocked = recipe.name in {"BlockWise1x16", "BlockWise1x32"}
        wanted = "SWIZZLE_32_4_4" if is_blocked else "NO_SWIZZLE"
        found = swizzles[place].name if place < len(swizzles) else "NO_SWIZZLE"
        if found != wanted:
            raise InputError(f"swizzle_{name}", f"must be {wanted} for {recipe.name} (got {found})")
    if recipes and len(swizzles) > len(recipes):
        raise InputError(
            f"swizzle_{name}", f"must be one for each recipe, {len(recipes)} (got {len(swizzles)})"
        )


def _require_contraction(mat_a: Tensor, mat_b: Tensor, dims: Sequence[int]) -> None:
    """
    Require contracted dimensions, if given, to be torch's default: K, last in mat_a, last but one
    in mat_b.
    """
    usual = (mat_a.dim() - 1, mat_b.dim() - 2)
    if dims and tuple(d % m.dim() for d, m in zip(dims, (mat_a, mat_b), strict=False)) != usual:
        raise InputError(
            "contraction_dim",
            f"must be left out or {list(usual)}: K is mat_a's last dimension, mat_b's one before "
            f"(got {list(dims)})",
        )
