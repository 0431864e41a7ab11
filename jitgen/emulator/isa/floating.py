# SPDX-License-Identifier: Apache-2.0
"""
Arithmetic in f32 and f64.

What numpy computes in float32 is rounded once, to nearest even, as the hardware does. The rest is
computed in float64 and rounded again. ``fma.f32`` has an exact product, so that two roundings
differ from one only where the sum lies within 2^-53 of the middle between two float32; what the
hardware approximates (``ex2``, ``rsqrt``, ``div.full``, ...) comes out correctly rounded. Not
modelled: the errors of those approximations, their ranges (``sin`` of a large number), NaN
payloads.

Sources: PTX ISA, section "Floating Point Instructions".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Numbers
from jitgen.emulator.isa.modifiers import apply, define, modifiers, one_of, sources
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

Floats = NDArray[np.floating]

_SPLIT = 2.0**27 + 1  # cuts the 53 bits of a float64 into two halves whose products are exact

_KNOWN = "rn rz rm rp ftz sat approx full NaN xorsign abs"

_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def emit(builder: Builder, instruction: Instruction) -> None:
    """Translate an operation in f32 or f64."""
    operation, kind = instruction.parts[0], instruction.parts[-1]
    found = modifiers(instruction, _KNOWN)
    values = sources(builder, instruction, kind)
    if "ftz" in found:
        values = [apply(builder, flush, value) for value in values]
    if operation in _OPERATORS and not found & _EXACT_ROUNDINGS:
        expression = f"({values[0]} {_OPERATORS[operation]} {values[1]})"
    elif _is_plain_fma(instruction, kind, found) and builder.define_alike(
        instruction.operands[0], fma, values
    ):
        return
    else:
        expression = apply(builder, function(operation, kind, found), *values)
    if "sat" in found:
        expression = apply(builder, saturate, expression)
    if "ftz" in found:
        expression = apply(builder, flush, expression)
    define(builder, instruction, expression, kind)


def _is_plain_fma(instruction: Instruction, kind: str, found: frozenset[str]) -> bool:
    """Return whether an instruction is ``fma.rn.f32`` without a guard, as promotions are."""
    is_fma = instruction.parts[0] == "fma" and instruction.guard is None
    return is_fma and kind == "f32" and found == {"rn"}


@cache
def function(operation: str, kind: str, found: frozenset[str]) -> Callable[..., Floats]:
    """
    Return the function of arrays that computes an operation, but for ``.ftz`` and ``.sat``.

    Args:
        operation: ``"add"``, ``"min"``, ...
        kind: ``"f32"`` or ``"f64"``.
        found: Modifiers.

    Raises:
        Unsupported: There is no such operation, or not with this rounding.
    """
    if operation in _CHOICES:
        return _choice(_CHOICES[operation], found)
    for rounding in found & _EXACT_ROUNDINGS:
        if kind != "f32" or operation not in _EXACT:
            raise Unsupported(f"rounding .{rounding} of {operation}.{kind}")
        return _directed(_EXACT[operation], rounding)
    if operation not in FUNCTIONS:
        raise Unsupported(f"{operation} of {kind}")
    return fma_float64 if kind == "f64" and operation in ("fma", "mad") else FUNCTIONS[operation]


def _choice(choose: Callable[..., Floats], found: frozenset[str]) -> Callable[..., Floats]:
    """Return min or max of two or three arrays, with the modifiers `found`, as a function."""

    def chosen(*values: Floats) -> Floats:
        magnitudes = [np.abs(x) for x in values] if "abs" in found else values
        result = choose(magnitudes[0], magnitudes[1], "NaN" in found)
        for other in magnitudes[2:]:
            result = choose(result, other, "NaN" in found)
        if "xorsign" in found:
            result = np.copysign(result, sign_of_product(*values))
        return result

    return chosen


def _directed(exact: Callable[..., tuple[Floats, Floats]], rounding: str) -> Callable[..., Floats]:
    def rounded(*values: Floats) -> Floats:
        high, low = exact(*values)
        return round_to_float32(high, low, rounding)

    return rounded


def flush(values: Numbers, smallest: float = 2.0**-126) -> Numbers:
    """Return `values` with what is less than the smallest normal number made zero (``.ftz``)."""
    return np.where(np.abs(values) < smallest, np.copysign(values.dtype.type(0), values), values)


def saturate(values: Numbers) -> Numbers:
    """Return `values` kept within 0 and 1; NaN becomes 0 (``.sat``)."""
    return np.fmin(np.fmax(values, 0), 1) + 0  # the sum turns -0 into 0


def minimum(a: Floats, b: Floats, is_nan_kept: bool = False) -> Floats:
    """Return the smaller numbers, -0 before 0; NaN only where both are, or with ``.NaN`` one is."""
    return -maximum(-a, -b, is_nan_kept)


def maximum(a: Floats, b: Floats, is_nan_kept: bool = False) -> Floats:
    """Return the larger numbers, 0 before -0; NaN only where both are, or with ``.NaN`` one is."""
    larger = np.maximum(a, b) if is_nan_kept else np.fmax(a, b)
    # numpy takes the first of two zeros; their sum is -0 only where both are
    return np.where((a == 0) & (b == 0), a + b, larger)


def sign_of_product(a: Floats, b: Floats) -> Floats:
    """Return 1 or -1 in the type of `a`: the exclusive or of two signs."""
    return np.where(np.signbit(a) ^ np.signbit(b), a.dtype.type(-1), a.dtype.type(1))


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """Return a b + c of float32."""
    product = np.multiply(a, b, dtype=np.float64)
    total: Floats = np.add(product, c, dtype=np.float64)
    return total.astype(np.float32)


def fma_float64(a: Floats, b: Floats, c: Floats) -> Floats:
    """Return a b + c of float64: product and sum with their errors, which are added last."""
    product, error = _product(a, b)
    total, lost = _sum(product, c)
    result = total + (error + lost)
    return np.where(np.isfinite(result), result, a * b + c)


def round_to_float32(high: Floats, low: Floats, rounding: str) -> Floats:
    """
    Return the exact values ``high + low`` in float32.

    Args:
        high: The values rounded to float64.
        low: The part that this rounding removed, float64.
        rounding: ``"rz"``, ``"rm"`` or ``"rp"``.
    """
    nearest = high.astype(np.float32)
    error = (high - nearest) + low  # what rounding to nearest took away
    down, up = np.float32(-np.inf), np.float32(np.inf)
    is_too_high, is_too_low = error < 0, error > 0
    if rounding == "rz":
        is_too_high, is_too_low = is_too_high & (nearest > 0), is_too_low & (nearest < 0)
    elif rounding == "rm":
        is_too_low = np.zeros_like(is_too_low)
    else:
        is_too_high = np.zeros_like(is_too_high)
    lower = np.where(is_too_high, np.nextafter(nearest, down), nearest)
    return np.where(is_too_low, np.nextafter(nearest, up), lower)


def _sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Return float64 sums and their exact errors."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _product(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Return float64 products and their exact errors."""
    product = a * b
    a_high, b_high = (x * _SPLIT - (x * _SPLIT - x) for x in (a, b))
    a_low, b_low = a - a_high, b - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _exact_sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    return _sum(a.astype(np.float64), b.astype(np.float64))


