# SPDX-License-Identifier: Apache-2.0
"""
What `grouped_gemm` accepts: every rule about its tensors, each with one error.

A message names the argument, says what is required, and then what came. The compiled entry checks
much of this by itself, so these rules run only for a combination of shapes that is new, and when
the entry refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.model import Arch, DType, Layout, ScaleGranularity
from jitgen.model.dtypes import SCALE_BLOCK
from jitgen.model.legality import target
from jitgen.ops import standin
from jitgen.ops.dtypes import OF_TORCH, TORCH, ceil_div
from jitgen.settings import settings

ALIGNMENT = 16
"""Bytes that addresses and strides are multiples of on a GPU: the TMA unit's grain."""

_GROUPS_OF = {
    Layout.RAGGED: "offs",
    Layout.CONTIGUOUS: "m_indices",
    Layout.MASKED: "masked_m",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
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
        values = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """
    What follows from valid arguments.

    Attributes:
        arch: The target that serves the tensors' device.
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


def validate(given: Arguments, *, has_memory: bool = True) -> Facts:
    """
    Return the facts about valid arguments.

    Args:
        given: The arguments.
        has_memory: Whether tensors have addresses; a tracer's have none.

    Raises:
        InputError: Something is wrong; the first rule that is broken, in the order of this
            function.
    """
    a, b = given.a, given.b
    _require_tensor("a", a)
    _require_tensor("b", b)
    if given.alpha is not None:
        raise InputError("alpha", "belongs to nv16 scales, which have no kernel yet: leave it out")
    layout, groups = _layout(given)
    arch = arch_of(a.device)
    _require_dtype("a", a, [TORCH[dtype] for dtype, _ in target(arch).space.operands], arch)
    _require_dtype("b", b, [a.dtype], None)
    a_rank = 3 if layout is Layout.MASKED else 2
    _require_rank(
        "a", a, a_rank, f"(G, M, K) for {layout}" if a_rank == 3 else f"(M, K) for {layout}"
    )
    _require_rank("b", b, 3, "(G, N, K)")
    num_groups, n, k = b.shape
    if num_groups == 0:
        raise InputError("b", "must have at least one group: the group list is empty")
    wanted = (num_groups, a.shape[1], k) if layout is Layout.MASKED else (a.shape[0], k)
    _require_shape("a", a, wanted, f"as b has shape {tuple(b.shape)}")
    for name, size in (("K", k), ("N", n)):
        if size == 0:
            raise InputError("b", f"must have {name} of at least 1 (got 0)")
    _check_whole_vectors("K", k, OF_TORCH[a.dtype], arch)
    length = a.shape[0] if layout is Layout.CONTIGUOUS else num_groups
    _check_groups(_GROUPS_OF[layout], groups, length, a.device)
    granularity = _check_scales(given, n, k)
    out_dtype = _check_out(given, (*a.shape[:-1], n), arch)
    _check_whole_vectors("N", n, out_dtype, arch)
    for name, tensor in (("a", a), ("b", b), ("out", given.out)):
        if tensor is not None:
            _check_memory(name, tensor, a.device, arch, has_memory=has_memory)
    if given.out is not None and given.out.shape[-2] > 1 and given.out.stride(-2) < n:
        raise InputError("out", f"must not overlap itself (got strides {given.out.stride()})")
    if given.expected_m is not None and (type(given.expected_m) is not int or given.expected_m < 1):
        raise InputError(
            "expected_m", f"must be an integer of at least 1 (got {given.expected_m!r})"
        )
    refuse_gradients(given.tensors)
    return Facts(
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


def _layout(given: Arguments) -> tuple[Layout, Tensor]:
    """Return the layout, and the tensor that says which rows belong to which group."""
    found = [
        (layout, getattr(given, name))
        for layout, name in _GROUPS_OF.items()
        if getattr(given, name) is not None
    ]
    names = [_GROUPS_OF[layout] for layout, _ in found]
    if not found:
        raise InputError("offs", "one of offs, m_indices and masked_m is required (got none)")
    if len(found) > 1:
        raise InputError(
            names[1],
            f"exactly one of offs, m_indices and masked_m is allowed (got {' and '.join(names)})",
        )
    _require_tensor(names[0], found[0][1])
    return found[0]


def refuse_gradients(tensors: Mapping[str, object]) -> None:
    """
    Do nothing where autograd is off or asks for no gradient of `tensors`, which have these names.

    Raises:
        InputError: A result would be one that autograd knows nothing of, and a layer would train
            wrongly without a word.
    """
    if not torch.is_grad_enabled():
        return
    for name, value in tensors.items():
        if isinstance(value, Tensor) and value.requires_grad:
            raise InputError(
                name,
                "must not require a gradient, because there is none: call grouped_gemm under "
                f"torch.no_grad(), or give {name}.detach()",
            )


def arch_of(device: torch.device) -> Arch:
    """
    Return the target that serves tensors on `device`.

    Raises:
        InputError: None does.
    """
    if device.type == "cpu":
        emulated = standin.current()
        return Arch.CPU if emulated is None else emulated.arch
    gpus = ", ".join(arch for arch in Arch if arch.is_gpu)
    if device.type != "cuda" or torch.version.hip:
        raise InputError("a", f"must be on a CPU or an NVIDIA GPU of {gpus} (got device {device})")
    if not torch.cuda.is_available():
        return _arch_of_absent(device)
    capability = torch.cuda.get_device_capability(device)
    arch = Arch.of_capability(*capability)
    if arch is None:
        name = torch.cuda.get_device_name(device)
        raise InputError(
            "a",
            f"must be on a CPU or an NVIDIA GPU of {gpus} "
            f"(got {device}, {name}, compute capability {capability[0]}.{capability[1]})",
        )
    return arch


def _arch_of_absent(device: torch.device) -> Arch:
    """Return the target of a GPU that this machine has not got: of a tracer's tensors."""
    arch = Arch.parse(settings.arch) if settings.arch else Arch.CPU
    if not arch.is_gpu:
        raise InputError(
            "a", f"is on {device}, but this machine has no GPU to ask what it is: set JITGEN_ARCH"
        )
    return arch


def _check_whole_vectors(name: str, size: int, dtype: DType, arch: Arch) -> None:
    """Require that a row of a tensor with `size` values of `dtype` ends with a whole vector."""
    multiple = ALIGNMENT * 8 // dtype.bits
    if arch.is_gpu and size % multiple:
        raise InputError(
            "b",
            f"must have {name} a multiple of {multiple} on {arch}, {ALIGNMENT} bytes of {dtype} "
            f"(got {size})",
        )


def _check_groups(name: str, groups: Tensor, length: int, device: torch.device) -> None:
    of = "(M,)" if name == "m_indices" else "(G,)"
    _require_dtype(name, groups, [torch.int32], None)
    _require_rank(name, groups, 1, of)
    _require_shape(name, groups, (length,), f"which is {of}")
    _require_device(name, groups, device)
    _require_unit_stride(name, groups, -1)


def _check_scales(given: Arguments, n: int, k: int) -> ScaleGranularity:
    """
    Return the granularity that the scales have.

    The number of dimensions of b_scale says it, so that no size is ambiguous: 1 tensor, 2 row, 3
    block128.
    """
    a, b, a_scale, b_scale = given.a, given.b, given.a_scale, given.b_scale
    if a_scale is None and b_scale is None:
        if a.dtype is torch.float8_e4m3fn:
            raise InputError("a_scale", "is required for float8_e4m3fn operands (got None)")
        return ScaleGranularity.TENSOR
    if a_scale is None or b_scale is None:
        name = "a_scale" if a_scale is None else "b_scale"
        raise InputError(name, "is required where the other scale is given (got None)")
    _require_tensor("a_scale", a_scale)
    _require_tensor("b_scale", b_scale)
    groups, rows, blocks = b.shape[0], tuple(a.shape[:-1]), ceil_div(k, SCALE_BLOCK)
    kinds = {
        1: (ScaleGranularity.TENSOR, (1,), (groups,)),
        2: (ScaleGranularity.ROW, rows, (groups, n)),
        3: (
            ScaleGranularity.BLOCK128,
            (*rows, blocks),
            (groups, ceil_div(n, SCALE_BLOCK), blocks),
        ),
    }
    if b_scale.dim() not in kinds:
        raise InputError(
            "b_scale",
            "must have 1 dimension (a scale for each group), 2 (for each row) or 3 (for each "
            f"128 x 128 values) (got shape {tuple(b_scale.shape)})",
        )
    granularity, a_shape, b_shape = kinds[b_scale.dim()]
    for name, scale, shape in (("b_scale", b_scale, b_shape), ("a_scale", a_scale, a_shape)):
        _require_dtype(name, scale, [torch.float32], None)
        _require_shape(
            name, scale, shape, f"for {granularity} scales, which b_scale's dimensions name"
        )
        _require_device(name, scale, a.device)
    _require_unit_stride("b_scale", b_scale, -1)
    if granularity is not ScaleGranularity.BLOCK128:
        _require_unit_stride("a_scale", a_scale, -1)
    return granularity


def _check_out(given: Arguments, shape: tuple[int, ...], arch: Arch) -> DType:
    out, wanted = given.out, given.out_dtype
    known = {
        TORCH[dtype] for of_a, dtype in target(arch).space.operands if TORCH[of_a] is given.a.dtype
    }
    if wanted is not None and wanted not in known:
        raise InputError("out_dtype", f"must be {_list(known)} on {arch} (got {wanted})")
    if out is None:
        return OF_TORCH[wanted or torch.bfloat16]
    _require_tensor("out", out)
    _require_dtype("out", out, [wanted] if wanted is not None else sorted(known, key=str), arch)
    _require_shape("out", out, shape, "rows of a by columns of b")
    return OF_TORCH[out.dtype]


def _check_memory(
    name: str, tensor: Tensor, device: torch.device, arch: Arch, *, has_memory: bool
) -> None:
    _require_device(name, tensor, device)
    _require_unit_stride(name, tensor, -1)
    if not arch.is_gpu:
        return
    size = tensor.element_size()
    if has_memory and tensor.data_ptr() % ALIGNMENT:
        raise InputError(
            name,
            f"must start at a multiple of {ALIGNMENT} bytes (got address {tensor.data_ptr():#x})",
        )
    for length, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True):
        if length > 1 and stride * size % ALIGNMENT:
            raise InputError(
                name,
                f"must have strides that are multiples of {ALIGNMENT} bytes, {ALIGNMENT // size} "
                f"elements (got strides {tensor.stride()})",
            )


