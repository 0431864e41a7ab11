# SPDX-License-Identifier: Apache-2.0
"""
`permute_quantize` of tokens that are quantised already, as ranks send them to each other: values
and scales are copied, and have the bits that quantising the rows would give.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen.config import Arch, Layout
from jitgen.config.dispatch import scale_shape
from jitgen.config.format import Format
from jitgen.config.permute_quantize import (
    MOST_PLACES,
    PermuteQuantizeConfig,
    PermuteQuantizeProblem,
    Walk,
)
from jitgen.errors import InputError
from jitgen.formats.protocol import Rows
from jitgen.ops import direct
from jitgen.ops import tensors as common
from jitgen.ops.call import calling
from jitgen.ops.dispatch.launch import launch_for
from jitgen.ops.dispatch.validate import check_scales
from jitgen.ops.permute_quantize.validate import form_of
from jitgen.ops.scaled import Scaled, check_out
from jitgen.runtime.session import current
from jitgen.targets.legality import rules

_OP = PermuteQuantizeProblem.op


def copy_rows(
    x: Tensor,
    x_scale: Tensor,
    inverse: Tensor,
    permutation: Tensor,
    *,
    form: Format,
    out: Scaled | None = None,
) -> tuple[Tensor, Tensor]:
    """
    Copy quantised tokens into the order of experts, with their scales. Tracers do not see it: a
    layer of several ranks is one operation to them.

    Args:
        x: (T, K) float8_e4m3fn, last dimension contiguous. On a GPU K is a multiple of 16, and
            address and strides are multiples of 16 bytes.
        x_scale: The scales of tokens, float32, contiguous, as `dispatch` returns them: (T,) for
            ``row``; (T, S) for ``block128``, S the next multiple of 4 above K / 128.
        inverse: (T, top_k) int32, as `jitgen.route` gives it.
        permutation: (T * top_k,) int32, likewise.
        form: ``block128`` or ``row``.
        out: Where results go, as for `jitgen.permute_quantize`.

    Returns:
        q: (T * top_k, K) float8_e4m3fn; rows of no expert are not written.
        scale: Its scales, as `jitgen.permute_quantize` returns them.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
        KernelMiss, CompileError: As `jitgen.permute_quantize`.
    """
    with calling("copy_rows"):
        session = current.get()
        device = common.device_of(_OP, "x", x, session)
        kind = form_of(form)
        if kind is None or not form.has_float_scales:
            raise InputError("form", f"must be block128 or row (got {form})")
        _check(x, x_scale, inverse, form)
        wanted = ((inverse.numel(),), "a row for each pair")
        common.require(
            *("permutation", permutation, [torch.int32]), shape=wanted, like=("x", x.device)
        )
        common.require("permutation", permutation, contiguous=-1)
        tokens, columns = x.shape
        rows = Rows((inverse.numel(),), 0)
        if out is not None:
            shape, like = (*rows.shape, columns), ("x", x.device)
            given = (out, [x.dtype], (shape, "a row for each pair"), kind)
            check_out(*given, kind.a_shape(rows, columns), like, has_memory=True)
        q, scale = (None, None) if out is None else out
        q = x.new_empty((*rows.shape, columns)) if q is None else q
        scale = kind.new_a(x, rows, columns) if scale is None else scale
        alignment = rules(device.arch, _OP).alignment
        tensors = [("x", x, alignment), ("out[0]", q, alignment)]
        common.check_memory(tensors, ("x", x.device), has_memory=True)
        if not tokens:
            return q, scale
        problem = PermuteQuantizeProblem(
            layout=Layout.RAGGED,
            m=tokens,
            k=columns,
            top_k=inverse.shape[1],
            format=form,
            walk=Walk.COPY,
        )
        launch = launch_for(session, device, problem, None, "x")
        config: Any = launch.config
        relay = (permutation,) if config.tiling.is_relayed else ()
        launch.function(x, x_scale, inverse, q, scale, *relay, *launch.tail)
        return q, scale


def check_direct(config: PermuteQuantizeConfig, arch: Arch, arguments: tuple[object, ...]) -> None:
    """
    Check the arguments of a direct call of a kernel that copies.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    found = direct.read(config, arch, current.get(), arguments, config.arguments)
    x, q, form = found["x"], found["q"], config.format
    _check(x, found["x_scale"], found["inverse"], form)
    common.require("q", q, [x.dtype], rank=(2, "(M, K)"), like=("x", x.device), contiguous=-1)
    common.require("q", q, shape=((len(q), x.shape[1]), "columns of x"))
    if config.tiling.is_relayed:
        wanted = ((len(q),), "a row for each row of q")
        common.require("permutation", found["permutation"], [torch.int32], shape=wanted)
    direct.require_rows("x", len(x))
    direct.require_rows("q", len(q))
    direct.require_bytes("q", q)
    if (kind := form_of(form)) is not None:
        shape = kind.a_shape(Rows((len(q),), 0), x.shape[1])
        direct.require_scales("scale", found["scale"], kind, shape)


def _check(x: Tensor, x_scale: Tensor, inverse: Tensor, form: Format) -> None:
    """Require quantised tokens with their scales, and the rows that they go to."""
    common.require("x", x, [torch.float8_e4m3fn], rank=(2, "(T, K)"), contiguous=-1)
    like, (tokens, columns) = ("x", x.device), x.shape
    check_scales("x_scale", x_scale, scale_shape(tokens, columns, form), form, like)
    common.require("inverse", inverse, [torch.int32], rank=(2, "(T, top_k)"), like=like)
    if len(inverse) != tokens or not 1 <= inverse.shape[1] <= MOST_PLACES:
        allowed = f"({tokens}, 1 to {MOST_PLACES}), a row for each token"
        raise InputError("inverse", f"must have shape {allowed} (got {tuple(inverse.shape)})")
    common.require("inverse", inverse, contiguous=-1)
