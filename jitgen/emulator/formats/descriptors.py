# SPDX-License-Identifier: Apache-2.0
"""
Matrix descriptors: how 64 bits name an operand of wgmma or tcgen05 in shared memory.

In every layout, 16 adjacent bytes of an operand stay adjacent in shared memory. Such a chunk is the
unit here: an operand is a table of chunk numbers, an address being 16 times its chunk number. The
tables are cached, since a kernel uses a few hundred descriptors thousands of times.

Sources: PTX ISA, sections "Asynchronous Warpgroup Level Matrix Shared Memory Layout" and "Matrix
Descriptor Format" of wgmma, and "Shared Memory Descriptor" and "Canonical Layouts" of tcgen05.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CHUNK = 16
"""Bytes that every layout keeps together."""

ROWS_OF_ATOM = 8
"""Rows after which the pattern of a swizzle repeats."""

_FIELD = 0x3FFF


def _bits(first: int, last: int) -> int:
    """Return the mask of the bits `first` to `last`, both included."""
    return (2 << last) - (1 << first)


_GAPS = _bits(14, 15) | _bits(30, 31) | _bits(46, 48)
_RESERVED_WGMMA = _GAPS | _bits(52, 61)
_RESERVED_TCGEN05 = _GAPS | _bits(53, 60)
_CONSTANT_TCGEN05 = 1 << 46

_SWIZZLES_WGMMA = {0: 0, 1: 3, 2: 2, 3: 1}
_SWIZZLES_TCGEN05 = {0: 0, 2: 3, 4: 2, 6: 1}


@dataclass(frozen=True, slots=True)
class Descriptor:
    """
    The place of an operand in shared memory.

    Attributes:
        start: Offset of its first byte in the shared memory of a CTA.
        leading: "Leading dimension byte offset".
        stride: "Stride dimension byte offset".
        swizzle: Number of address bits from bit 4 on that are XORed with those from bit 7 on: 3 for
            the 128-byte swizzle, 2 for 64 bytes, 1 for 32 bytes, 0 for none.
    """

    start: int
    leading: int
    stride: int
    swizzle: int

    @property
    def width(self) -> int:
        """Bytes that a swizzle permutes among themselves; a row of the pattern."""
        return CHUNK << self.swizzle


class Operand(NamedTuple):
    """
    The shape of an operand and which of its dimensions is contiguous; a quick key of caches.

    Attributes:
        rows: Rows of A (M), columns of B (N).
        row_bytes: Bytes of a row: K elements.
        element_bytes: Bytes of one element; matters for MN-major operands only.
        is_mn_major: Whether rows, not K, are adjacent in memory.
    """

    rows: int
    row_bytes: int
    element_bytes: int = 1
    is_mn_major: bool = False


@lru_cache(maxsize=1 << 14)
def of_wgmma(bits: int) -> Descriptor:
    """
    Return what a descriptor of wgmma says: PTX ISA, section "Matrix Descriptor Format".

    Raises:
        ValueError: Reserved bits are set, or a field has no meaning here.
    """
    return _decode(bits, bits >> 62, _RESERVED_WGMMA, _SWIZZLES_WGMMA)


@lru_cache(maxsize=1 << 14)
def of_tcgen05(bits: int) -> Descriptor:
    """
    Return what a descriptor of tcgen05 says: PTX ISA, section "Shared Memory Descriptor".

    Raises:
        ValueError: Reserved bits are set, or a field has no meaning here, for example the swizzle
            of 128 bytes with atoms of 32, or absolute leading addresses.
    """
    if bits >> 52 & 1:
        raise ValueError(f"matrix descriptor {bits:#018x}: absolute leading addresses")
    return _decode(
        bits ^ _CONSTANT_TCGEN05, bits >> 61, _RESERVED_TCGEN05, _SWIZZLES_TCGEN05, shown=bits
    )


def _decode(
    bits: int, swizzle: int, reserved: int, swizzles: Mapping[int, int], shown: int | None = None
) -> Descriptor:
    """Return the fields that both architectures share, after checking the others."""
    name = f"matrix descriptor {bits if shown is None else shown:#018x}"
    if bits & reserved:
        raise ValueError(f"{name}: reserved bits have the wrong value: {bits & reserved:#x}")
    if bits >> 49 & 7:
        raise ValueError(f"{name}: its base offset is {bits >> 49 & 7}, not 0")
    if swizzle not in swizzles:
        raise ValueError(f"{name}: no layout has the code {swizzle}")
    return Descriptor(
        start=(bits & _FIELD) * CHUNK,
        leading=(bits >> 16 & _FIELD) * CHUNK,
        stride=(bits >> 32 & _FIELD) * CHUNK,
        swizzle=swizzles[swizzle],
    )


@lru_cache(maxsize=1 << 10)
def chunks(descriptor: Descriptor, operand: Operand) -> NDArray[np.int64]:
    """
    Return the numbers of an operand's chunks; do not write to the array.

    Returns:
        [rows, row_bytes / 16] for a K-major operand, [K, rows * element_bytes / 16] for an MN-major
        one, rounded up: the contiguous dimension is last.
    """
    if operand.is_mn_major:
        return _mn_major(descriptor, operand)
    return _k_major(descriptor, operand)


def _k_major(descriptor: Descriptor, operand: Operand) -> NDArray[np.int64]:
    """
    Return the offsets of the 16-byte chunks of a K-major operand. Its core matrices of 8 rows are
    `stride` apart; its columns, each as wide as the swizzle, are `leading` apart.
    """
    row = np.arange(operand.rows)[:, None]
    byte = CHUNK * np.arange(-(-operand.row_bytes // CHUNK))
    width = descriptor.width
    address = (
        descriptor.start + row % ROWS_OF_ATOM * width + row // ROWS_OF_ATOM * descriptor.stride
    )
    return _swizzled(address + byte % width + byte // width * descriptor.leading, descriptor)


def _mn_major(descriptor: Descriptor, operand: Operand) -> NDArray[np.int64]:
    """
    Return the offsets of the 16-byte chunks of an MN-major operand. Its atoms of 8 k are `stride`
    apart; its columns, each as wide as the swizzle, are `leading` apart. Without a swizzle the two
    distances change places.
    """
    k = np.arange(operand.row_bytes // operand.element_bytes)[:, None]
    byte = CHUNK * np.arange(-(-operand.rows * operand.element_bytes // CHUNK))
    width = descriptor.width
    along_mn, along_k = descriptor.leading, descriptor.stride
    if descriptor.swizzle == 0:  # without a swizzle they change places
        along_mn, along_k = along_k, along_mn
    address = descriptor.start + k % ROWS_OF_ATOM * width + k // ROWS_OF_ATOM * along_k
    return _swizzled(address + byte % width + byte // width * along_mn, descriptor)


def _swizzled(address: NDArray[np.int64], descriptor: Descriptor) -> NDArray[np.int64]:
    """
    Return the swizzled chunk numbers of addresses that are not swizzled.

    The pattern belongs to the addresses, not to the operand, which may start anywhere in it.
    """
    chunk = address // CHUNK
    return chunk ^ (chunk >> 3 & (1 << descriptor.swizzle) - 1)


@lru_cache(maxsize=1 << 10)
def offsets(descriptor: Descriptor, operand: Operand) -> NDArray[np.int64]:
    """
    Return the shared-memory offset of each byte, [rows, row_bytes] whichever dimension is major.

    Byte ``k * element_bytes + i`` of a row is byte i of element k. Do not write to the array.
    """
    bytes_ = chunks(descriptor, operand)[..., None] * CHUNK + np.arange(CHUNK)
    if not operand.is_mn_major:
        return bytes_.reshape(operand.rows, -1)[:, : operand.row_bytes]
    size = operand.element_bytes
    along_mn = bytes_.reshape(len(bytes_), -1, size)[:, : operand.rows]  # [k, row, byte]
    return along_mn.transpose(1, 0, 2).reshape(operand.rows, operand.row_bytes)
