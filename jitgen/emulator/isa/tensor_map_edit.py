# SPDX-License-Identifier: Apache-2.0
"""
Kernels that write tensor maps: one field replaced, a map copied from shared to global memory.

PTX ISA, sections "tensormap.replace" and "tensormap.cp_fenceproxy"; where the fields lie see
`jitgen.emulator.formats.tensor_map`. A copy reads its map when it is issued; the fences that it
needs before are checked, see `jitgen.emulator.machine.tensor_maps`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import PerThread
from jitgen.emulator.formats import tensor_map
from jitgen.emulator.isa.bulk_transfer import Mask, check_parts, issues
from jitgen.emulator.machine.access import READ, WRITE
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

_WORD = 4

_PTX_ELEMENTS = (
    "u8 u16 u32 s32 u64 s64 f16 f32 f32.ftz f64 bf16 tf32 tf32.ftz b4x16 b4x16_p64 b6x16_p32"
)
"""Element types in the order of PTX's numbers for them, which are not the hardware's."""


@dataclass(frozen=True, slots=True)
class Piece:
    """
    Bits of a field.

    Attributes:
        word: Byte of the map at which the 32-bit word with the bits begins.
        shift: First of the bits in that word.
        bits: Number of bits.
        source: First of the bits in the field's value.
    """

    word: int
    shift: int
    bits: int
    source: int = 0


def _minus_one(value: int) -> int:
    return value - 1


def _same(value: int) -> int:
    return value


def _element_code(value: int) -> int:
    names = [element.name for element in tensor_map.ELEMENT_TYPES]
    return names.index(_PTX_ELEMENTS.split()[value])


@dataclass(frozen=True, slots=True)
class Field:
    """
    A field of tensor maps.

    Attributes:
        pieces: Returns where it lies, by its ordinal: the dimension it is for, if it has one.
        encode: Returns the bits of the map for a value.
        has_ordinal: Whether the instruction names a dimension.
    """

    pieces: Callable[[int], tuple[Piece, ...]]
    encode: Callable[[int], int] = _same
    has_ordinal: bool = False


def _box(dimension: int) -> tuple[Piece, ...]:
    word, byte = divmod(55 + dimension, _WORD)
    return (Piece(word * _WORD, 8 * byte, 8),)


FIELDS = {
    "global_address": Field(lambda _: (Piece(0, 0, 32), Piece(4, 0, 32, 32))),
    "rank": Field(lambda _: (Piece(8, 4, 3),)),
    "elemtype": Field(lambda _: (Piece(8, 7, 4),), _element_code),
    "interleave_layout": Field(lambda _: (Piece(8, 11, 2),)),
    "swizzle_mode": Field(lambda _: (Piece(8, 13, 2),)),
    "fill_mode": Field(lambda _: (Piece(8, 15, 1),)),
    "global_stride": Field(
        lambda number: (Piece(12 + 4 * number, 0, 32, 4), Piece(28, 4 * number, 4, 36)), _same, True
    ),
    "global_dim": Field(lambda number: (Piece(32 + 4 * number, 0, 32),), _minus_one, True),
    "element_stride": Field(lambda number: (Piece(52, 3 * number, 3),), _minus_one, True),
    "box_dim": Field(_box, _minus_one, True),
}
"""
Fields of a tensor map by name. The rank is given minus one and strides in bytes; ordinal 0 of a
stride is that of dimension 1.
"""


@emits("tensormap.replace.tile")
def replace(builder: Builder, instruction: Instruction) -> None:
    """Translate ``tensormap.replace.tile.global_dim.global.b1024.b32 [map], dimension, value``."""
    name = instruction.parts[3]
    check_parts(instruction, f"tensormap replace tile {name} global shared::cta b1024 b32 b64")
    if name not in FIELDS:
        raise Unsupported(f"field {name}")
    field = FIELDS[name]
    address, *numbers = instruction.operands
    ordinal = int(numbers.pop(0), 0) if field.has_ordinal else 0
    is_shared = not instruction.has("global")
    arguments = (
        builder.mask(instruction),
        builder.address(address),
        builder.value(numbers[0], instruction.parts[-1]),
        builder.constant(Change(field.pieces(ordinal), field.encode, is_shared), "change"),
    )
    builder.do(builder.call(replace_field, *arguments))


@dataclass(frozen=True, slots=True)
class Change:
    """
    The change that an instruction makes.

    Attributes:
        pieces: The bits of the field.
        encode: Returns the bits of the map for a value.
        is_shared: Whether the map is in shared memory; otherwise it is in global memory.
    """

    pieces: tuple[Piece, ...]
    encode: Callable[[int], int]
    is_shared: bool


def replace_field(
    f: Fragment, at: int, mask: Mask, addresses: PerThread, values: PerThread, change: Change
) -> None:
    """Replace a field of the map that each thread under the mask names."""
    for issue in issues(f, at, mask):
        address, value = issue.of(addresses), change.encode(issue.of(values))
        issue.check_aligned("tensor map address", address, tensor_map.BYTES)
        for piece in change.pieces:
            where, thread = address + piece.word, np.array([issue.thread])
            word = int(_load(f, at, where, _WORD, thread, change.is_shared).view(np.uint32)[0, 0])
            mask_of_bits = (1 << piece.bits) - 1
            bits = (value >> piece.source) & mask_of_bits
            word = word & ~(mask_of_bits << piece.shift) | bits << piece.shift
            data = np.array([[word]], np.uint32).view(np.uint8)
            _store(f, at, where, data, thread, change.is_shared)


@emits("tensormap.cp_fenceproxy", whole_warp=True)
def publish(builder: Builder, instruction: Instruction) -> None:
    """Translate ``tensormap.cp_fenceproxy.global.shared::cta... [destination], [source], 128``."""
    to, origin, size = instruction.operands
    if int(size, 0) != tensor_map.BYTES:
        raise Unsupported(f"{size} bytes")
    arguments = (builder.mask(instruction), builder.address(to), builder.address(origin))
    builder.do(builder.call(copy_map, *arguments))


def copy_map(f: Fragment, at: int, mask: Mask, destinations: PerThread, sources: PerThread) -> None:
    """Copy a map from shared to global memory, once for each warp; only `USED` bytes matter."""
    for issue in issues(f, at, mask, (destinations, sources)):
        thread, source = np.array([issue.thread]), np.array([issue.of(sources)], np.uint64)
        start = int(f.cta.shared.offsets(f, at, source, tensor_map.BYTES)[0])
        used = _load(f, at, int(source[0]), tensor_map.USED, thread, True)
        rest = f.cta.shared.bytes[start + tensor_map.USED : start + tensor_map.BYTES]
        data = np.concatenate([used, rest[None]], axis=1)
        _store(f, at, issue.of(destinations), data, thread, False)
        f.machine.memory.maps.release(f.cluster.clocks, issue.agent)


def _load(
    f: Fragment, at: int, address: int, width: int, thread: NDArray[np.int64], is_shared: bool
) -> NDArray[np.uint8]:
    """Return what a thread reads, uint8 [1, width]."""
    addresses = np.array([address], np.uint64)
    if not is_shared:
        loaded = f.machine.memory.load(f, at, addresses, width)
        f.machine.memory.note(f, at, addresses, width, thread, READ)
        return loaded
    offsets = f.cta.shared.offsets(f, at, addresses, width)
    return f.cta.shared.generic_read(f, at, offsets, width, thread)


def _store(
    f: Fragment,
    at: int,
    address: int,
    data: NDArray[np.uint8],
    thread: NDArray[np.int64],
    is_shared: bool,
) -> None:
    """Write uint8 `data` [1, width] of a thread."""
    addresses = np.array([address], np.uint64)
    if not is_shared:
        f.machine.memory.store(f, at, addresses, data)
        f.machine.memory.note(f, at, addresses, data.shape[1], thread, WRITE)
        return
    offsets = f.cta.shared.offsets(f, at, addresses, data.shape[1])
    f.cta.shared.generic_write(f, at, offsets, data, thread)