def _require_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise InputError(name, f"must be a torch tensor (got {type(value).__name__})")
    if value.layout is not torch.strided:
        raise InputError(name, f"must be a dense tensor (got layout {value.layout})")


def _require_dtype(
    name: str, tensor: Tensor, allowed: list[torch.dtype], arch: Arch | None
) -> None:
    if tensor.dtype not in allowed:
        where = f" on {arch}" if arch else ""
        raise InputError(name, f"must be {_list(set(allowed))}{where} (got {tensor.dtype})")


def _require_rank(name: str, tensor: Tensor, rank: int, of: str) -> None:
    if tensor.dim() != rank:
        raise InputError(
            name, f"must have {rank} dimensions, {of} (got shape {tuple(tensor.shape)})"
        )


def _require_shape(name: str, tensor: Tensor, shape: tuple[int, ...], why: str) -> None:
    if tuple(tensor.shape) != shape:
        raise InputError(name, f"must have shape {shape}, {why} (got {tuple(tensor.shape)})")


def _require_device(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise InputError(name, f"must be on {device}, as a is (got {tensor.device})")


def _require_unit_stride(name: str, tensor: Tensor, side: int) -> None:
    if tensor.shape[side] > 1 and tensor.stride(side) != 1:
        raise InputError(
            name, f"must be contiguous in its last dimension (got strides {tensor.stride()})"
        )


def _list(dtypes: set[torch.dtype]) -> str:
    return " or ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
