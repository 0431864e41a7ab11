# SPDX-License-Identifier: Apache-2.0
"""What `moe_fc2_dense` accepts: every rule about its tensors, each with one error."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from jitgen.config import Arch, Config, DType, ScaleGranularity
from jitgen.config.grouped_gemm import Operands
from jitgen.errors import InputError
from jitgen.formats import find_format, format_of_b
from jitgen.formats.protocol import OF_TORCH, TORCH, Rows, ScaleFormat
from jitgen.ops import tensors as common
from jitgen.runtime import devices
from jitgen.runtime.devices import Device
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session
from jitgen.support.frozen import frozen
from jitgen.targets.legality import rules, size_refusal


class Arguments(NamedTuple):
    """The arguments of one `moe_fc2_dense`, as the caller gave them; see there."""

    a: Tensor
    b: Tensor
    a_scale: Tensor
    b_scale: Tensor
    alpha: Tensor
    out: Tensor | None = None
    out_dtype: torch.dtype | None = None
    config: Config | Override | None = None


@frozen
class Facts:
    """
    What follows from valid arguments; a tracer's sizes may be symbols.

    Attributes:
        device: What serves the tensors.
        arch: Its target.
        scale_granularity: How many values share a scale.
        a_dtype: Element type of a and b.
        out_dtype: Element type of the output.
        groups: Number of experts.
        rows: Tokens.
        n: Columns of the output.
        k: Length of one expert's sums.
    """

    op: ClassVar[str] = "moe_fc2_dense"
    device: Device
    arch: Arch
    scale_granularity: ScaleGranularity
    a_dtype: DType
    out_dtype: DType
    groups: int
    rows: int
    n: int
    k: int

    @property
    def operands(self) -> Operands:
        """The types of every kernel that serves."""
        return Operands(
            a_dtype=self.a_dtype,
            b_dtype=self.a_dtype,
            out_dtype=self.out_dtype,
            scale_granularity=self.scale_granularity,
        )


def validate(given: Arguments, session: Session, *, has_memory: bool = True) -> Facts:
    """
    Return the facts about valid arguments.

    Args:
        given: The arguments.
        session: What serves them.
        has_memory: Whether tensors have addresses; a tracer's have none.

    Raises:
        InputError: Something is wrong; the first rule that is broken, in the order of this
            function.
    """
    a, b, alpha = given.a, given.b, given.alpha
    for name in ("a", "b", "a_scale", "b_scale", "alpha"):
        common.require_tensor(name, getattr(given, name))
    device = devices.find(a.device, session)
    arch = device.arch
    space = rules(arch, Facts.op).space  # type: ignore[attr-defined]
    known = {dtype for dtype, _ in space.operands}
    common.require_dtype("a", a, [each for each in OF_TORCH if OF_TORCH[each] in known], arch)
    types = [each for each in OF_TORCH if OF_TORCH[each] is OF_TORCH[a.dtype]]
    common.require_dtype("b", b, types, None)
    common.require_rank("a", a, 3, "(T, E, I)")
    common.require_rank("b", b, 3, "(E, N, I)")
    experts, n, k = b.shape
    for name, size in (("E", experts), ("N", n), ("I", k)):
        if size == 0:
            raise InputError("b", f"must have {name} of at least 1 (got 0)")
    tokens = a.shape[0]
    common.require_shape("a", a, (tokens, experts, k), f"as b has shape {tuple(b.shape)}")
    k *= OF_TORCH[a.dtype].values_per_element
    form = _format(given, space.scale_granularity, arch)
    if OF_TORCH[a.dtype] not in form.name.operands:
        raise InputError(
            "b_scale",
            f"has the type of {form.name} scales, which are for operands of "
            f"{' or '.join(form.name.operands)} (got {OF_TORCH[a.dtype]})",
        )
    facts = Facts(
        device=device,
        arch=arch,
        scale_granularity=form.name,
        a_dtype=OF_TORCH[a.dtype],
        out_dtype=_check_out(given, (tokens, n), space.operands, arch),
        groups=experts,
        rows=tokens,
        n=n,
        k=k,
    )
    if reason := size_refusal(facts, arch):
        raise InputError("b", reason)
    _check_scales(form, given, facts)
    common.require_dtype("alpha", alpha, [torch.float32], None)
    common.require_shape("alpha", alpha, (tokens, experts), "one weight for each token and expert")
    common.require_device("alpha", alpha, ("a", a))
    alignment = rules(arch, Facts.op).alignment
    for name, tensor in (("a", a), ("b", b), ("out", given.out)):
        if tensor is not None:
            common.check_memory(name, tensor, ("a", a), alignment, has_memory=has_memory)
    out = given.out
    if out is not None and tokens > 1 and out.stride(0) < n:
        raise InputError("out", f"must not overlap itself (got strides {out.stride()})")
    common.refuse_gradients(common.tensors_of(given), Facts.op)
    return facts


def _format(
    given: Arguments, granularities: tuple[ScaleGranularity, ...], arch: Arch
) -> ScaleFormat:
    """Return the format that the scales have, as b_scale names it."""
    scale = given.b_scale
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


def _check_scales(form: ScaleFormat, given: Arguments, facts: Facts) -> None:
    """Require the shapes, types and strides that `form` has."""
    experts, tokens, n, k = facts.groups, facts.rows, facts.n, facts.k
    for name, scale, shape in (
        ("b_scale", given.b_scale, form.b_shape(experts, n, k)),
        ("a_scale", given.a_scale, form.a_shape(Rows((experts, tokens)), k)),
    ):
        common.require_dtype(name, scale, [form.dtype], None)
        common.require_shape(
            name, scale, shape, f"for {form.name} scales of {experts} experts' matrices"
        )
        common.require_device(name, scale, ("a", given.a))
    common.require_unit_stride("b_scale", given.b_scale, -1)
    if not form.has_readable_orders:
        common.require_unit_stride("a_scale", given.a_scale, -1)


def _check_out(
    given: Arguments,
    shape: tuple[int, int],
    operands: tuple[tuple[DType, DType], ...],
    arch: Arch,
) -> DType:
    out, wanted = given.out, given.out_dtype
    known = {TORCH[dtype] for of_a, dtype in operands if of_a is OF_TORCH[given.a.dtype]}
    if wanted is not None and wanted not in known:
        raise InputError("out_dtype", f"must be {common.describe(known)} on {arch} (got {wanted})")
    if out is None:
        return OF_TORCH[wanted or torch.bfloat16]
    common.require_tensor("out", out)
    allowed = [wanted] if wanted is not None else sorted(known, key=str)
    common.require_dtype("out", out, allowed, arch)
    common.require_shape("out", out, shape, "tokens by columns of b")
    return OF_TORCH[out.dtype]
