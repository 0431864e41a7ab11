# SPDX-License-Identifier: Apache-2.0
"""Arguments of direct calls of the kernels of `permute_quantize`: see `jitgen.ops.direct`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen.config import Arch, Layout
from jitgen.config.format import Format
from jitgen.config.layouts import ARGUMENT
from jitgen.config.permute_quantize import SORTED, PermuteQuantizeConfig, Walk
from jitgen.errors import InputError
from jitgen.formats.protocol import Rows
from jitgen.ops import direct
from jitgen.ops import tensors as common
from jitgen.ops.permute_quantize import copying, dispatch, sorting, taking
from jitgen.ops.permute_quantize.call import CALL
from jitgen.ops.permute_quantize.validate import Arguments, counted, form_of, validate
from jitgen.ops.route import validate as pairs
from jitgen.ops.route.results import Sorting
from jitgen.runtime.session import Session, current

_FIRST = "first_expert"
_NUMBERS = {Walk.GATHER: ("top_k",), Walk.SCATTER: (), Walk.SORT: (_FIRST,)}
_VECTOR = 16
"""Alignment of torch's memory, in bytes."""


def check(config: PermuteQuantizeConfig, arch: Arch, arguments: tuple[object, ...]) -> None:
    """
    Check the arguments of a direct call; `PermuteQuantizeConfig.arguments` lists them.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    if config.walk is Walk.COPY:
        copying.check_direct(config, arch, arguments)
        return
    if config.walk is Walk.TAKE:
        taking.check_direct(config, arch, arguments)
        return
    session, form = current.get(), config.format
    names, numbers = config.arguments, _NUMBERS[config.walk]
    found = direct.read(config, arch, session, arguments, names, numbers)
    x, q = found["x"], found["q"]
    common.require("x", x, rank=(2, "(T, K)"))
    where = _WALKS[config.walk](config, found, session)
    args = Arguments(
        **where,
        x=x,
        format=str(form),
        global_scale=found.get("given"),
        power_of_two=config.power_of_two,
        rounding=str(config.rounding),
        out=(q, None),
    )
    if _is_new(q, args, form):
        args = args._replace(out=None)
    valid = validate(args, session)
    if config.walk is Walk.SORT:
        of_pairs: Any = sorting.ValidatedSort(args, valid, 0)
        sorting.SORTED.require_fit(config, of_pairs, of_pairs)
    else:
        CALL.require_fit(config, args, valid)
    direct.require_rows("x", valid.rows)
    direct.require_rows("q", q.shape[:-1].numel())
    direct.require_bytes("q", q)
    if (kind := form_of(form)) is not None:
        groups = counted(form, args.offs, valid.num_groups)
        shape = kind.a_shape(Rows(tuple(q.shape[:-1]), groups), valid.k)
        direct.require_scales("scale", found["scale"], kind, shape)
    if config.tiling.is_relayed:
        _check_room(x, found["by_token"])
    if config.walk is Walk.GATHER:
        CALL.check_values(args, valid)


def _gathered(
    config: PermuteQuantizeConfig,
    found: dict[str, Any],
    _: Session,
) -> dict[str, Any]:
    where = {name: found[name] for name in ("permutation", "top_k")}
    return where | {ARGUMENT[config.layout]: found["groups"]}


def _scattered(_: PermuteQuantizeConfig, found: dict[str, Any], __: Session) -> dict[str, Any]:
    """
    Return the arguments of the public call for a kernel that scatters, with new tensors for those
    that the kernel does not take.
    """
    x, inverse = found["x"], found["inverse"]
    common.require("inverse", inverse, rank=(2, "(T, k)"))
    permutation = found.get("permutation")
    if permutation is None:
        permutation = _new(x, inverse.numel())
    where = {"permutation": permutation, "inverse": inverse, "top_k": inverse.shape[1]}
    return where | {ARGUMENT[Layout.RAGGED]: _new(x, 1)}


def _sorted(_: PermuteQuantizeConfig, found: dict[str, Any], session: Session) -> dict[str, Any]:
    """
    Check the arguments of a kernel that sorts; return those of `permute_quantize` for the sorted
    pairs.
    """
    ids, order = found["topk_ids"], Sorting(*(found[name] for name in SORTED))
    common.require("topk_ids", ids, rank=(2, "(T, k)"))
    first, offs = found[_FIRST], order.offs
    common.require("sorted_offs", offs, rank=(1, "(G,)"))
    pairs.first_expert(first)
    local = offs.shape[0]
    of_pairs = pairs.SortArguments(
        topk_ids=ids, experts=first + local, first_expert=first, local_experts=local, out=order
    )
    pairs.validate(of_pairs, session)
    tokens = found["x"].shape[0], ids.shape[1]
    common.require("topk_ids", ids, shape=(tokens, "a row for each token"))
    where = {"permutation": order.permutation, "inverse": order.inverse, "top_k": ids.shape[1]}
    return where | {ARGUMENT[Layout.RAGGED]: offs}


_WALKS = {Walk.GATHER: _gathered, Walk.SCATTER: _scattered, Walk.SORT: _sorted}


def _is_new(q: Tensor, args: Arguments, form: Format) -> bool:
    """
    Say whether `q` has the layout that a public call gives a new tensor. Rows of bytes need not
    begin at the alignment of a vector.
    """
    columns = args.x.shape[-1] // form.q_dtype.values_per_element
    return (
        isinstance(args.permutation, Tensor)
        and tuple(q.shape) == (*args.permutation.shape, columns)
        and q.dtype is dispatch.stored_as(form)
        and q.is_contiguous()
        and q.data_ptr() % _VECTOR == 0
    )


def _new(x: Tensor, size: int) -> Tensor:
    return x.new_empty((size,), dtype=torch.int32)


def _check_room(x: Tensor, by_token: Tensor) -> None:
    """Check the memory for scales of every token's blocks: its shape, type and alignment."""
    wanted = dispatch.new_by_token(x)
    common.require(
        "by_token", by_token, [wanted.dtype], shape=(tuple(wanted.shape), "rows of 16 bytes")
    )
    if not by_token.is_contiguous() or by_token.data_ptr() % 16:
        raise InputError("by_token", f"must be contiguous (got strides {by_token.stride()})")
