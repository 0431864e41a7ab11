# SPDX-License-Identifier: Apache-2.0
"""
Helpers for the emitters of computing instructions: reading an opcode, binding a function.

The functions that compute take arrays and nothing else, neither fragment nor place, so that they
can be tested with numbers written by hand. Every element of an array is a thread. Where all threads
agree an argument may be a numpy scalar.
"""

from __future__ import annotations

from collections.abc import Callable

from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported


def width(type_name: str) -> int:
    """Return the bits of a PTX type: 32 for ``"s32"``, 16 for ``"bf16"``."""
    return int(type_name.lstrip("abcdefghijklmnopqrstuvwxyz"))


def is_float(type_name: str) -> bool:
    """Return whether a PTX type is a floating-point type, packed ones included."""
    return type_name.startswith(("f", "bf"))


def modifiers(instruction: Instruction, known: str, *, types: int = 1) -> frozenset[str]:
    """
    Return the modifiers between the operation and its types.

    Args:
        instruction: ``fma.rn.ftz.f32 ...`` has the modifiers ``rn`` and ``ftz``.
        known: Modifiers that the caller understands, with blanks in between.
        types: How many parts at the end of the opcode are types.

    Raises:
        Unsupported: There is another one.
    """
    found = frozenset(instruction.parts[1 : len(instruction.parts) - types])
    strange = sorted(found.difference(known.split()))
    if strange:
        raise Unsupported(f"modifier .{strange[0]}")
    return found


def one_of(instruction: Instruction, choices: str, default: str) -> str:
    """Return which of `choices`, with blanks in between, the opcode has; else `default`."""
    return next((name for name in choices.split() if instruction.has(name)), default)


def apply(builder: Builder, function: Callable[..., object], *arguments: str) -> str:
    """
    Return the expression ``function(arguments)``, for a function of arrays that needs neither f nor
    at; `Builder.call` passes these as well.
    """
    name = builder.constant(function, function.__name__)
    return f"{name}({', '.join(arguments)})"


def sources(builder: Builder, instruction: Instruction, *types: str) -> list[str]:
    """
    Return the expressions of the operands after the destination.

    Args:
        builder: The builder of the block's function.
        instruction: The instruction; its first operand is the destination.
        types: The type as which each operand is read; a single one stands for all.

    Raises:
        Unsupported: The number of operands is not the number of types.
    """
    operands = instruction.operands[1:]
    if len(types) == 1:
        types *= len(operands)
    if len(types) != len(operands):
        raise Unsupported(f"{len(operands)} source operands")
    return [builder.value(*pair) for pair in zip(operands, types, strict=True)]


def define(builder: Builder, instruction: Instruction, expression: str, type_name: str) -> None:
    """Assign `expression` to the first operand, no pair ``d|p``, under the instruction's guard."""
    builder.define(instruction.operands[0], expression, type_name, instruction)
