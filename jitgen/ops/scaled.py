# SPDX-License-Identifier: Apache-2.0
"""Calls that return values and their scales."""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.formats.protocol import ScaleFormat
from jitgen.ops import tensors as common
from jitgen.ops.call import Args, Call, Validated
from jitgen.support.moved import warn

Scaled = tuple[Tensor, Tensor | None]
"""
Values and their scales; None for formats without scales. In `out`, None means a new tensor for the
scales that the kernel computes.
"""


def with_scale(out: object, op: str) -> Scaled:
    """
    Return as a tuple an `out` that is q alone, which older versions of `op` took.

    Raises:
        InputError: It is neither a tuple nor a tensor.
    """
    if not isinstance(out, Tensor):
        text = f"must be a tuple of q and its scale, or of q and None (got {type(out).__name__})"
        raise InputError("out", text)
    warn(f"out=q of {op}", "out=(q, scale)", stacklevel=4)
    return out, None


def check_out(
    out: Scaled,
    types: list[torch.dtype],
    shape: tuple[tuple[int, ...], str],
    form: ScaleFormat | None,
    scale_shape: tuple[int, ...],
    like: tuple[str, torch.device],
    *,
    has_memory: bool,
) -> None:
    """
    Require tensors that q and its scales can be written to, or None for new scales.

    Args:
        out: The tensors.
        types: Allowed types of q.
        shape: The shape of q, and the reason for it, in words.
        form: The format of the scales; None if the kernel computes no scales.
        scale_shape: The shape of the scales.
        like: Another argument, and the device that all are on.
        has_memory: Whether tensors have addresses; a tracer's have none.

    Raises:
        InputError: One of them has a wrong type, shape, device or layout.
    """
    if len(out) != 2:
        raise InputError("out", f"must be two, q and its scale or None (got {len(out)})")
    q, scale = out
    common.require("out[0]", q, types, shape=shape)
    if q.shape[-2] > 1 and q.stride(-2) < q.shape[-1]:
        raise InputError("out[0]", f"must not overlap itself (got strides {q.stride()})")
    if scale is None:
        return
    if form is None:
        text = f"must be None, because no scale is written (got {type(scale).__name__})"
        raise InputError("out[1]", text)
    why = (scale_shape, f"for {form.name} scales")
    common.require("out[1]", scale, [form.dtype], shape=why, like=like)
    has_orders = form.has_readable_orders and not form.has_atoms
    if not (form.is_readable(scale) if has_orders else scale.is_contiguous()):
        text = f"must lie as new {form.name} scales do (got strides {scale.stride()})"
        raise InputError("out[1]", text)
    if form.has_atoms:
        common.check_memory([("out[1]", scale, _ATOMS)], like, has_memory=has_memory)


_ATOMS = 16
"""Alignment of scales in atoms, in bytes."""


class ScaledCall(Call[Args, Validated, Scaled]):
    """
    A call that returns q and its scales. For the format with one scale for the whole tensor, the
    caller gives the scale.

    In a graph, scales that the kernel does not compute are an empty tensor, because the result of
    an operation may be neither None nor one of its arguments.
    """

    more_outputs = ("out_scale",)

    def finds_scales(self, args: Args) -> bool:
        """Say whether the kernel computes the scales."""
        raise NotImplementedError

    def to_results(self, args: Args, result: Scaled) -> tuple[Tensor, ...]:
        """
        Return q and its scales, or an empty tensor for scales that the kernel does not compute.
        """
        q, scale = result
        if scale is None or scale is args.global_scale:
            scale = q.new_empty(0, dtype=torch.float32)
        return q, scale

    def of_results(self, args: Args, tensors: tuple[Tensor, ...]) -> Scaled:
        """Return the result that consists of these tensors."""
        q, scale = tensors
        return q, scale if self.finds_scales(args) else args.global_scale

    def out_of(self, tensors: tuple[Tensor, ...]) -> Scaled:
        """Return `out`: q, with its scales if they are written."""
        q, scale = tensors if len(tensors) > 1 else (tensors[0], None)
        return q, scale

    def parts_of(self, out: Scaled) -> tuple[Tensor, ...]:
        """Return q, and the scales if they are written."""
        q, scale = out
        return (q,) if scale is None else (q, scale)
