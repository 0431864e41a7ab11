# SPDX-License-Identifier: Apache-2.0
"""
Instruction descriptors: the 32 bits that tell tcgen05.mma types and shape of its matrices.

Source: PTX ISA, sections "Instruction descriptor", "Matrix Shape" and "Transpose and Negate
operations" of tcgen05.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Required, TypedDict

_MIXED = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_PACKED = {1: "e2m1"}
_FLOATS = {0: "f16", 1: "f32"}

ROW_BYTES = 32
"""Bytes of K that one instruction takes of a row, elements of less than a byte being padded."""


@dataclass(frozen=True, slots=True)
class Kind:
    """
    A family of matrix instructions, ``.kind::...``.

    Attributes:
        inputs: Types of A and B, by their codes.
        outputs: Types of D, by their codes; empty where it is always f32.
        k: K of one instruction.
        is_padded: Whether elements of less than a byte are padded to one.
        scales: Scale factors of a row by their qualifier; ``""`` is what counts without one. Empty
            for a kind without scale factors.
        can_negate: Whether A and B can be negated.
        can_transpose: Whether A and B can be MN-major.
        reserved: Bits of the descriptor that must be 0.
    """

    inputs: Mapping[int, str]
    outputs: Mapping[int, str]
    k: int
    is_padded: bool = False
    scales: Mapping[str, int] | None = None
    can_negate: bool = True
    can_transpose: bool = True
    reserved: int = 1 << 6 | 1 << 23 | 1 << 29

    @property
    def element_bytes(self) -> int:
        """Bytes of an element in a row of shared memory; 1 also where two elements share a byte."""
        return max(1, ROW_BYTES // self.k)


_RESERVED_SCALED = 0b11 | 1 << 3 | 1 << 6 | 0b111 << 24

_BY_32 = {"block32": 2, "scale_vec::2X": 2}
_BY_16 = {"block16": 4, "scale_vec::4X": 4}

KINDS = {
    "f16": Kind({0: "f16", 1: "bf16"}, _FLOATS, 16),
    "tf32": Kind({2: "tf32"}, {1: "f32"}, 8),
    "f8f6f4": Kind(_MIXED, _FLOATS, 32, is_padded=True),
    "i8": Kind({0: "u8", 1: "s8"}, {2: "s32"}, 32, can_negate=False),
    "mxf8f6f4": Kind(
        _MIXED,
        {},
        32,
        is_padded=True,
        scales={"": 1, "block32": 1, "scale_vec::1X": 1},
        reserved=_RESERVED_SCALED,
    ),
    "mxf4": Kind(
        _PACKED,
        {},
        64,
        scales={"": 2, **_BY_32},
        can_transpose=False,
        reserved=_RESERVED_SCALED,
    ),
    "mxf4nvf4": Kind(
        _PACKED, {}, 64, scales=_BY_32 | _BY_16, can_transpose=False, reserved=_RESERVED_SCALED
    ),
}
"""The words that may follow ``.kind::`` in PTX."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionDescriptor:
    """
    The fields of an instruction descriptor.

    Attributes:
        m, n: Rows and columns of D, over both CTAs of a pair.
        a_type, b_type: Types of the elements, as in `numbers.elements`.
        d_type: ``"f16"``, ``"f32"`` or ``"s32"``.
        is_a_mn_major, is_b_mn_major: Whether not K, but the other dimension is contiguous.
        is_a_negated, is_b_negated: Whether the operand is multiplied by -1.
        is_saturating: Whether an s32 result that is out of range becomes the nearest that is in it.
        scale_type: ``"ue8m0"`` or ``"ue4m3"``; empty without scale factors.
        scale_a_id, scale_b_id: Byte of the word in tensor memory with the first scale factor.
    """

    m: int
    n: int
    a_type: str
    b_type: str
    d_type: str
    is_a_mn_major: bool
    is_b_mn_major: bool
    is_a_negated: bool
    is_b_negated: bool
    is_saturating: bool = False
    scale_type: str = ""
    scale_a_id: int = 0
    scale_b_id: int = 0


