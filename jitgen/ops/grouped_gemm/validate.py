# SPDX-License-Identifier: Apache-2.0
"""
What `grouped_gemm` accepts: every rule about its tensors, each with one error.

A message names the argument, says what is required, and then what came. The compiled entry checks
much of this by itself, so these rules run only for a combination of shapes that is new, and when
the entry refuses.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from jitgen import formats
from jitgen.config import Arch, DType, Layout, ScaleGranularity
from jitgen.errors import InputError
from jitgen.formats.protocol import OF_TORCH, TORCH, ScaleFormat
from jitgen.layouts import ARGUMENT
from jitgen.ops.calling import (
    check_groups,
    check_memory,
    layout_of,
    refuse_gradients,
    require_device,
    require_dtype,
    require_rank,
    require_shape,
    require_tensor,
    require_unit_stride,
    words,
)
from jitgen.runtime import devices
from jitgen.runtime.devices import Device
from jitgen.runtime.session import Session
from jitgen.targets.legality import rules, size_refusal

_OP = "grouped_gemm"


class Arguments(NamedTuple):
    """The arguments of one `grouped_gemm`, as the caller gave them; see there."""

    a: Tensor
    b: Tensor
    a_scale: Tensor | None
    b_scale: Tensor | None
    offs: Tensor | None
    m_indices: Tensor | None
    masked_m: Tensor | None
    alpha: Tensor | None
    out: Tensor | None
    out_dtype: torch.dtype | None
    expected_m: int | None

    @property
    def groups(self) -> Tensor | None:
        """The one of offs, m_indices and masked_m that is given."""
        return next((x for x in (self.offs, self.m_indices, self.masked_m) if x is not None), None)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor among them, by its name."""
        return {n: value for n, value in self._asdict().items() if isinstance(value, Tensor)}


class Facts(NamedTuple):
    """
    What follows from valid arguments; a tracer's sizes may be symbols.

    Attributes:
        device: What serves the tensors.
        arch: Its target.
        layout: How rows belong to groups.
        scale_granularity: How many values share a scale.
        a_dtype: Element type of a and b.
        out_dtype: Element type of the output.
        groups: Number of groups.
        rows: Rows of a; in the masked layout, of one group.
        n: Columns of the output.
        k: Length of the sums.
        shape: Shape of the output.
    """

    device: Device
    arch: Arch
    layout: Layout
    scale_granularity: ScaleGranularity
    a_dtype: DType
    out_dtype: DType
    groups: int
    rows: int
    n: int
    k: int
    shape: tuple[int, ...]

    @property
    def op(self) -> str:
        """The operation."""
        return _OP


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
    a, b = given.a, given.b
    require_tensor("a", a)
    require_tensor("b", b)
    if given.alpha is not None:
        raise InputError("alpha", "belongs to nv16 scales, which have no kernel yet: leave it out")
    layout, groups = layout_of(given.offs, given.m_indices, given.masked_m)
    device = devices.find(a.device, session)
    arch = device.arch
    require_dtype("a", a, [TORCH[dtype] for dtype, _ in _operands(arch)], arch)
    require_dtype("b", b, [a.dtype], None)
    a_rank = 3 if layout is Layout.MASKED else 2
    require_rank(
        "a", a, a_rank, f"(G, M, K) for {layout}" if a_rank == 3 else f"(M, K) for {layout}"
    )
    require_rank("b", b, 3, "(G, N, K)")
    num_groups, n, k = b.shape
    if num_groups == 0:
        raise InputError("b", "must have at least one group: the group list is empty")
    wanted = (num_groups, a.shape[1], k) if layout is Layout.MASKED else (a.shape[0], k)
    require_shape("a", a, wanted, f"as b has shape {tuple(b.shape)}")
    for name, size in (("K", k), ("N", n)):
        if size == 0:
            raise InputError("b", f"must have {name} of at least 1 (got 0)")
    length = a.shape[0] if layout is Layout.CONTIGUOUS else num_groups
    check_groups(ARGUMENT[layout], groups, length, ("a", a))
    form = _format(given)
    granularity = ScaleGranularity.TENSOR if form is None else form.name
    out_dtype = _check_out(given, (*a.shape[:-1], n), arch)
    facts = Facts(
        device=device,
        arch=arch,
        layout=layout,
        scale_granularity=granularity,
        a_dtype=OF_TORCH[a.dtype],
        out_dtype=out_dtype,
        groups=num_groups,
        rows=a.shape[-2],
        n=n,
        k=k,
        shape=(*a.shape[:-1], n),
    )
    if reason := size_refusal(facts, arch):
        raise InputError("b", reason)
    if form is not None:
        _check_scales(form, given, n, k)
    alignment = rules(arch, _OP).alignment
    for name, tensor in (("a", a), ("b", b), ("out", given.out)):
        if tensor is not None:
            check_memory(name, tensor, ("a", a), alignment, has_memory=has_memory)
    _check_the_rest(given, n)
    refuse_gradients(given.tensors, _OP)
    return facts


