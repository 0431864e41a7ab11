# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of `permute_quantize`: each rule has its own error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from jitgen.config import Arch, Config, Layout
from jitgen.config.format import Format
from jitgen.config.layouts import ARGUMENT
from jitgen.config.permute_quantize import MOST_PLACES, Walk
from jitgen.config.quantize import Rounding
from jitgen.errors import InputError
from jitgen.formats import find_format
from jitgen.formats.protocol import TORCH, Rows, ScaleFormat
from jitgen.ops import tensors as common
from jitgen.ops.scaled import Scaled, check_out
from jitgen.ops.tensors import AnyValidated, Size, check_size, device_of
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session
from jitgen.support.frozen import frozen
from jitgen.support.moved import FORMATS, warn
from jitgen.targets.legality import rules

_FORMATS = {str(each): each for each in Format} | {old: Format(new) for old, new in FORMATS.items()}
_PAIRS = (torch.float4_e2m1fn_x2, torch.uint8)


class Arguments(NamedTuple):
    """The arguments of one call of `permute_quantize`, as the caller gave them."""

    x: Tensor
    permutation: Tensor
    top_k: int
    offs: Tensor | None = None
    m_indices: Tensor | None = None
    masked_m: Tensor | None = None
    inverse: Tensor | None = None
    format: str = "block128"
    q_dtype: torch.dtype | None = None
    global_scale: Tensor | None = None
    power_of_two: bool = False
    rounding: str = "up"
    out: Scaled | None = None
    config: Config | Override | None = None
    expected_m: Size | None = None


@frozen
class Validated(AnyValidated):
    """
    Sizes and types of a valid call; a tracer's sizes may be symbols.

    Attributes:
        layout: How rows belong to groups.
        format: Format of the result.
        walk: What kernels walk over.
        rounding: Rounding of scales that are powers of two in one byte.
        groups: 1, because the choice depends only on tokens.
        num_groups: Groups of ragged and masked rows; 0 for contiguous ones: not known.
        rows: Tokens.
        k: Columns.
    """

    op = "permute_quantize"

    layout: Layout
    format: Format
    walk: Walk
    rounding: Rounding
    groups: int
    num_groups: int
    rows: int
    k: int


def format_of(name: object, q_dtype: object) -> Format:
    """
    Return the format of the result.

    Raises:
        InputError: There is no such format, or no such type with it.
    """
    form = _FORMATS.get(name) if isinstance(name, str) else None
    if form is None:
        raise InputError("format", f"must be one of {', '.join(Format)} (got {name!r})")
    if name == "mx32" and q_dtype in _PAIRS:
        form = Format.MXFP4
    usual = TORCH[form.q_dtype]
    allowed_types = _PAIRS if usual in _PAIRS else (usual,)
    if q_dtype is not None and q_dtype not in allowed_types:
        raise InputError(
            "q_dtype", f"must be {common.describe({usual})} for {name} (got {q_dtype})"
        )
    return form


def walk_of(form: Format, layout: Layout, inverse: Tensor | None, arch: Arch) -> Walk:
    """
    Return whether the kernel walks over tokens, which needs the inverse and a kernel for it, or
    over rows.
    """
    is_free = inverse is not None and layout is Layout.RAGGED and arch.is_gpu
    return Walk.SCATTER if is_free and not form.has_atoms else Walk.GATHER


def validate(args: Arguments, session: Session, *, has_memory: bool = True) -> Validated:
    """
    Check the arguments and return the sizes, types and target of the call, as `Call.validate` does.

    Raises:
        InputError: An argument is wrong; the checks run in the order of this function.
    """
    x, top_k = args.x, args.top_k
    device = device_of(Validated.op, "x", x, session)
    arch = device.arch
    layout, groups = common.layout_of(args.offs, args.m_indices, args.masked_m)
    common.require("x", x, [torch.bfloat16], arch=arch, rank=(2, "(T, K)"))
    if x.shape[1] == 0:
        raise InputError("x", "must have at least one column (got 0)")
    if type(top_k) is not int or not 1 <= top_k <= MOST_PLACES:
        raise InputError("top_k", f"must be an integer from 1 to {MOST_PLACES} (got {top_k!r})")
    form = format_of(args.format, args.q_dtype)
    if args.format in FORMATS:
        warn(f"format={args.format!r} of permute_quantize", repr(str(form)))
    _check_rows(args, layout, groups)
    _check_options(args, form)
    valid = Validated(
        device=device,
        layout=layout,
        format=form,
        walk=walk_of(form, layout, args.inverse, arch),
        rounding=Rounding(args.rounding),
        groups=1,
        num_groups=0 if layout is Layout.CONTIGUOUS else groups.shape[0],
        rows=x.shape[0],
        k=x.shape[1],
    )
    check_size(valid, "x")
    _check_tensors(args, valid, has_memory=has_memory)
    require_differentiable(args._asdict())
    return valid


