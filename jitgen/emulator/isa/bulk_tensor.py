# SPDX-License-Identifier: Apache-2.0
"""
Bulk copies of boxes of tensors: loads, stores and reductions through a tensor map.

PTX ISA, sections "cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor",
"cp.async.bulk.prefetch.tensor" and "Tensors". Only tiles are emulated, not im2col, gather and
scatter. The box lies in shared memory in its own order, the innermost dimension first, swizzled by
its addresses. What is out of bounds is filled when it is loaded and left out when it is stored, but
counts for the mbarrier.

The PTX ISA does not say it, but hardware does: the innermost coordinate of a box must be a multiple
of 16 bytes, or the copy ends in an illegal instruction. For types that are padded the PTX ISA says
that this coordinate is a multiple of 128 elements, and that the padding which a copy adds is
uninitialised: its bytes are `DIRT` here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import DType, PerThread, Scalar, Vector
from jitgen.emulator.formats import tensor_map
from jitgen.emulator.formats.swizzle import Placement, placement
from jitgen.emulator.formats.tensor_map import TensorMap, Window
from jitgen.emulator.isa.bulk_reduce import Reduction, reduction_of
from jitgen.emulator.isa.bulk_transfer import (
    Bytes,
    Issue,
    Mask,
    check_global,
    check_parts,
    issues,
)
from jitgen.emulator.isa.memory import param_bytes
from jitgen.emulator.machine.cta import OFFSET_MASK
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.machine.regions import Box
from jitgen.emulator.program.builder import PARAM_BASE, Builder
from jitgen.emulator.program.instruction import Instruction, split_operands
from jitgen.emulator.program.table import Unsupported, emits

ALIGNMENT = 128
"""The address of a box in shared memory is a multiple of it."""

DIRT = 0xCD
"""Value of the bytes of padding."""

_MAP_ALIGNMENT = 64

_PARTS = (
    "cp async reduce bulk tensor 1d 2d 3d 4d 5d shared::cluster shared::cta global tile bulk_group "
    "mbarrier::complete_tx::bytes multicast::cluster L2::cache_hint cta_group::1 cta_group::2"
)

Numbers = Vector
"""Vector: each a scalar or an array [n]."""


@emits("cp.async.bulk.prefetch.tensor")
def prefetch(builder: Builder, instruction: Instruction) -> None:
    """Do nothing, as there is no cache."""


@emits("cp.async.bulk.tensor")
def copy(builder: Builder, instruction: Instruction) -> None:
    """
    Translate a load, ``[destination], [map, {x, y}], [mbarrier] {, ctas} {, policy}``, or a store.
    """
    check_parts(instruction, _PARTS)
    if instruction.has("bulk_group"):
        _emit_store(builder, instruction, None)
    else:
        _emit_load(builder, instruction)


@emits("cp.reduce.async.bulk.tensor")
def reduce(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [map, {x, y}],
    [box]``.
    """
    operation = reduction_of(instruction)
    check_parts(instruction, f"{_PARTS} {operation}")
    _emit_store(builder, instruction, operation)


def _emit_load(builder: Builder, instruction: Instruction) -> None:
    destination, box, barrier, *rest = instruction.operands
    is_multicast = instruction.has("multicast::cluster")
    place = _box(builder, instruction, box)
    if instruction.has("shared::cluster") and builder.program.module.target.startswith("sm_12"):
        builder.do(builder.call(refuse_sub_bytes, builder.mask(instruction), place[0]))
    arguments = (
        builder.mask(instruction),
        f"({builder.address(destination)}, {builder.address(barrier)})",
        *place,
        builder.value(rest[0], "u16") if is_multicast else "None",
        str(instruction.has("cta_group::2")),
    )
    builder.do(builder.call(load_boxes, *arguments))


def _emit_store(builder: Builder, instruction: Instruction, operation: str | None) -> None:
    box, source = instruction.operands[:2]
    arguments = (
        builder.mask(instruction),
        builder.address(source),
        *_box(builder, instruction, box),
        repr(operation),
    )
    builder.do(builder.call(store_boxes, *arguments))


def _box(builder: Builder, instruction: Instruction, operand: str) -> tuple[str, str]:
    """Return the expressions of the two parts of ``[map, {x, y}]``."""
    address, vector = split_operands(operand[1:-1])
    coordinates = builder.values(vector, "s32")
    if f"{len(coordinates)}d" not in instruction.parts:
        raise Unsupported(f"{len(coordinates)} coordinates")
    return builder.address(f"[{address}]"), f"({', '.join(coordinates)},)"


