# SPDX-License-Identifier: Apache-2.0
"""
Number formats that numpy lacks: codes to values, and values to codes with each rounding of PTX.

A code is the bit pattern of one element in the low bits of an unsigned integer. Every value of
every format here is a float32, so that decoding is exact, and every float32 is a float64, in which
encoding adds no further error.

Sources: PTX ISA, section "Alternate Floating-Point Data Formats" for the fields of each format, and
section "cvt" for rounding, saturation and NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import DType, Integers, Numbers

Floats = NDArray[np.floating]

Specials = Literal["ieee", "nan", "none"]
"""
Meaning of the codes above the largest finite value: infinity and NaNs, one NaN, or no such codes.
"""


@dataclass(frozen=True, slots=True)
class Format:
    """
    A floating-point format: sign, exponent and mantissa from the top, with subnormals.

    Attributes:
        exponent_bits: Width of the exponent.
        mantissa_bits: Width of the mantissa, the hidden bit not counted.
        bias: Number that is added to an exponent to store it.
        specials: Meaning of the topmost codes.
        dtype: Unsigned integer that holds a code.
        unused_bits: Bits of zero below the mantissa.
    """

    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Specials
    dtype: type[np.unsignedinteger]
    unused_bits: int = 0

    @property
    def sign(self) -> int:
        """The sign bit, which is one more than the largest code of a positive number."""
        return 1 << (self.exponent_bits + self.mantissa_bits)

    @property
    def infinity(self) -> int:
        """Code of an overflow: infinity, or the code of NaN in a format without infinity."""
        if self.specials == "ieee":
            return ((1 << self.exponent_bits) - 1) << self.mantissa_bits
        return self.nan

    @property
    def nan(self) -> int:
        """Code of NaN: all ones. In a format without NaN that is its largest value, as PTX says."""
        return self.sign - 1

    @property
    def largest(self) -> int:
        """Code of the largest finite value."""
        beyond = {"ieee": self.infinity, "nan": self.nan, "none": self.sign}
        return beyond[self.specials] - 1


FORMATS = {
    "e4m3": Format(4, 3, 7, "nan", np.uint8),
    "e5m2": Format(5, 2, 15, "ieee", np.uint8),
    "e2m1": Format(2, 1, 1, "none", np.uint8),
    "e2m3": Format(2, 3, 1, "none", np.uint8),
    "e3m2": Format(3, 2, 3, "none", np.uint8),
    "f16": Format(5, 10, 15, "ieee", np.uint16),
    "bf16": Format(8, 7, 127, "ieee", np.uint16),
    "tf32": Format(8, 10, 127, "ieee", np.uint32, unused_bits=13),
}
"""The signed formats, by their names in PTX; ``ue8m0`` and ``ue4m3`` have no sign."""

ROUNDINGS: dict[str, Callable[[Numbers], Floats]] = {
    "rn": np.rint,  # to nearest, ties to even
    "rz": np.trunc,  # toward zero
    "rm": np.floor,  # toward minus infinity
    "rp": np.ceil,  # toward infinity
    "rna": lambda values: np.trunc(values + np.copysign(0.5, values)),  # ties away from zero
}
"""The roundings of PTX, to whole numbers."""

_BIAS_UE8M0 = 127
_NAN_UE8M0 = 0xFF


def decode(codes: Integers, name: str) -> NDArray[np.float32]:
    """
    Return the values of `codes`, of the same shape.

    Args:
        codes: Unsigned integers. Bits above a format of less than 8 bits are ignored.
        name: A key of `FORMATS`, or ``"ue8m0"``, ``"ue4m3"``.
    """
    if name in _TABLES:
        in_table = codes if codes.dtype == np.uint8 else codes & 0xFF
        values: NDArray[np.float32] = _TABLES[name].take(in_table)
    elif name == "f16":
        values = np.asarray(codes, np.uint16).view(np.float16).astype(np.float32)
    elif name == "bf16":
        values = (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif name == "tf32":
        values = (codes.astype(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    else:
        raise KeyError(name)
    return values


def encode(
    values: Numbers,
    name: str,
    *,
    rounding: str = "rn",
    is_saturating: bool = False,
    is_relu: bool = False,
) -> NDArray[np.unsignedinteger]:
    """
    Return the codes of `values`, of the same shape and of the format's unsigned type.

    Args:
        values: float32 or float64.
        name: A key of `FORMATS`, or ``"ue8m0"``, which takes magnitudes and always saturates.
        rounding: A key of `ROUNDINGS`; for ``"ue8m0"`` ``"rz"`` or ``"rp"``.
        is_saturating: Whether larger values become the largest finite one (``.satfinite``), as
            finite values do that `rounding` takes toward zero; otherwise infinity, or NaN in a
            format that has no infinity.
        is_relu: Whether negative values become zero (``.relu``).
    """
    is_usual = rounding == "rn" and not is_saturating and not is_relu
    if is_usual and name in _QUICK:
        return _QUICK[name](values)
    if name == "ue8m0":
        return _encode_ue8m0(values, rounding)
    form = FORMATS[name]
    codes = _finite_codes(values, form, rounding, is_saturating)
    codes = np.where(np.signbit(values), 0 if is_relu else codes | form.sign, codes)
    codes = np.where(np.isnan(values), form.nan, codes)
    return (codes << form.unused_bits).astype(form.dtype)


@np.errstate(invalid="ignore")  # of signalling NaNs, which become quiet
def _finite_codes(
    values: Numbers, form: Format, rounding: str, is_saturating: bool
) -> NDArray[np.int64]:
    """Return the codes of magnitudes, infinity included but not NaN."""
    codes = _magnitude_codes(values, form, rounding)
    top: int | NDArray[np.int64] = form.largest if is_saturating else form.infinity
    if rounding in _OVERFLOWS and not is_saturating:
        is_beyond = np.isinf(values) | _OVERFLOWS[rounding](np.signbit(values))
        top = np.where(is_beyond, form.infinity, form.largest)
    return np.where(codes > form.largest, top, codes)


_OVERFLOWS: dict[str, Callable[[NDArray[np.bool_]], NDArray[np.bool_]]] = {
    "rz": np.zeros_like,
    "rm": lambda is_negative: is_negative,
    "rp": np.logical_not,
}
"""Whether a finite value beyond the largest one is rounded to infinity, from its sign."""


def _magnitude_codes(values: Numbers, form: Format, rounding: str) -> NDArray[np.int64]:
    """
    Return the codes of magnitudes, those beyond the largest finite one continued upwards.

    A value is counted in units of its last place. As codes grow by one from one unit to the next,
    subnormals and carries into the exponent included, the code is the sum of this count and of the
    exponent as stored, minus 1, above the mantissa.
    """
    finite = np.where(np.isfinite(values), np.asarray(values, np.float64), 2.0**1000)
    exponents = np.frexp(finite)[1] - 1 + form.bias  # as stored
    exponents = np.where(finite == 0, 1, np.maximum(exponents, 1))  # 1 is that of subnormals too
    units = np.ldexp(finite, form.bias + form.mantissa_bits - exponents)
    counts = np.abs(ROUNDINGS[rounding](units)).astype(np.int64)
    return (exponents.astype(np.int64) - 1 << form.mantissa_bits) + counts


def _encode_ue8m0(values: Numbers, rounding: str) -> NDArray[np.uint8]:
    """Return the exponents of magnitudes, rounded down (``rz``) or up (``rp``) to a power of 2."""
    fractions, exponents = np.frexp(np.abs(values, dtype=np.float64))
    codes = exponents - 1 + _BIAS_UE8M0
    if rounding == "rp":
        codes = codes + (fractions > 0.5)  # that of a power of 2 is 0.5
    elif rounding != "rz":
        raise KeyError(rounding)
    codes = np.where(fractions == 0, 0, np.where(np.isinf(values), _NAN_UE8M0, codes))
    codes = np.clip(codes, 0, _NAN_UE8M0 - 1)
    return np.where(np.isnan(values), _NAN_UE8M0, codes).astype(np.uint8)


_HALF, _ODD, _BELOW_MIDDLE = np.uint32(16), np.uint32(1), np.uint32(0x7FFF)


def _round_to_bf16(values: Numbers) -> NDArray[np.uint16]:
    """Return the codes of `values` in bf16; rounds the lower half of a float32 off its bits."""
    bits = _nearly_float32(values).view(np.uint32)
    rounded = np.asarray(bits >> _HALF)
    rounded &= _ODD
    rounded += _BELOW_MIDDLE
    rounded += bits
    rounded >>= _HALF
    codes = rounded.astype(np.uint16)
    is_nan = np.isnan(values)
    if not np.count_nonzero(is_nan):
        return codes
    return np.where(is_nan, np.uint16(FORMATS["bf16"].nan), codes)


def _nearly_float32(values: Numbers) -> NDArray[np.float32]:
    """
    Return `values` as float32 that round to the same bf16: rounding to float32 makes no new ties.
    """
    single = np.asarray(values, np.float32)
    if values.dtype == np.float32:
        return single
    is_middle = single.view(np.uint32) & np.uint32(0xFFFF) == np.uint32(0x8000)
    if is_middle.any():
        toward = np.where(values > single, np.float32(np.inf), np.float32(-np.inf))
        is_moved = is_middle & (single != values)
        single = np.where(is_moved, np.nextafter(single, toward), single)
    return single


@np.errstate(invalid="ignore", over="ignore")
def _round_to_f16(values: Numbers) -> NDArray[np.uint16]:
    """Return the codes of `values` in f16, which numpy rounds."""
    codes = np.asarray(values).astype(np.float16).view(np.uint16)
    return np.where(np.isnan(values), np.uint16(FORMATS["f16"].nan), codes)


_QUICK = {"bf16": _round_to_bf16, "f16": _round_to_f16}
"""Shorter ways to the formats that kernels write."""


def elements(raw: NDArray[np.uint8], name: str) -> NDArray[np.float32]:
    """
    Return the numbers that lie in memory: [..., bytes] uint8 to [..., elements] float32.

    Args:
        raw: Bytes, the element of the lowest address first.
        name: A key of `FORMATS`, ``"f32"``, ``"s8"``, ``"u8"``, ``"ue8m0"``, ``"ue4m3"``.
            ``"e2m1"`` is two to a byte, the low half first; ``"e2m1.byte"`` is one to a byte,
            in bits 2 to 5, as matrix instructions of mixed types take it. ``"e2m3"`` and
            ``"e3m2"`` are one to a byte, in bits 0 to 5.
    """
    if name == "e2m1":
        pairs: NDArray[np.float32] = _FP4_PAIRS.take(raw).view(np.float32)
        return pairs
    if name == "e2m1.byte":
        return decode(raw >> np.uint8(2), "e2m1")
    if name in _MEMORY_TYPES:
        values = np.ascontiguousarray(raw).view(_MEMORY_TYPES[name])
        return values.astype(np.float32)
    if name in _TABLES:
        return decode(raw, name)
    return decode(np.ascontiguousarray(raw).view(FORMATS[name].dtype), name)


def product(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """
    Return ``a @ b.T``, each sum rounded to float32 once: [..., rows, columns].

    A matrix product in float32 adds in an order that depends on the shape. So an element of a wide
    tile would have other bits than the same element of a narrow tile.

    Args:
        a: [..., rows, K].
        b: [..., columns, K].
    """
    wide = a.astype(np.float64) @ np.swapaxes(b, -1, -2).astype(np.float64)
    return wide.astype(np.float32)


_MEMORY_TYPES: dict[str, DType] = {
    "f32": np.float32,
    "f16": np.float16,
    "s8": np.int8,
    "u8": np.uint8,
}


def _table(form: Format) -> NDArray[np.float32]:
    """Return the values of all 256 codes of a format of at most 8 bits; unused bits are ignored."""
    codes = np.arange(256)
    magnitudes = codes & form.sign - 1
    exponents, mantissas = magnitudes >> form.mantissa_bits, magnitudes
    mantissas = mantissas & (1 << form.mantissa_bits) - 1
    significands = np.where(exponents > 0, mantissas | 1 << form.mantissa_bits, mantissas)
    scales = np.maximum(exponents, 1) - form.bias - form.mantissa_bits
    values = np.ldexp(significands.astype(np.float64), scales)
    if form.specials != "none":
        values = np.where(magnitudes > form.largest, np.nan, values)
    if form.specials == "ieee":
        values = np.where(magnitudes == form.infinity, np.inf, values)
    table: NDArray[np.float32] = np.where(codes & form.sign, -values, values).astype(np.float32)
    return table


def _tables() -> dict[str, NDArray[np.float32]]:
    tables = {name: _table(form) for name, form in FORMATS.items() if form.dtype is np.uint8}
    tables["ue4m3"] = np.tile(tables["e4m3"][:128], 2)  # the sign bit is not looked at
    powers = np.ldexp(1.0, np.arange(256) - _BIAS_UE8M0)
    powers[_NAN_UE8M0] = np.nan
    tables["ue8m0"] = powers.astype(np.float32)
    return tables


_TABLES = _tables()

_FP4_PAIRS = _TABLES["e2m1"][np.arange(256)[:, None] >> np.array([0, 4]) & 0xF].view(np.float64)
"""The two float32 values that each byte stands for, in the 64 bits of one element."""
