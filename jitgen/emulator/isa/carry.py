# SPDX-License-Identifier: Apache-2.0
"""
Arithmetic on integers wider than a register, by a carry from one instruction to the next.

The carry, or borrow, is a local variable of the block function: it does not outlive a basic block.

Source: PTX ISA, section "Extended-Precision Integer Arithmetic Instructions".
"""

from __future__ import annotations

from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.isa.arithmetic import product_of
from jitgen.emulator.isa.modifiers import apply, define, modifiers, one_of, sources, width
from jitgen.emulator.program.builder import DTYPES, Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

Unsigned = NDArray[np.unsignedinteger]
Carry = NDArray[np.bool_] | bool

_CARRY = "carry"

_carrying: WeakSet[Builder] = WeakSet()
"""The blocks being translated in which something has set the carry."""


@emits("add.cc", "addc", "sub.cc", "subc")
def _sum(builder: Builder, instruction: Instruction) -> None:
    modifiers(instruction, "cc")
    function = add if instruction.parts[0].startswith("add") else subtract
    kind = f"u{width(instruction.parts[-1])}"
    a, b = sources(builder, instruction, kind)
    _assign(builder, instruction, apply(builder, function, a, b, _carry_in(builder, instruction)))


@emits("mad.lo.cc", "mad.hi.cc", "madc")
def _product_and_sum(builder: Builder, instruction: Instruction) -> None:
    modifiers(instruction, "lo hi cc")
    kind = instruction.parts[-1]
    unsigned = DTYPES[f"u{width(kind)}"]
    a, b, c = sources(builder, instruction, kind)
    product = product_of(builder, a, b, kind, one_of(instruction, "lo hi", ""))
    terms = [f"{x}.view({unsigned})" for x in (product, f"({c})")]
    _assign(builder, instruction, apply(builder, add, *terms, _carry_in(builder, instruction)))


def _carry_in(builder: Builder, instruction: Instruction) -> str:
    """Return the expression of the carry into ``addc``, ``subc``, ``madc``; else ``False``."""
    if not instruction.parts[0].endswith("c"):
        return "False"
    if builder not in _carrying:
        raise Unsupported("a carry from another basic block")
    return _CARRY


def _assign(builder: Builder, instruction: Instruction, expression: str) -> None:
    if instruction.guard is not None:
        raise Unsupported("a guard of an instruction with carry")
    result = builder.temporary()
    builder.do(f"{result} = {expression}")
    if instruction.has("cc"):
        builder.do(f"{_CARRY} = {result}[1]")
        _carrying.add(builder)
    define(builder, instruction, f"{result}[0]", f"u{width(instruction.parts[-1])}")


def add(a: Unsigned, b: Unsigned, carry: Carry) -> tuple[Unsigned, Carry]:
    """Return a + b + carry and the carry out."""
    total = a + b
    result = total + np.asarray(carry, a.dtype)
    return result, (total < a) | (result < total)


def subtract(a: Unsigned, b: Unsigned, borrow: Carry) -> tuple[Unsigned, Carry]:
    """Return a - b - borrow and the borrow out."""
    difference = a - b
    result = difference - np.asarray(borrow, a.dtype)
    return result, (difference > a) | (result > difference)