# --- what they do ---------------------------------------------------------------------------------


def refuse_sub_bytes(f: Fragment, at: int, mask: Mask, maps: PerThread) -> None:
    """
    Fault, if elements have less than a byte: sm_120a loads those to ``.shared::cta`` only.

    PTX ISA, section "Tensors", limitations of the sub-byte types.
    """
    for issue in issues(f, at, mask):
        found = read_map(issue, issue.of(maps))
        if found.element.bits < 8:
            issue.fault(f"a copy to .shared::cluster of a {found}, which sm_120a does not have")


def load_boxes(
    f: Fragment,
    at: int,
    mask: Mask,
    addresses: Numbers,
    maps: PerThread,
    coordinates: Numbers,
    ctas: PerThread,
    is_pair: bool,
) -> None:
    """
    Load a box for each thread under the mask.

    Args:
        f: The fragment.
        at: Index of the instruction.
        mask: The threads whose guard holds [n]; None: all.
        addresses: Addresses of the box in shared memory, and of the mbarrier.
        maps: Addresses of the tensor maps.
        coordinates: int32, innermost first.
        ctas: For a multicast, a bit for each CTA that gets the data; else None.
        is_pair: Whether the instruction has cta_group::2.
    """
    for issue in issues(f, at, mask):
        destination, barrier = (issue.of(address) for address in addresses)
        chosen = None if ctas is None else issue.of(ctas)
        targets = issue.targets(destination, barrier, chosen, is_pair=is_pair)
        found, where = _find(issue, maps, coordinates)
        place = _place(issue, found, destination)
        window = _window(issue, found, where)
        _check_early_read(issue, found, window, issue.of(maps))
        issue.note_load(targets, _box_of(found, window), _map_box(issue, maps))
        issue.load(targets, place, found.transaction_bytes, _fetcher(issue, found, window))


def store_boxes(
    f: Fragment,
    at: int,
    mask: Mask,
    sources: PerThread,
    maps: PerThread,
    coordinates: Numbers,
    operation: str | None,
) -> None:
    """Store, or reduce by `operation`, a box for the threads under the mask; see `load_boxes`."""
    check_global(f, at, mask)
    for issue in issues(f, at, mask, (maps, sources, *coordinates)):
        source = issue.of(sources)
        if f.cluster.cta(f, at, source) is not f.cta:
            issue.fault(f"the box at {source:#x} is not in the CTA's own shared memory")
        found, where = _find(issue, maps, coordinates)
        place, window = _place(issue, found, source), _window(issue, found, where)
        write = _writer(issue, found, window, operation)
        box, of_map = _box_of(found, window), _map_box(issue, maps)
        issue.note_store(box, of_map, is_atomic=operation is not None)
        issue.store(place, found.transaction_bytes, write)


def read_map(issue: Issue, address: int) -> TensorMap:
    """
    Return the tensor map at an address of global memory or of a parameter.

    It is read again for each copy, because kernels may change it.

    Raises:
        MachineFault: There is none, or it breaks a rule of the hardware.
    """
    issue.check_aligned("tensor map address", address, _MAP_ALIGNMENT)
    if address >= PARAM_BASE:
        data = param_bytes(issue.f, issue.at, address, tensor_map.BYTES)
    else:
        data = issue.global_bytes(address, tensor_map.BYTES).tobytes()
    try:
        found = tensor_map.decode(data)
    except ValueError as error:
        issue.fault(f"{address:#x} holds {error}")
    if found.problem:
        issue.fault(f"{found}: {found.problem}")
    return found


def _find(issue: Issue, maps: PerThread, coordinates: Numbers) -> tuple[TensorMap, tuple[int, ...]]:
    """Return the tensor map and the coordinates of a thread's box."""
    found = read_map(issue, issue.of(maps))
    where = tuple(issue.of(coordinate) for coordinate in coordinates)
    if len(where) != found.rank:
        issue.fault(f"{len(where)} coordinates for a {found}")
    if found.misalignment(where):
        unit = "128 elements" if found.is_padded else "16 bytes"
        issue.fault(
            f"box at {where}: its innermost coordinate is not a multiple of {unit}, which "
            f"hardware answers with an illegal instruction ({found})"
        )
    return found, where