def _check_the_rest(given: Arguments, n: int) -> None:
    out, expected_m = given.out, given.expected_m
    if out is not None and out.shape[-2] > 1 and out.stride(-2) < n:
        raise InputError("out", f"must not overlap itself (got strides {out.stride()})")
    if expected_m is not None and (type(expected_m) is not int or expected_m < 1):
        raise InputError("expected_m", f"must be an integer of at least 1 (got {expected_m!r})")


def _operands(arch: Arch) -> tuple[tuple[DType, DType], ...]:
    """Return the types of a, each with one of the output, that `arch` has kernels for."""
    return rules(arch, _OP).space.operands  # type: ignore[attr-defined,no-any-return]


def _format(given: Arguments) -> ScaleFormat | None:
    """Return the format that the scales have, as b_scale names it; None where there are none."""
    a_scale, b_scale = given.a_scale, given.b_scale
    if a_scale is None and b_scale is None:
        if given.a.dtype is torch.float8_e4m3fn:
            raise InputError("a_scale", "is required for float8_e4m3fn operands (got None)")
        return None
    if a_scale is None or b_scale is None:
        name = "a_scale" if a_scale is None else "b_scale"
        raise InputError(name, "is required where the other scale is given (got None)")
    require_tensor("a_scale", a_scale)
    require_tensor("b_scale", b_scale)
    require_dtype("b_scale", b_scale, [form.dtype for form in formats.every()], None)
    form = formats.of_b(b_scale)
    if form is None:
        first, *others = formats.every()
        ranks = [f"{each.b_rank} (a scale {each.words})" for each in others]
        raise InputError(
            "b_scale",
            f"must have {first.b_rank} dimension (a scale {first.words}), "
            f"{', '.join(ranks[:-1])} or {ranks[-1]} (got shape {tuple(b_scale.shape)})",
        )
    return form


def _check_scales(form: ScaleFormat, given: Arguments, n: int, k: int) -> None:
    """Require the shapes, types and strides that `form` has."""
    a_scale, b_scale, rows = given.a_scale, given.b_scale, tuple(given.a.shape[:-1])
    if a_scale is None or b_scale is None:
        return
    for name, scale, shape in (
        ("b_scale", b_scale, form.b_shape(given.b.shape[0], n, k)),
        ("a_scale", a_scale, form.a_shape(rows, k)),
    ):
        require_dtype(name, scale, [form.dtype], None)
        require_shape(
            name, scale, shape, f"for {form.name} scales, which b_scale's dimensions name"
        )
        require_device(name, scale, ("a", given.a))
    require_unit_stride("b_scale", b_scale, -1)
    if not form.has_readable_orders:
        require_unit_stride("a_scale", a_scale, -1)


def _check_out(given: Arguments, shape: tuple[int, ...], arch: Arch) -> DType:
    out, wanted = given.out, given.out_dtype
    known = {TORCH[dtype] for of_a, dtype in _operands(arch) if TORCH[of_a] is given.a.dtype}
    if wanted is not None and wanted not in known:
        raise InputError("out_dtype", f"must be {words(known)} on {arch} (got {wanted})")
    if out is None:
        return OF_TORCH[wanted or torch.bfloat16]
    require_tensor("out", out)
    require_dtype("out", out, [wanted] if wanted is not None else sorted(known, key=str), arch)
    require_shape("out", out, shape, "rows of a by columns of b")
    return OF_TORCH[out.dtype]
