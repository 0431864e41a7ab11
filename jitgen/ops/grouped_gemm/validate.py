# SPDX-License-Identifier: Apache-2.0
"""
Checks the tensors of `grouped_gemm`: each rule has its own error.

A message names the argument and says what is required and what was given. The compiled entry checks
most of this itself, so these rules run only for a new combination of shapes, or if the entry raises
an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from jitgen.config import Arch, BLayout, Config, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import Operands
from jitgen.config.layouts import ARGUMENT
from jitgen.errors import InputError
from jitgen.formats import every_format, format_of_b
from jitgen.formats.protocol import OF_TORCH, TORCH, Rows, ScaleFormat
from jitgen.ops.tensors import (
    AnyValidated,
    Size,
    check_groups,
    check_memory,
    check_out,
    check_size,
    describe,
    device_of,
    layout_of,
    needs_gradient,
    refuse_gradients,
    require,
    require_count,
    require_rows_apart,
    result_of,
)
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session
from jitgen.selection.numerics import require_word
from jitgen.support.frozen import frozen
from jitgen.targets.gemm import Space
from jitgen.targets.legality import rules

_OP = "grouped_gemm"
_TRAINED = (torch.bfloat16, torch.float16, torch.float32)
_WITH_GRADIENTS = ("a", "b", "bias")


Weights = TypeVar("Weights")
"""Type of weights: a tensor, or `PrepackedWeights`."""


class Arguments(NamedTuple, Generic[Weights]):
    """
    The arguments of one call of `grouped_gemm`, as the caller gave them.

    Graphs of torch and guards of warm calls use this order. So a new argument is added at the end.
    """

    a: Tensor
    b: Weights
    a_scale: Tensor | None = None
    b_scale: Tensor | None = None
    offs: Tensor | None = None
    m_indices: Tensor | None = None
    masked_m: Tensor | None = None
    alpha: Tensor | None = None
    out: Tensor | None = None
    out_dtype: torch.dtype | None = None
    expected_m: Size | None = None
    min_latency: bool | None = None
    config: Config | Override | None = None
    bias: Tensor | None = None
    numerics: str | None = None


@frozen
class Validated(AnyValidated):
    """
    Sizes and types of a valid call; a tracer's sizes may be symbols.

    Attributes:
        layout: How rows belong to groups.
        operands: The types of the operands, as configs have them.
        groups: Number of groups.
        rows: Rows of a; in the masked layout, of one group.
        n: Columns of the output.
        k: Length of the sums.
        shape: Shape of the output.
    """

    op = _OP

    layout: Layout
    operands: Operands
    groups: int
    rows: int
    n: int
    k: int
    shape: tuple[int, ...]


def validate(args: Arguments[Tensor], session: Session, *, has_memory: bool = True) -> Validated:
    """
    Check the arguments and return the sizes, types and target of the call, as `Call.validate` does.

    Raises:
        InputError: An argument is wrong; the checks run in the order of this function.
    """
    a, b = args.a, args.b
    device = device_of(_OP, "a", a, session)
    arch = device.arch
    require("b", b)
    layout, groups = layout_of(args.offs, args.m_indices, args.masked_m)
    space = _space(arch)
    is_masked = layout is Layout.MASKED
    rank = (3, f"(G, M, K) for {layout}") if is_masked else (2, f"(M, K) for {layout}")
    require("a", a, _torch_types(space.of_a), arch=arch, rank=rank)
    of_a = OF_TORCH[a.dtype]
    require("b", b, _torch_types(space.of_b(of_a)), rank=(3, "(G, N, K)"))
    of_b = OF_TORCH[b.dtype]
    num_groups, n, k = b.shape
    k *= of_b.values_per_element
    if num_groups == 0:
        raise InputError("b", "must have at least one group: the group list is empty")
    front = (num_groups, a.shape[1]) if is_masked else (a.shape[0],)
    wanted = (*front, k // of_a.values_per_element)
    if tuple(a.shape) != wanted:
        require("a", a, shape=(wanted, f"as b has shape {tuple(b.shape)}{_hint(a, b, k)}"))
    for name, size in (("K", k), ("N", n)):
        if size == 0:
            raise InputError("b", f"must have {name} of at least 1 (got 0)")
    length = a.shape[0] if layout is Layout.CONTIGUOUS else num_groups
    check_groups(ARGUMENT[layout], groups, length, ("a", a.device))
    is_unscaled = space.is_unscaled(of_a, of_b)
    form = _format(args, is_unscaled=is_unscaled)
    known = {TORCH[dtype] for dtype in space.of_out(of_a)}
    shape = ((*a.shape[:-1], n), "rows of a by columns of b")
    usual = result_of(a.dtype)
    out_dtype = OF_TORCH[check_out(args.out, args.out_dtype, known, arch, shape, usual)]
    b_layout = _b_layout(b, space, of_a)
    valid = Validated(
        device=device,
        layout=layout,
        operands=Operands(
            a_dtype=of_a,
            b_dtype=of_b,
            out_dtype=out_dtype,
            scale_granularity=ScaleGranularity.TENSOR if form is None else form.name,
            a_scale_granularity=ScaleGranularity.NONE if is_unscaled else None,
            b_layout=b_layout,
        ),
        groups=num_groups,
        rows=a.shape[-2],
        n=n,
        k=k,
        shape=shape[0],
    )
    check_size(valid, "b")
    if form is not None:
        _check_scales(form, args, valid)
    _check_alpha(form, args, num_groups)
    check_bias(args.bias, num_groups, n)
    alignment = rules(arch, _OP).alignment
    of_b_alone = alignment if of_a is of_b else max(alignment, space.mixed_alignment)
    check_memory(
        [
            ("a", a, alignment),
            ("b", b, of_b_alone),
            ("bias", args.bias, min(alignment, 4)),
            ("out", args.out, alignment),
        ],
        ("a", a.device),
        has_memory=has_memory,
        across="b" if b_layout is BLayout.N_MAJOR else "",
    )
    check_the_rest(args)
    require_differentiable(args._asdict())
    return valid


def require_differentiable(given: Mapping[str, object]) -> None:
    """
    Check that every gradient that autograd needs exists.

    Args:
        given: Arguments of `grouped_gemm` by their names; those that are missing count as None.

    Raises:
        InputError: It needs a gradient that does not exist; the message has advice.
    """
    if not needs_gradient(given.values()):
        return
    a, b = given["a"], given["b"]
    why = advice = ""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or {a.dtype, b.dtype} - {*_TRAINED}:
        why = "quantised operands have none"
        advice = "train with bfloat16 operands and quantise them for inference, "
    elif given.get("a_scale") is not None or given.get("b_scale") is not None:
        why = "products with scales have none"
        advice = "multiply a and b by them before, "
    elif given.get("out") is not None:
        why = "what is written to out has none"
        advice = "leave out `out`, "
    if why:
        refuse_gradients(given, _OP, why, advice)
    others = {name: value for name, value in given.items() if name not in _WITH_GRADIENTS}
    refuse_gradients(others, _OP)


def _b_layout(b: Tensor, space: Space, of_a: DType) -> BLayout:
    """
    Return the layout of b by its strides. A K of 1 counts as contiguous; an N of 1 does if K is not
    contiguous.
    """
    _, n, k = b.shape
    if of_a not in space.n_major or b.stride(2) == 1 or k == 1:
        return BLayout.PLAIN
    if b.stride(1) != 1 and n != 1:
        raise InputError("b", f"must have K or N contiguous (got strides {b.stride()})")
    return BLayout.N_MAJOR


def check_bias(bias: Tensor | None, groups: int, n: int) -> None:
    """Require a bias of shape (G, N), or None."""
    if bias is None:
        return
    require("bias", bias, [torch.float32], shape=((groups, n), "which is (G, N)"), contiguous=-1)


def check_the_rest(args: Arguments[Weights]) -> None:
    """
    Check that out does not overlap with itself, and that expected_m, min_latency and numerics are
    valid.
    """
    require_rows_apart(args.out)
    require_count("expected_m", args.expected_m)
    if args.min_latency is not None and type(args.min_latency) is not bool:
        raise InputError("min_latency", f"must be True, False or None (got {args.min_latency!r})")
    if args.numerics is not None:
        require_word(args.numerics)


def _space(arch: Arch) -> Space:
    """Return the space of configs that `arch` has kernels for."""
    return rules(arch, _OP).space  # type: ignore[attr-defined,no-any-return]


def _torch_types(dtypes: Sequence[DType]) -> list[torch.dtype]:
    """Return every type of torch that holds values of one of `dtypes`."""
    return [of_torch for of_torch, dtype in OF_TORCH.items() if dtype in dtypes]


def _hint(a: Tensor, b: Tensor, k: int) -> str:
    """Return a likely reason why a has another K than b, as text; empty if none is known."""
    of_a, of_b = OF_TORCH[a.dtype], OF_TORCH[b.dtype]
    if a.shape[-1] * of_a.values_per_element == k:
        return ""
    if of_a.values_per_element != of_b.values_per_element:
        return f": {of_b} has two values a byte, {of_a} one"
    if a.shape[-1] == b.shape[1]:
        return ", (G, N, K); jitgen.torch.grouped_mm takes torch's order, (G, K, N)"
    return ""


def _format(args: Arguments[Tensor], *, is_unscaled: bool) -> ScaleFormat | None:
    """Return the format of the scales, which follows from b_scale; None without scales."""
    a_scale, b_scale = args.a_scale, args.b_scale
    if is_unscaled:
        return _format_of_b(args)
    if a_scale is None and b_scale is None:
        if OF_TORCH[args.a.dtype].bits <= 8:
            of_torch = describe({args.a.dtype})
            raise InputError("a_scale", f"is required for {of_torch} operands (got None)")
        return None
    if a_scale is None or b_scale is None:
        name = "a_scale" if a_scale is None else "b_scale"
        raise InputError(name, "is required where the other scale is given (got None)")
    require("a_scale", a_scale)
    form = _named_by(b_scale)
    have = {OF_TORCH[args.a.dtype], OF_TORCH[args.b.dtype]}
    if wrong := [dtype for dtype in DType if dtype in have - {*form.name.operands}]:
        raise InputError(
            "b_scale",
            f"has the type and dimensions of {form.name} scales, which are for operands of "
            f"{' or '.join(form.name.operands)} (got {' and '.join(wrong)})",
        )
    return form


def _format_of_b(args: Arguments[Tensor]) -> ScaleFormat:
    """Return the format of b's scales if a has no scales."""
    b_scale, of_a, of_b = args.b_scale, OF_TORCH[args.a.dtype], OF_TORCH[args.b.dtype]
    if args.a_scale is not None:
        raise InputError(
            "a_scale",
            f"belongs to quantised a: leave it out with {describe({args.a.dtype})}, which is "
            f"multiplied with {of_b} as it is; or quantise a: jitgen.quantize",
        )
    if b_scale is None:
        raise InputError("b_scale", f"is required for {of_b} beside {of_a} (got None)")
    form = _named_by(b_scale)
    if form.name is not ScaleGranularity.MX32:
        raise InputError(
            "b_scale",
            f"must be mx32 scales where a is {of_a} and b {of_b} (got {form.name} ones)",
        )
    return form


