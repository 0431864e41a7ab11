# SPDX-License-Identifier: Apache-2.0
"""
Elements of the operands of tcgen05.mma, in shared and in tensor memory.

Elements of less than a byte are packed, or each has the room of a byte, so that all types of a
mixed product advance alike: in shared memory 16 of them lie in 16 bytes, packed at the beginning
and padded at the end; in tensor memory each has its own byte.

Source: PTX ISA, section "Packing formats of elements in Tensor and Shared memory" of tcgen05.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Scalar
from jitgen.emulator.formats import numbers

_PADDED_TO = 16
"""Bytes, and elements, of the unit in which shared memory pads elements of less than a byte."""

_SIX_BITS = np.uint32(0x3F)
_IN_THREE_BYTES = np.array([0, 6, 12, 18], np.uint32)


def in_shared_memory(raw: NDArray[np.uint8], name: str, *, is_padded: bool) -> NDArray[np.float32]:
    """
    Return the values of [rows, bytes] uint8 in shared memory, as [rows, elements] float32.

    Args:
        raw: The bytes, without swizzle, in the order of K.
        name: A type of `numbers.elements`.
        is_padded: Whether elements of less than a byte are padded, as for the kinds that mix types.
    """
    if name in {"e2m3", "e3m2"}:
        return numbers.decode(_six_bit_codes(raw), name)
    if name == "e2m1" and is_padded:
        units = raw.reshape(len(raw), -1, _PADDED_TO)[:, :, : _PADDED_TO // 2]
        return numbers.elements(units.reshape(len(raw), -1), name)
    return numbers.elements(raw, name)


def _six_bit_codes(raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """
    Return the codes of 6 bits: the first 12 of 16 bytes hold 16 codes, and in the result each code
    is a byte.
    """
    units = raw.reshape(len(raw), -1, _PADDED_TO)[:, :, : _PADDED_TO * 3 // 4].astype(np.uint32)
    triples = units.reshape(len(raw), -1, 3)
    bits = triples[..., 0] | triples[..., 1] << np.uint32(8) | triples[..., 2] << np.uint32(16)
    codes: NDArray[np.uint32] = bits[..., None] >> _IN_THREE_BYTES & _SIX_BITS
    return codes.reshape(len(raw), -1).astype(np.uint8)


def in_tensor_memory(
    words: NDArray[np.uint32], name: str, *, is_padded: bool
) -> NDArray[np.float32]:
    """
    Return the values of [lanes, columns] words of tensor memory, as [lanes, elements] float32.

    Args:
        words: uint32; K goes on from word to word, in each from the low bits to the high ones.
        name: A type of `numbers.elements`.
        is_padded: Whether elements of less than a byte have one byte each.
    """
    raw = np.ascontiguousarray(words).view(np.uint8)
    return numbers.elements(raw, "e2m1.byte" if name == "e2m1" and is_padded else name)


def without_padding(places: NDArray[Scalar], bits: int) -> NDArray[Scalar]:
    """
    Return rows in shared memory without their padding, [rows, bytes] to [rows, fewer].

    Args:
        places: Anything, for each byte of the rows.
        bits: Bits of an element: 4 and 6 are packed at the beginning of 16 bytes, 8 have no
            padding.
    """
    if bits == 8:
        return places  # itself, as regions of shared memory are known by their identity
    units = places.reshape(len(places), -1, _PADDED_TO)
    return units[:, :, : _PADDED_TO * bits // 8].reshape(len(places), -1)


def in_bytes(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """
    Return elements with a byte each, as tensor memory has them, [rows, elements] uint8.

    Args:
        packed: uint8 [rows, bytes], without padding.
        bits: Bits of an element; one of 4 comes to bits 2 to 5 of its byte, one of 6 to bits 0 to
            5.
    """
    if bits == 8:
        return packed
    flags = np.unpackbits(packed, axis=-1, bitorder="little").reshape(len(packed), -1, bits)
    codes: NDArray[np.uint8] = np.packbits(flags, axis=-1, bitorder="little")[..., 0]
    return codes << np.uint8(2) if bits == 4 else codes
