# SPDX-License-Identifier: Apache-2.0
"""
`permute_quantize` of a few tokens that ranks send each other: the kernel waits for the rows in the
inbox of its rank, while the product after it loads weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config import Arch, Layout
from jitgen.config.dispatch import vectors_of
from jitgen.config.format import Format
from jitgen.config.permute_quantize import (
    MOST_PLACES,
    TAKEN,
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
from jitgen.ops.dispatch.rounds import Link
from jitgen.ops.dispatch.validate import check_link, require_places
from jitgen.ops.permute_quantize.validate import form_of
from jitgen.ops.scaled import Scaled, check_out
from jitgen.runtime.session import current

_OP = PermuteQuantizeProblem.op


def take_rows(
    link: Link, inverse: Tensor, columns: int, *, form: Format, out: Scaled | None = None
) -> tuple[Tensor, Tensor | None]:
    """
    Take tokens of all ranks from an inbox, in which the `dispatch` before has left them, and write
    them, quantised to `form`, in the order of experts. Bits are those of `jitgen.permute_quantize`
    of the tokens. On a GPU this is one launch on the current stream, which waits for other ranks.

    Args:
        link: That of `dispatch`, on a GPU; a rank that is late is an error.
        inverse: (T, top_k) int32, as `dispatch` returns it, T a multiple of the number of ranks. A
            token without rows is not waited for.
        columns: Columns of a token, K, a multiple of 16.
        form: ``none``, ``block128`` or ``row``.
        out: Where results go, as for `jitgen.permute_quantize`.

    Returns:
        q: (T * top_k, K) float8_e4m3fn, or bfloat16; rows of no expert are not written.
        scale: Its scales, as `jitgen.permute_quantize` returns them.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
        KernelMiss, CompileError: As `jitgen.permute_quantize`.
    """
    with calling("take_rows"):
        session = current.get()
        device = common.device_of(_OP, "inverse", inverse, session)
        if form not in TAKEN:
            raise InputError("form", f"must be none, block128 or row (got {form})")
        _check(link, inverse, columns)
        kind, rows = form_of(form), Rows((inverse.numel(),), 0)
        dtype = torch.bfloat16 if kind is None else torch.float8_e4m3fn
        like = torch.empty(0, dtype=dtype, device=inverse.device)
        if out is not None:
            shape = () if kind is None else kind.a_shape(rows, columns)
            given = (out, [dtype], ((*rows.shape, columns), "a row for each pair"), kind)
            check_out(*given, shape, ("inverse", inverse.device), has_memory=True)
        q, scale = (None, None) if out is None else out
        q = like.new_empty((*rows.shape, columns)) if q is None else q
        if scale is None and kind is not None:
            scale = kind.new_a(like, rows, columns)
        problem = PermuteQuantizeProblem(
            layout=Layout.RAGGED,
            m=len(inverse),
            k=columns,
            top_k=inverse.shape[1],
            format=form,
            walk=Walk.TAKE,
        )
        launch = launch_for(session, device, problem, None, "inverse")
        scales = () if scale is None else (scale,)
        launch.function(link.inbox, link.state, inverse, q, *scales, *launch.tail)
        return q, scale


def check_direct(config: PermuteQuantizeConfig, arch: Arch, arguments: tuple[object, ...]) -> None:
    """
    Check the arguments of a direct call of a kernel that takes tokens.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    found = direct.read(config, arch, current.get(), arguments, config.arguments)
    inbox, q, inverse = found["inbox"], found["q"], found["inverse"]
    common.require("inbox", inbox, [torch.int32], rank=(3, "(ranks, places, 4)"))
    peers = torch.zeros(len(inbox), dtype=torch.int64, device=inbox.device)
    kind = form_of(config.format)
    dtype = torch.bfloat16 if kind is None else torch.float8_e4m3fn
    common.require("q", q, [dtype], rank=(2, "(M, K)"), like=("inbox", inbox.device), contiguous=-1)
    _check(Link(inbox, peers, found["state"]), inverse, q.shape[1])
    direct.require_rows("q", len(q))
    direct.require_bytes("q", q)
    if kind is not None:
        shape = kind.a_shape(Rows((len(q),), 0), q.shape[1])
        direct.require_scales("scale", found["scale"], kind, shape)


def _check(link: Link, inverse: Tensor, columns: int) -> None:
    """Require an inbox of tokens, and the rows that they go to."""
    common.require("inverse", inverse, [torch.int32], rank=(2, "(T, top_k)"))
    if link.can_mask or link.by_flags:
        raise InputError("link", "must be without notes and flags")
    check_link(link, ("inverse", inverse.device))
    (tokens, top_k), ranks = inverse.shape, link.ranks
    if not tokens or tokens % ranks or not 1 <= top_k <= MOST_PLACES:
        allowed = f"(a multiple of {ranks}, 1 to {MOST_PLACES}), tokens of all ranks"
        raise InputError("inverse", f"must have shape {allowed} (got {tuple(inverse.shape)})")
    common.require("inverse", inverse, contiguous=-1)
    if columns < 1 or columns % 16:
        raise InputError("columns", f"must be a multiple of 16 (got {columns})")
    require_places(link, tokens // ranks, vectors_of(columns, top_k, Format.NONE))