def _named_by(b_scale: Tensor) -> ScaleFormat:
    """Return the format that has the type and the number of dimensions of b_scale."""
    require("b_scale", b_scale)
    form = format_of_b(b_scale)
    if form is None or form.dtype is not b_scale.dtype:
        require("b_scale", b_scale, [form.dtype for form in every_format()])
        of_type = [each for each in every_format() if each.dtype is b_scale.dtype]
        first, *others = (f"(a scale {each.words})" for each in of_type)
        text = f"{of_type[0].b_rank} dimension{'s' * (of_type[0].b_rank > 1)} {first}"
        if others:
            ranks = [f"{n.b_rank} {why}" for n, why in zip(of_type[1:], others, strict=True)]
            text += f", {', '.join(ranks[:-1])} or {ranks[-1]}"
        raise InputError("b_scale", f"must have {text} (got shape {tuple(b_scale.shape)})")
    return form


def _check_scales(form: ScaleFormat, args: Arguments[Tensor], valid: Validated) -> None:
    """Require scales with the shapes, types and strides of `form`."""
    a_scale, b_scale = args.a_scale, args.b_scale
    if b_scale is None:
        return
    wanted = [("b_scale", b_scale, form.b_shape(valid.groups, valid.n, valid.k))]
    is_ragged = valid.layout is Layout.RAGGED
    rows = Rows(tuple(args.a.shape[:-1]), valid.groups if is_ragged else 0)
    a_shape = form.a_shape(rows, valid.k)
    if a_scale is not None:
        if form.has_atoms and a_scale.dim() == len(a_shape) and a_scale.shape[-3] > a_shape[-3]:
            a_shape = (*a_shape[:-3], a_scale.shape[-3], *a_shape[-2:])  # blocks more than needed
        wanted.append(("a_scale", a_scale, a_shape))
    for name, scale, shape in wanted:
        is_as_it_lies = name == "b_scale" or not form.has_readable_orders
        require(
            name,
            scale,
            [form.dtype],
            shape=(shape, f"for {form.name} scales, which b_scale's dimensions name"),
            like=("a", args.a.device),
            contiguous=-1 if is_as_it_lies else None,
        )


def _check_alpha(form: ScaleFormat | None, args: Arguments[Tensor], groups: int) -> None:
    """
    Require `alpha`, one factor for each group, if and only if the format of the scales has such
    factors.
    """
    alpha = args.alpha
    if form is None or not form.has_alpha:
        if alpha is not None:
            what = "operands without scales" if form is None else f"{form.name} scales"
            raise InputError("alpha", f"belongs to nv16 scales: leave it out with {what}")
        return
    if alpha is None:
        raise InputError(
            "alpha",
            f"is required with {form.name} scales: (G,) float32, a's global scale times b's (got "
            "None)",
        )
    require(
        "alpha",
        alpha,
        [torch.float32],
        shape=((groups,), "which is (G,)"),
        like=("a", args.a.device),
        contiguous=-1,
    )
