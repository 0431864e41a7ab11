# SPDX-License-Identifier: Apache-2.0
"""Checks the tensors of `moe_fc2_dense`: each rule has its own error."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from jitgen.config import Arch, Config, DType, ScaleGranularity
from jitgen.config.grouped_gemm import Operands
from jitgen.errors import InputError
from jitgen.formats import find_format, format_of_b
from jitgen.formats.protocol import OF_TORCH, TORCH, Rows, ScaleFormat
from jitgen.ops import tensors as common
from jitgen.ops.tensors import AnyValidated, check_size, check_vectors, device_of
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session
from jitgen.support.frozen import frozen
from jitgen.targets.legality import rules


class Arguments(NamedTuple):
    """The arguments of one call of `moe_fc2_dense`, as the caller gave them."""

    a: Tensor
    b: Tensor
    a_scale: Tensor
    b_scale: Tensor
    router_weights: Tensor
    out: Tensor | None = None
    out_dtype: torch.dtype | None = None
    config: Config | Override | None = None


@frozen
class Validated(AnyValidated):
    """
    Sizes and types of a valid call; a tracer's sizes may be symbols.

    Attributes:
        scale_granularity: How many values share a scale.
        a_dtype: Element type of a and b.
        out_dtype: Element type of the output.
        groups: Number of experts.
        rows: Number of tokens.
        n: Columns of the output.
        k: Length of one expert's sums.
    """

    op = "moe_fc2_dense"

    scale_granularity: ScaleGranularity
    a_dtype: DType
    out_dtype: DType
    groups: int
    rows: int
    n: int
    k: int

    @property
    def operands(self) -> Operands:
        """The operand types of the kernels that serve the call."""
        return Operands(
            a_dtype=self.a_dtype,
            b_dtype=self.a_dtype,
            out_dtype=self.out_dtype,
            scale_granularity=self.scale_granularity,
        )


def validate(args: Arguments, session: Session, *, has_memory: bool = True) -> Validated:
    """
    Check the arguments and return the sizes, types and target of the call, as `Call.validate` does.

    Raises:
        InputError: An argument is wrong; the checks run in the order of this function.
    """
    a, b, router_weights = args.a, args.b, args.router_weights
    device = device_of(Validated.op, "a", a, session)
    arch = device.arch
    for name in ("b", "a_scale", "b_scale", "router_weights"):
        common.require(name, getattr(args, name))
    space = rules(arch, Validated.op).space  # type: ignore[attr-defined]
    known = {dtype for dtype, _ in space.operands}
    of_a = [each for each in OF_TORCH if OF_TORCH[each] in known]
    common.require("a", a, of_a, arch=arch, rank=(3, "(T, E, I)"))
    types = [each for each in OF_TORCH if OF_TORCH[each] is OF_TORCH[a.dtype]]
    common.require("b", b, types, rank=(3, "(E, N, I)"))
    experts, n, k = b.shape
    for name, size in (("E", experts), ("N", n), ("I", k)):
        if size == 0:
            raise InputError("b", f"must have {name} of at least 1 (got 0)")
    tokens = a.shape[0]
    common.require("a", a, shape=((tokens, experts, k), f"as b has shape {tuple(b.shape)}"))
    k *= OF_TORCH[a.dtype].values_per_element
    form = _format(args, space.scale_granularity, arch)
    if OF_TORCH[a.dtype] not in form.name.operands:
        raise InputError(
            "b_scale",
            f"has the type of {form.name} scales, which are for operands of "
            f"{' or '.join(form.name.operands)} (got {OF_TORCH[a.dtype]})",
        )
    allowed = {TORCH[dtype] for of_a, dtype in space.operands if of_a is OF_TORCH[a.dtype]}
    of_out = ((tokens, n), "tokens by columns of b")
    out_dtype = common.check_out(args.out, args.out_dtype, allowed, arch, of_out)
    valid = Validated(
        device=device,
        scale_granularity=form.name,
        a_dtype=OF_TORCH[a.dtype],
        out_dtype=OF_TORCH[out_dtype],
        groups=experts,
        rows=tokens,
        n=n,
        k=k,
    )
    check_size(valid, "b")
    _check_scales(form, args, valid)
    shape = ((tokens, experts), "one weight for each token and expert")
    common.require(
        "router_weights", router_weights, [torch.float32], shape=shape, like=("a", a.device)
    )
    check_vectors(args, valid, ("a", "b", "out"), has_memory=has_memory)
    common.require_rows_apart(args.out)
    common.refuse_gradients(common.tensors_of(args), Validated.op)
    return valid


def _format(
    args: Arguments, granularities: tuple[ScaleGranularity, ...], arch: Arch
) -> ScaleFormat:
    """Return the format of the scales, which follows from the type and dimensions of b_scale."""
    scale = args.b_scale
    served = [find_format(each) for each in granularities]
    form = format_of_b(scale)
    if form is None or form.name not in granularities or scale.dtype is not form.dtype:
        wanted = " or ".join(
            f"{each.dtype} with {each.b_rank} dimensions ({each.name})".removeprefix("torch.")
            for each in served
        )
        raise InputError(
            "b_scale", f"must be {wanted} on {arch} (got {scale.dtype}, {tuple(scale.shape)})"
        )
    return form


def _check_scales(form: ScaleFormat, args: Arguments, valid: Validated) -> None:
    """Require scales with the shapes, types and strides of `form`."""
    experts, tokens, n, k = valid.groups, valid.rows, valid.n, valid.k
    for name, scale, shape in (
        ("b_scale", args.b_scale, form.b_shape(experts, n, k)),
        ("a_scale", args.a_scale, form.a_shape(Rows((experts, tokens)), k)),
    ):
        common.require(
            name,
            scale,
            [form.dtype],
            shape=(shape, f"for {form.name} scales of {experts} experts' matrices"),
            like=("a", args.a.device),
            contiguous=None if name == "a_scale" and form.has_readable_orders else -1,
        )
