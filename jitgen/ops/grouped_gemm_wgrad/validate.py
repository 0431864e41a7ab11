# SPDX-License-Identifier: Apache-2.0
"""Checks the tensors of `grouped_gemm_wgrad`: each rule has its own error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from jitgen.config import Arch, Config, DType, Layout
from jitgen.config.layouts import ARGUMENT
from jitgen.errors import InputError
from jitgen.formats.protocol import OF_TORCH, TORCH
from jitgen.ops import tensors as common
from jitgen.ops.tensors import AnyValidated, Size, check_size, check_vectors, device_of
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session
from jitgen.support.frozen import frozen
from jitgen.targets.legality import rules
from jitgen.targets.wgrad_space import WgradSpace


class Arguments(NamedTuple):
    """The arguments of one call of `grouped_gemm_wgrad`, as the caller gave them."""

    dy: Tensor
    a: Tensor
    offs: Tensor | None = None
    masked_m: Tensor | None = None
    out: Tensor | None = None
    out_dtype: torch.dtype | None = None
    expected_m: Size | None = None
    config: Config | Override | None = None


@frozen
class Validated(AnyValidated):
    """
    Sizes and types of a valid call; a tracer's sizes may be symbols.

    Attributes:
        layout: How rows belong to groups.
        a_dtype: Element type of dy and a.
        out_dtype: Element type of the gradient.
        groups: Number of groups.
        rows: Rows of a; in the masked layout, of one group.
        n: Columns of dy.
        k: Columns of a.
    """

    op = "grouped_gemm_wgrad"

    layout: Layout
    a_dtype: DType
    out_dtype: DType
    groups: int
    rows: int
    n: int
    k: int


def validate(args: Arguments, session: Session, *, has_memory: bool = True) -> Validated:
    """
    Check the arguments and return the sizes, types and target of the call, as `Call.validate` does.

    Raises:
        InputError: An argument is wrong; the checks run in the order of this function.
    """
    dy, a = args.dy, args.a
    device = device_of(Validated.op, "dy", dy, session)
    common.require("a", a)
    if args.offs is None and args.masked_m is None:
        raise InputError("offs", "one of offs and masked_m is required (got none)")
    layout, groups = common.layout_of(args.offs, None, args.masked_m)
    arch = device.arch
    space: WgradSpace = rules(arch, Validated.op).space  # type: ignore[attr-defined]
    _check_types(dy, a, space, arch)
    rank, of = (3, "(G, M, {})") if layout is Layout.MASKED else (2, "(M, {})")
    common.require("dy", dy, rank=(rank, f"{of.format('N')} for {layout}"))
    common.require("a", a, rank=(rank, f"{of.format('K')} for {layout}"))
    n, k = dy.shape[-1], a.shape[-1]
    common.require("a", a, shape=((*dy.shape[:-1], k), f"as dy has shape {tuple(dy.shape)}"))
    for name, side, size in (("dy", "N", n), ("a", "K", k)):
        if size == 0:
            raise InputError(name, f"must have {side} of at least 1 (got 0)")
    num_groups = groups.shape[0] if groups.dim() else 0
    if num_groups == 0:
        raise InputError(ARGUMENT[layout], "must have at least one group")
    length = dy.shape[0] if layout is Layout.MASKED else num_groups
    common.check_groups(ARGUMENT[layout], groups, length, ("dy", dy.device))
    shape = ((num_groups, n, k), "groups by columns of dy by columns of a")
    known = {TORCH[dtype] for dtype in space.of_out(OF_TORCH[a.dtype])}
    usual = common.result_of(a.dtype)
    out_dtype = common.check_out(args.out, args.out_dtype, known, arch, shape, usual)
    valid = Validated(
        device=device,
        layout=layout,
        a_dtype=OF_TORCH[a.dtype],
        out_dtype=OF_TORCH[out_dtype],
        groups=num_groups,
        rows=dy.shape[-2],
        n=n,
        k=k,
    )
    check_size(valid, "dy")
    check_vectors(args, valid, ("dy", "a", "out"), has_memory=has_memory)
    _check_the_rest(args, n, k)
    require_differentiable(common.tensors_of(args))
    return valid


def require_differentiable(given: Mapping[str, object]) -> None:
    """
    Check that autograd needs no gradients other than those of dy and a, and these only without
    `out`.

    Args:
        given: Arguments of `grouped_gemm_wgrad` by their names; those that are missing count as
            None.

    Raises:
        InputError: Autograd needs a gradient of, or through, `out`, or of an argument other than dy
            and a.
    """
    others = given
    if given.get("out") is None:
        others = {name: value for name, value in given.items() if name not in {"dy", "a"}}
    why, advice = "what is written to out has none", "leave out `out`, "
    common.refuse_gradients(others, Validated.op, why, advice)


def _check_types(dy: Tensor, a: Tensor, space: WgradSpace, arch: Arch) -> None:
    """Require that both operands have one type, for which there are kernels."""
    allowed = [each for each in OF_TORCH if OF_TORCH[each] in space.of_a]
    for name, tensor in (("dy", dy), ("a", a)):
        if tensor.dtype is torch.float8_e4m3fn:
            raise InputError(
                name,
                f"must be {common.describe(allowed)} on {arch} (got {tensor.dtype}): sums over "
                "rows need scales along rows, which no format has; keep or dequantise a bfloat16 "
                "copy for the gradient of weights",
            )
        common.require(name, tensor, allowed, arch=arch)
    common.require("a", a, [dy.dtype])


def _check_the_rest(args: Arguments, n: int, k: int) -> None:
    """
    Check that out does not overlap with itself, and that the hint for choosing a kernel is valid.
    """
    out = args.out
    if out is not None:
        is_dense = out.stride(1) >= k or n == 1
        spans = n if out.stride(1) <= 0 else (n - 1) * out.stride(1) + k
        if not is_dense or (out.shape[0] > 1 and out.stride(0) < spans):
            raise InputError("out", f"must not overlap itself (got strides {out.stride()})")
    common.require_count("expected_m", args.expected_m)
