# SPDX-License-Identifier: Apache-2.0
"""
Checks the tensors of `grouped_gemm` with prepacked weights: each rule has its own error, as in
`jitgen.ops.grouped_gemm.validate`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config import Arch, BLayout, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import Operands
from jitgen.config.layouts import ARGUMENT
from jitgen.errors import InputError
from jitgen.formats.prepacked import PrepackedWeights
from jitgen.formats.protocol import OF_TORCH, TORCH, ceil_div
from jitgen.formats.split import PARTS
from jitgen.ops.grouped_gemm.validate import Arguments, Validated, check_bias, check_the_rest
from jitgen.ops.tensors import (
    check_groups,
    check_memory,
    check_out,
    check_size,
    device_of,
    layout_of,
    refuse_gradients,
    require,
)
from jitgen.runtime.session import Session
from jitgen.targets.legality import rules

_OP = "grouped_gemm"


PrepackedArguments = Arguments[PrepackedWeights]


def tensors_of(args: PrepackedArguments) -> dict[str, Tensor]:
    """
    Return every tensor among the arguments, in their order; prepacked weights are two tensors.
    """
    found: dict[str, object] = {}
    for name, value in zip(args._fields, args, strict=True):
        if isinstance(value, PrepackedWeights):
            found |= {"b": value.values, "b.factor": value.factor}
        else:
            found[name] = value
    return {name: each for name, each in found.items() if isinstance(each, Tensor)}


def validate(args: PrepackedArguments, session: Session, *, has_memory: bool = True) -> Validated:
    """
    Check the arguments and return the sizes, types and target of the call, as `Call.validate` does.

    Raises:
        InputError: An argument is wrong; the checks run in the order of this function.
    """
    a, b = args.a, args.b
    device = device_of(_OP, "a", a, session)
    arch = device.arch
    if not isinstance(b, PrepackedWeights):
        require("b", b)
    layout, groups = layout_of(args.offs, args.m_indices, args.masked_m)
    if not _prepacked(arch):
        raise InputError(
            "b",
            f"was prepacked, and {arch} has no kernel for that: give weights and scales as they"
            " were quantised",
        )
    for name in ("b_scale", "alpha"):
        if getattr(args, name) is not None:
            raise InputError(name, "is part of prepacked weights: leave it out")
    a_dtype, front = _activations(args, layout)
    length = a.shape[0] if layout is Layout.CONTIGUOUS else b.groups
    check_groups(ARGUMENT[layout], groups, length, ("a", a.device))
    shape = (*front, b.n)
    of_out = (shape, "rows of a by columns of b")
    known = {TORCH[each.out_dtype] for each in _prepacked(arch)}
    operands = Operands(
        a_dtype=a_dtype,
        b_dtype=b.format.facts.b_dtype,
        out_dtype=OF_TORCH[check_out(args.out, args.out_dtype, known, arch, of_out)],
        scale_granularity=b.format.facts.scale_granularity,
        a_scale_granularity=_a_scales(args, a_dtype, front),
        b_layout=b.layout,
    )
    valid = Validated(
        device=device,
        layout=layout,
        operands=operands,
        groups=b.groups,
        rows=front[-1],
        n=b.n,
        k=b.k,
        shape=shape,
    )
    check_size(valid, "b")
    check_bias(args.bias, b.groups, b.n)
    alignment = rules(arch, _OP).alignment
    tensors = [("a", a), ("b", b.values), ("bias", args.bias), ("out", args.out)]
    aligned = [(name, tensor, alignment) for name, tensor in tensors]
    check_memory(aligned, ("a", a.device), has_memory=has_memory)
    check_the_rest(args)
    refuse_gradients(tensors_of(args), _OP)
    return valid


def _prepacked(arch: Arch) -> tuple[Operands, ...]:
    """Return the operands with prepacked weights that `arch` has kernels for."""
    return rules(arch, _OP).space.prepacked  # type: ignore[attr-defined,no-any-return]


def _activations(args: PrepackedArguments, layout: Layout) -> tuple[DType, tuple[int, ...]]:
    """Return the type of a, and its leading sizes, without K and the two parts."""
    a, b = args.a, args.b
    is_wide = b.layout is BLayout.WIDE1
    wanted = torch.bfloat16 if is_wide else torch.float8_e4m3fn
    if a.dtype is not wanted:
        narrow = [layout for layout in b.format.facts.partials if layout is not BLayout.WIDE1]
        advice = (
            f"prepack them as {' or '.join(narrow)} for float8_e4m3fn"
            if is_wide
            else "prepack them as wide1 for bfloat16, or split it: jitgen.quantize.split_bf16"
        )
        raise InputError(
            "a",
            f"must be {str(wanted).removeprefix('torch.')}, which weights prepacked as {b.layout} "
            f"are for (got {a.dtype}); {advice}",
        )
    rank = 3 if layout is Layout.MASKED else 2
    words = "(G, M, K)" if rank == 3 else "(M, K)"
    has_parts = not is_wide and a.dim() == rank + 1
    if not has_parts:
        require("a", a, rank=(rank, f"{words} for {layout}, or one more where bfloat16 was split"))
    front: tuple[int, ...] = tuple(a.shape[: rank - 1])
    if layout is Layout.MASKED:
        front = (b.groups, a.shape[1])
    parts = (PARTS,) if has_parts else ()
    require("a", a, shape=((*front, *parts, b.k), f"as b was prepacked with K = {b.k}"))
    require("b", b.values, like=("a", a.device))
    return DType.E4M3X2 if has_parts else OF_TORCH[a.dtype], front


def _a_scales(args: PrepackedArguments, a_dtype: DType, front: tuple[int, ...]) -> ScaleGranularity:
    """
    Return the scale granularity of a, from its type and the number of dimensions of its scales.
    """
    scale = args.a_scale
    if a_dtype is DType.BF16:
        if scale is not None:
            raise InputError("a_scale", "belongs to float8_e4m3fn: leave it out with bfloat16")
        return ScaleGranularity.NONE
    if scale is None:
        raise InputError("a_scale", "is required for float8_e4m3fn operands (got None)")
    require("a_scale", scale, [torch.float32])
    granularity, shape = ScaleGranularity.ROW, front
    if a_dtype is DType.E4M3X2:
        shape = (*front, PARTS)
    elif scale.dim() == len(front) + 1:
        granularity, shape = ScaleGranularity.BLOCK128, (*front, ceil_div(args.b.k, 128))
    require(
        "a_scale",
        scale,
        shape=(shape, f"for {granularity} scales of {a_dtype}"),
        like=("a", args.a.device),
    )
    if granularity is ScaleGranularity.ROW and not scale.is_contiguous():
        raise InputError("a_scale", f"must be contiguous (got strides {scale.stride()})")
    return granularity