@lru_cache(maxsize=1 << 12)
def decode(bits: int, kind_name: str, ctas: int, scales: int = 0) -> InstructionDescriptor:
    """
    Return the fields of an instruction descriptor.

    Args:
        bits: The descriptor.
        kind_name: A key of `KINDS`.
        ctas: CTAs that work together, 1 or 2.
        scales: Number of scale factors of a row that the opcode names; 0 if it names none.

    Raises:
        ValueError: The bits have no meaning, or describe a matrix with structured sparsity.
    """
    kind = KINDS[kind_name]
    if bits & 1 << 2 or (bits & 0b11 and not kind.scales):
        raise _refusal(bits, "structured sparsity is not emulated")
    # of four-bit types b has two bits; the one above is reserved, and NVIDIA's CuTeDSL sets it, as
    # the version of a sparsity that is not there
    codes = bits >> 7 & 7, bits >> 10 & (3 if kind.inputs is _PACKED else 7)
    if any(code not in kind.inputs for code in codes):
        raise _refusal(bits, f"kind::{kind_name} has no input types {codes[0]} and {codes[1]}")
    fields = _scaled_fields(bits) if kind.scales else _plain_fields(bits, kind)
    found = InstructionDescriptor(
        m=(bits >> 24 & 31) * 16,
        n=(bits >> 17 & 63) * 8,
        a_type=kind.inputs[codes[0]],
        b_type=kind.inputs[codes[1]],
        is_a_negated=bool(bits >> 13 & 1),
        is_b_negated=bool(bits >> 14 & 1),
        is_a_mn_major=bool(bits >> 15 & 1),
        is_b_mn_major=bool(bits >> 16 & 1),
        **fields,
    )
    _check_modifiers(bits, kind_name, found)
    _check_types(bits, kind_name, found, scales)
    _check_shape(bits, kind_name, found, ctas)
    if bits & kind.reserved:
        raise _refusal(bits, f"reserved bits are set: {bits & kind.reserved:#x}")
    return found


def _refusal(bits: int, message: str) -> ValueError:
    return ValueError(f"instruction descriptor {bits:#010x}: {message}")


class _Fields(TypedDict, total=False):
    """The fields that not every kind has."""

    d_type: Required[str]
    is_saturating: bool
    scale_type: str
    scale_a_id: int
    scale_b_id: int


def _plain_fields(bits: int, kind: Kind) -> _Fields:
    """Return the fields of kinds without scale factors."""
    if bits >> 30:
        raise _refusal(bits, "a maximum shift belongs to the .ws variant")
    code = bits >> 4 & 3
    if code not in kind.outputs:
        raise _refusal(bits, f"the kind has no output type {code}")
    return {"d_type": kind.outputs[code], "is_saturating": bool(bits >> 3 & 1)}


def _scaled_fields(bits: int) -> _Fields:
    """Return the fields of kinds with scale factors."""
    if bits >> 31:
        raise _refusal(bits, "K = 96 is not emulated")
    return {
        "d_type": "f32",
        "scale_type": "ue8m0" if bits >> 23 & 1 else "ue4m3",
        "scale_b_id": bits >> 4 & 3,
        "scale_a_id": bits >> 29 & 3,
    }


def _check_modifiers(bits: int, kind_name: str, found: InstructionDescriptor) -> None:
    kind = KINDS[kind_name]
    if (found.is_a_negated or found.is_b_negated) and not kind.can_negate:
        raise _refusal(bits, f"kind::{kind_name} cannot negate")
    if (found.is_a_mn_major or found.is_b_mn_major) and not kind.can_transpose:
        raise _refusal(bits, f"kind::{kind_name} takes K-major operands only")
    if found.is_saturating and found.d_type != "s32":
        raise _refusal(bits, "only integers saturate")
    if kind_name == "tf32" and (found.is_a_mn_major or found.is_b_mn_major):
        raise _refusal(bits, "MN-major tf32 has a swizzle of its own, which is not emulated")


def _check_types(bits: int, kind_name: str, found: InstructionDescriptor, scales: int) -> None:
    """
    Refuse types that do not go together.

    Tables of the sections "Matrix Shape", where an f16 D goes with f16 operands, and "Valid
    combinations of scale_vectorsize with types and MMA-Kind", where ue4m3 goes with blocks of 16.
    """
    if found.d_type == "f16" and "bf16" in {found.a_type, found.b_type}:
        raise _refusal(bits, "no f16 result of bf16 operands")
    if found.scale_type == "ue4m3" and kind_name != "mxf4nvf4":
        raise _refusal(bits, f"kind::{kind_name} takes ue8m0 scale factors")
    if found.scale_type == "ue4m3" and scales not in {0, _BY_16["block16"]}:
        raise _refusal(bits, f"{scales} scale factors of a row are ue8m0, not ue4m3")


def _check_shape(bits: int, kind_name: str, found: InstructionDescriptor, ctas: int) -> None:
    """
    Refuse M x N that are not in the tables of "Matrix Shape" and "Transpose and Negate operations".
    """
    rows = {64, 128} if ctas == 1 else {128, 256}
    if KINDS[kind_name].scales:
        rows.discard(64)
    step = 8 * ctas
    if kind_name == "i8" and not (ctas == 1 and found.n in {8, 24}):
        step = 16 * ctas
    if found.m not in rows or found.n % step or not step <= found.n <= 256:
        raise _refusal(bits, f"shape {found.m}x{found.n} with {ctas} CTAs and kind::{kind_name}")
    if found.is_b_mn_major and KINDS[kind_name].element_bytes == 1 and found.n % (16 * ctas):
        raise _refusal(bits, f"N = {found.n} of an MN-major B of 8 bits, with {ctas} CTAs")