def _exact_difference(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    return _exact_sum(a, -b)


def _exact_product(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    return a.astype(np.float64) * b, np.zeros_like(a, np.float64)


def _exact_fma(a: Floats, b: Floats, c: Floats) -> tuple[Floats, Floats]:
    return _sum(a.astype(np.float64) * b, c.astype(np.float64))


def _in_float64(function: Callable[[Floats], Floats]) -> Callable[[Floats], Floats]:
    """Return `function` computed in float64 and rounded to the type of its argument."""

    def compute(x: Floats) -> Floats:
        return function(x.astype(np.float64)).astype(x.dtype)

    return compute


_EXACT: dict[str, Callable[..., tuple[Floats, Floats]]] = {
    "add": _exact_sum,
    "sub": _exact_difference,
    "mul": _exact_product,
    "fma": _exact_fma,
    "mad": _exact_fma,
}
_EXACT_ROUNDINGS = frozenset({"rz", "rm", "rp"})
_CHOICES = {"min": minimum, "max": maximum}

FUNCTIONS: dict[str, Callable[..., Floats]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "fma": fma,
    "mad": fma,
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "rcp": np.reciprocal,
    "rsqrt": _in_float64(lambda x: 1 / np.sqrt(x)),
    "ex2": _in_float64(np.exp2),
    "lg2": _in_float64(np.log2),
    "sin": _in_float64(np.sin),
    "cos": _in_float64(np.cos),
    "tanh": _in_float64(np.tanh),
}
"""Operations on arrays of one float type; f16 and bf16 are computed with them too."""


@emits("copysign")
def _copysign(builder: Builder, instruction: Instruction) -> None:
    modifiers(instruction, "")
    sign, magnitude = sources(builder, instruction, instruction.parts[-1])
    define(builder, instruction, f"np.copysign({magnitude}, {sign})", instruction.parts[-1])


_TESTS = {
    "finite": "np.isfinite({0})",
    "infinite": "np.isinf({0})",
    "number": "~np.isnan({0})",
    "notanumber": "np.isnan({0})",
    "normal": "np.isfinite({0}) & (np.abs({0}) >= np.finfo({0}.dtype).tiny)",
    "subnormal": "(np.abs({0}) < np.finfo({0}.dtype).tiny) & ({0} != 0)",
}


@emits("testp")
def _testp(builder: Builder, instruction: Instruction) -> None:
    test = one_of(instruction, " ".join(_TESTS), "")
    modifiers(instruction, test)
    (value,) = sources(builder, instruction, instruction.parts[-1])
    define(builder, instruction, _TESTS[test].format(value), "pred")
