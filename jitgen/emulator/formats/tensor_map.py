# SPDX-License-Identifier: Apache-2.0
"""
Tensor maps: the 128 bytes that tell a bulk tensor copy what the tensor and the box look like.

PTX ISA, sections "Tensors" and "Tensor-map", names the fields but not their places, which are the
hardware's. These are as the host code of compiled kernels fills them:

====== =============================================================================================
bytes  content
====== =============================================================================================
0-7    global address
8-11   bits 0-3: always 2; 4-6: rank - 1; 7-10: element type; 11-12: interleaved layout;
       13-14: swizzle; 15: fill with NaN; from 16 on: hints for the caches
12-27  strides of dimensions 1 to 4 in units of 16 bytes, 4 bytes each
28-31  bits 32-35 of these strides, 4 bits each
32-51  sizes - 1 in elements, 4 bytes each
52-54  element strides - 1, 3 bits each
55-59  box sizes - 1, one byte each
====== =============================================================================================

No kernel seen so far sets bits 11, 12 and 15 or the element strides: their places are those that
are left between the fields that are known.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import cached_property, lru_cache

from jitgen.emulator.formats.swizzle import CHUNK, span

BYTES = 128
"""Bytes of a tensor map."""

USED = 64
"""Bytes that hold anything; kernels of CuTeDSL copy no more of a map to shared memory."""

MAX_RANK = 5

_TILED = 2
"""Value of bits 0-3 of the flags for a tiled map."""

_PADDED_BOX = 128
_PADDED_ALIGNMENT = 32
_PADDED_SWIZZLES = (0, 3)
"""Requirements of padded types: elements of a box row, bytes, and no or 128-byte swizzle."""

_FIELDS = struct.Struct("<Q I 4I I 5I 3s 5B 68x")


@dataclass(frozen=True, slots=True)
class ElementType:
    """
    Element type of a tensor.

    Attributes:
        name: Its name in PTX, "e4m3" for example.
        bits: Bits of an element in global memory.
        padded_bits: Bits of an element in shared memory: more where a copy inserts padding.
        is_float: Whether out-of-bounds elements can be NaN.
    """

    name: str
    bits: int
    padded_bits: int
    is_float: bool


def _element(name: str, bits: int, padded_bits: int = 0) -> ElementType:
    return ElementType(name, bits, padded_bits or bits, "f" in name)


ELEMENT_TYPES = (
    _element("u8", 8),
    _element("u16", 16),
    _element("u32", 32),
    _element("s32", 32),
    _element("u64", 64),
    _element("s64", 64),
    _element("f16", 16),
    _element("f32", 32),
    _element("f32.ftz", 32),
    _element("f64", 64),
    _element("bf16", 16),
    _element("b4x16", 4),
    _element("b4x16_p64", 4, 8),
    _element("b6x16_p32", 6, 8),
    _element("tf32", 32),
    _element("tf32.ftz", 32),
)
"""
Types of elements, in the order of their codes. Where a copy pads, 16 elements and the padding
behind them take 16 bytes.
"""


@dataclass(frozen=True, slots=True)
class Window:
    """
    The part of a box that lies inside the tensor, outermost dimension first, bytes innermost.

    Attributes:
        offset: Bytes from the tensor's address to the window's first byte.
        shape: Shape of the window, the last dimension in bytes.
        strides: Bytes between neighbours, of the window in global memory.
        inside: The slices of the box that the window is.
    """

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    inside: tuple[slice, ...]

    @property
    def extent(self) -> int:
        """Bytes from the first to the last of the window, both included."""
        steps = zip(self.shape, self.strides, strict=True)
        return 1 + sum((size - 1) * stride for size, stride in steps)


@dataclass(frozen=True)
class TensorMap:
    """
    A decoded tensor map. Dimensions are in PTX order, innermost first.

    Maps live long and are used for every box, so values that follow from the fields are cached.

    Attributes:
        address: Address of the tensor in global memory.
        element: Type of its elements.
        sizes: Elements of each dimension.
        strides: Bytes between neighbours along each dimension but the innermost.
        box: Elements of the tensor that the box spans along each dimension.
        element_strides: The stride of the copied elements: 1 for every element, 2 for every second
            one and so on.
        swizzle: Address bits that are swizzled, 0 to 3; see `jitgen.emulator.formats.swizzle`.
        fills_nan: Whether elements out of bounds are NaN instead of zero.
        is_interleaved: Whether the layout is an interleaved one, which is not emulated.
    """

    address: int
    element: ElementType
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: int
    fills_nan: bool
    is_interleaved: bool

    # --- the box ----------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.sizes)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Elements that are copied along each dimension; element strides skip the others."""
        pairs = zip(self.box, self.element_strides, strict=True)
        return tuple(-(-size // step) for size, step in pairs)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the box without padding, outermost first, the last in bytes."""
        inner, *outer = self.counts
        return (*reversed(outer), inner * self.element.bits // 8)

    @cached_property
    def transaction_bytes(self) -> int:
        """
        Bytes that a copy of a box counts on its barrier: out-of-bounds parts included, padding not.
        """
        return math.prod(self.shape)

    @cached_property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that a box takes, with padding."""
        return self.transaction_bytes * self.element.padded_bits // self.element.bits

    @property
    def is_padded(self) -> bool:
        """Whether elements are packed in global memory and padded in shared memory."""
        return self.element.padded_bits > self.element.bits

    @cached_property
    def problem(self) -> str:
        """The first rule of the hardware that the map breaks; empty if it breaks none."""
        return self._problem_of_padding if self.is_padded else self._problem

    @property
    def _problem_of_padding(self) -> str:
        """
        The first broken rule of 16U4_ALIGN16B and 16U6_ALIGN16B, which are b4x16_p64 and b6x16_p32
        in PTX, or else of all types; empty if there is none.

        PTX ISA, section "Tensors", limitations of the sub-byte types; CUDA Driver API,
        `cuTensorMapEncodeTiled`.
        """
        name, units = self.element.name, _PADDED_ALIGNMENT
        rules = (
            (self.address % units != 0, f"{name} at {self.address:#x}, not at whole {units} bytes"),
            (
                any(stride % units for stride in self.strides),
                f"{name} with strides {self.strides}, not of whole {units} bytes",
            ),
            (self.box[0] != _PADDED_BOX, f"{name} with a box of {self.box[0]}, not {_PADDED_BOX}"),
            (
                self.sizes[0] % _PADDED_BOX != 0,
                f"{name} with rows of {self.sizes[0]} elements, not of whole {_PADDED_BOX}",
            ),
            (self.swizzle not in _PADDED_SWIZZLES, f"{name} with a swizzle that is not of 128"),
        )
        return next((text for is_broken, text in rules if is_broken), "") or self._problem

    @property
    def _problem(self) -> str:
        """The first rule of all types that is broken; empty if there is none."""
        inner = self.box[0] * self.element.bits
        padded = self.box[0] * self.element.padded_bits // 8
        rules = (
            (self.is_interleaved, "interleaved layouts are not emulated"),
            (self.address % CHUNK != 0, f"address {self.address:#x} is not aligned to 16 bytes"),
            (
                inner % (8 * CHUNK) != 0,
                f"a box row of {inner / 8:g} bytes is not a multiple of 16 bytes",
            ),
            (
                self.swizzle > 0 and padded > span(self.swizzle),
                f"a box row of {padded} bytes is wider than the swizzle, {span(self.swizzle)}",
            ),
            (
                self.element.name == "b4x16" and self.sizes[0] % 2 != 0,
                f"rows of {self.sizes[0]} elements of four bits do not end with a byte",
            ),
            (
                self.fills_nan and not self.element.is_float,
                f"elements of type {self.element.name} cannot be filled with NaN",
            ),
        )
        return next((text for is_broken, text in rules if is_broken), "")

    def window(self, coordinates: tuple[int, ...]) -> Window | None:
        """
        Return the part of the box at `coordinates` inside the tensor; None if there is none.

        Args:
            coordinates: Coordinates of the box's first element, innermost first; may be negative.
        """
        shape, strides, inside = [], [], []
        offset = 0
        for dimension, start in enumerate(coordinates):
            step = self.element_strides[dimension]
            first = max(0, -(start // step))
            last = min(self.counts[dimension], -((start - self.sizes[dimension]) // step))
            if first >= last:
                return None
            if dimension == 0:
                first, last = self._bytes(first), self._bytes(last)
                offset, stride = self._bytes(start) + first, 1
            else:
                stride = self.strides[dimension - 1]
                offset += (start + first * step) * stride
            shape.append(last - first)
            strides.append(step * stride)
            inside.append(slice(first, last))
        return Window(offset, tuple(shape[::-1]), tuple(strides[::-1]), tuple(inside[::-1]))

    def _bytes(self, elements: int) -> int:
        """Return the bytes of elements of the innermost dimension, rounded up."""
        return -(-elements * self.element.bits // 8)

    def misalignment(self, coordinates: tuple[int, ...]) -> int:
        """
        Return by how many bits a box at `coordinates` begins after the last place where a box may
        begin: a multiple of 16 bytes, or with padding of 128 elements.
        """
        unit = _PADDED_BOX * self.element.bits if self.is_padded else 8 * CHUNK
        return coordinates[0] * self.element.bits % unit

    def __str__(self) -> str:
        sizes, box = ("x".join(map(str, shape)) for shape in (self.sizes, self.box))
        return f"tensor map of {sizes} {self.element.name} at {self.address:#x}, box {box}"


@lru_cache(maxsize=1024)
def decode(data: bytes) -> TensorMap:
    """
    Return the tensor map that 128 bytes encode.

    Raises:
        ValueError: They are not a tensor map of tiles.
    """
    address, flags, *numbers = _FIELDS.unpack(data)
    strides, high, sizes = numbers[:4], numbers[4], numbers[5:10]
    packed, boxes = int.from_bytes(numbers[10], "little"), numbers[11:]
    rank = (flags >> 4 & 7) + 1
    if flags & 15 != _TILED or rank > MAX_RANK:
        raise ValueError(f"no tensor map of a tiled tensor: flags {flags:#010x}, rank {rank}")
    steps = [(packed >> 3 * dimension & 7) + 1 for dimension in range(rank)]
    return TensorMap(
        address=address,
        element=ELEMENT_TYPES[flags >> 7 & 15],
        sizes=tuple(size + 1 for size in sizes[:rank]),
        strides=tuple(
            (stride | (high >> 4 * number & 15) << 32) * 16
            for number, stride in enumerate(strides[: rank - 1])
        ),
        box=tuple(size + 1 for size in boxes[:rank]),
        element_strides=(1, *steps[1:]),  # that of the innermost dimension is ignored
        swizzle=flags >> 13 & 3,
        fills_nan=bool(flags >> 15 & 1),
        is_interleaved=bool(flags >> 11 & 3),
    )


def encode(tensor_map: TensorMap) -> bytes:
    """Return the 128 bytes of a tensor map."""
    rank = tensor_map.rank
    flags = _TILED | rank - 1 << 4 | ELEMENT_TYPES.index(tensor_map.element) << 7
    flags |= tensor_map.is_interleaved << 11 | tensor_map.swizzle << 13
    flags |= tensor_map.fills_nan << 15
    units = [stride // 16 for stride in tensor_map.strides] + [0] * (MAX_RANK - rank)
    high = sum((unit >> 32) << 4 * number for number, unit in enumerate(units))
    unused = [0] * (MAX_RANK - rank)
    packed = sum(step - 1 << 3 * number for number, step in enumerate(tensor_map.element_strides))
    return _FIELDS.pack(
        tensor_map.address,
        flags,
        *(unit & 0xFFFFFFFF for unit in units),
        high,
        *(size - 1 for size in tensor_map.sizes),
        *unused,
        packed.to_bytes(3, "little"),
        *(size - 1 for size in tensor_map.box),
        *unused,
    )