def _place(issue: Issue, found: TensorMap, address: int) -> Placement:
    """Return where a box at a shared address lies."""
    issue.check_aligned("shared address", address, ALIGNMENT)
    return placement(address & OFFSET_MASK, found.shared_bytes, found.swizzle)


def _map_box(issue: Issue, maps: PerThread) -> Box | None:
    """Return where a thread's tensor map lies; None if it is a parameter."""
    address = issue.of(maps)
    return None if address >= PARAM_BASE else Box(address, (tensor_map.BYTES,), (1,))


def _check_early_read(issue: Issue, found: TensorMap, window: Window | None, of_map: int) -> None:
    """
    Report a load, of a box or of its tensor map, before the previous grid is known to have ended.
    """
    if window is not None:
        issue.check_early_read(found.address + window.offset, window.extent)
    if of_map < PARAM_BASE:
        issue.check_early_read(of_map, tensor_map.BYTES)


def _window(issue: Issue, found: TensorMap, where: tuple[int, ...]) -> Window | None:
    """Return the part of a box inside the tensor; None if there is none."""
    window = found.window(where)
    if window is not None:
        issue.global_bytes(found.address + window.offset, window.extent)
    return window


def _box_of(found: TensorMap, window: Window | None) -> Box | None:
    """Return the part of global memory that a window is; None without a window."""
    if window is None:
        return None
    return Box(found.address + window.offset, window.shape, (*window.strides[:-1], 1))


def _view(
    issue: Issue, found: TensorMap, window: Window, dtype: type[Scalar]
) -> tuple[NDArray[Scalar], tuple[slice, ...]]:
    """
    Return a window in global memory as `dtype`, and where in the box it is.

    Both count the last dimension in bytes if dtype is uint8, else in elements.
    """
    memory = issue.global_bytes(found.address + window.offset, window.extent)
    width = np.dtype(dtype).itemsize
    shape = (*window.shape[:-1], window.shape[-1] // width)
    strides = (*window.strides[:-1], width)
    *outer, inner = window.inside
    inside = (*outer, slice(inner.start // width, inner.stop // width))
    return np.ndarray(shape, dtype, memory, strides=strides), inside


def _fetcher(issue: Issue, found: TensorMap, window: Window | None) -> Callable[[], Bytes]:
    """Return a function that loads a box, uint8 [shared_bytes] in the order of its elements."""

    def fetch() -> Bytes:
        part = None if window is None else _view(issue, found, window, np.uint8)
        if part is not None and part[0].shape == found.shape:
            return _padded(found, np.ascontiguousarray(part[0]))
        box = np.full(found.shape, 0xFF if found.fills_nan else 0, np.uint8)
        if part is not None:
            box[part[1]] = part[0]
        return _padded(found, box)

    return fetch


def _padded(found: TensorMap, box: Bytes) -> Bytes:
    """Return a box with the padding that its type has in shared memory, flat."""
    element = found.element
    if element.bits == element.padded_bits:
        return box.reshape(-1)
    packed = box.reshape(-1, element.bits * 2)  # 16 elements
    padding = ((0, 0), (0, 16 - packed.shape[1]))
    return np.pad(packed, padding, constant_values=DIRT).reshape(-1)


def _writer(
    issue: Issue, found: TensorMap, window: Window | None, operation: str | None
) -> Callable[[Bytes], None]:
    """Return a function that writes or reduces a box, uint8 [shared_bytes], to the tensor."""
    if found.element.bits != found.element.padded_bits:
        issue.fault(f"a copy to a {found}, a type that can only be loaded")
    reduction = None if operation is None else _reduction(issue, found, operation)
    dtype: DType = np.uint8 if reduction is None else reduction.dtype

    def write(box: Bytes) -> None:
        if window is None:
            return
        tensor, inside = _view(issue, found, window, dtype)
        values = np.ascontiguousarray(box).view(dtype).reshape(*found.shape[:-1], -1)[inside]
        tensor[...] = values if reduction is None else reduction.combine(tensor, values)

    return write


def _reduction(issue: Issue, found: TensorMap, operation: str) -> Reduction:
    try:
        return Reduction(operation, found.element.name)
    except ValueError as error:
        issue.fault(f"{error} ({found})")