def require_differentiable(given: Mapping[str, object]) -> None:
    """
    Check that autograd needs no gradient but that of x, which exists for format ``none`` with an
    inverse and without `out`.

    Args:
        given: Arguments of `permute_quantize` by their names.

    Raises:
        InputError: Autograd needs another gradient; the message has advice.
    """
    common.refuse_other_gradients(
        common.flat(given),
        Validated.op,
        ("x",),
        (
            (given.get("out") is not None, *common.OUT_HAS_NONE),
            (
                given["format"] != Format.NONE,
                "quantised rows have none",
                "gather by format='none', ",
            ),
            (given.get("inverse") is None, "it is found by the inverse", "give inverse=, "),
        ),
    )


def _check_rows(args: Arguments, layout: Layout, groups: Tensor) -> None:
    """Require a permutation, and the tensor that gives groups their rows, beside x."""
    x, permutation = args.x, args.permutation
    common.require("permutation", permutation, [torch.int32])
    is_masked = layout is Layout.MASKED
    of = f"{'(G, M)' if is_masked else '(M,)'} for {layout}"
    common.require(
        "permutation",
        permutation,
        rank=(2 if is_masked else 1, of),
        like=("x", x.device),
        contiguous=-1,
    )
    if layout is Layout.RAGGED:
        pairs = x.shape[0] * args.top_k
        common.require("permutation", permutation, shape=((pairs,), "a row for each pair of x"))
    common.require(ARGUMENT[layout], groups, rank=(1, "one number for each group or row"))
    if groups.shape[0] == 0 and layout is not Layout.CONTIGUOUS:
        raise InputError(ARGUMENT[layout], "must have at least one group: the group list is empty")
    length = groups.shape[0] if layout is Layout.RAGGED else permutation.shape[0]
    common.check_groups(ARGUMENT[layout], groups, length, ("x", x.device))
    if (inverse := args.inverse) is not None:
        common.require(
            "inverse",
            inverse,
            [torch.int32],
            shape=((x.shape[0], args.top_k), "a row for each pair"),
            like=("x", x.device),
            contiguous=-1,
        )


def _check_options(args: Arguments, form: Format) -> None:
    if type(args.power_of_two) is not bool:
        raise InputError("power_of_two", f"must be True or False (got {args.power_of_two!r})")
    if args.power_of_two and not form.has_float_scales:
        raise InputError(
            "power_of_two", f"is for block128 and row, whose scales are found here (got {form})"
        )
    if args.rounding not in tuple(Rounding):
        raise InputError("rounding", f"must be up or floor (got {args.rounding!r})")
    if args.rounding != Rounding.UP and form not in (Format.MXFP8, Format.MXFP4):
        raise InputError("rounding", f"is for mxfp8 and mxfp4 (got {args.rounding} for {form})")
    common.require_count("expected_m", args.expected_m)


def _check_tensors(args: Arguments, valid: Validated, *, has_memory: bool) -> None:
    """Require scale and out to fit, and memory that vectors can be read from."""
    x, out, scale, form = args.x, args.out, args.global_scale, valid.format
    if (scale is not None) != form.has_given_scale:
        what = f"is required for {args.format} (got None)"
        if scale is not None:
            what = f"belongs to tensor and nvfp4: leave it out with {args.format}"
        raise InputError("global_scale", what)
    if scale is not None:
        is_each = form is Format.NVFP4 and valid.layout is Layout.MASKED
        length = valid.num_groups if is_each else 1
        common.require("global_scale", scale, [torch.float32])
        why = "one for each matrix" if is_each else "one for all"
        common.require(
            "global_scale",
            scale,
            shape=((length,), why),
            like=("x", x.device),
            contiguous=0,
        )
    like, rows = ("x", x.device), tuple(args.permutation.shape)
    if out is not None:
        types = list(_PAIRS) if TORCH[form.q_dtype] in _PAIRS else [TORCH[form.q_dtype]]
        columns = valid.k // form.q_dtype.values_per_element
        of_scales, groups = form_of(form), counted(form, args.offs, valid.num_groups)
        check_out(
            out,
            types,
            ((*rows, columns), "rows of the permutation by columns of x"),
            of_scales,
            () if of_scales is None else of_scales.a_shape(Rows(rows, groups), valid.k),
            like,
            has_memory=has_memory,
        )
    alignment = rules(valid.arch, valid.op).alignment
    tensors = [("x", x, alignment), ("out[0]", None if out is None else out[0], alignment)]
    common.check_memory(tensors, like, has_memory=has_memory)


def form_of(form: Format) -> ScaleFormat | None:
    """Return the format of scales that a kernel finds, which is that of a GEMM's a."""
    return find_format(form.scales) if form.has_own_scales else None


def counted(form: Format, offs: Tensor | None, num_groups: int) -> int:
    """
    Return the number of ragged groups if scales lie in atoms, where each group begins with a new
    block of atoms; otherwise 0.
    """
    return num_groups if form.has_atoms and offs is not None else 0
