# SPDX-License-Identifier: Apache-2.0
"""
Moves: between registers, of parts of a register, of addresses between state spaces.

A generic address of global or local memory or of a parameter is the address itself. That of shared
memory, if it has 64 bits, is the shared address plus `SHARED_WINDOW`, so only conversions of these
change the number.

Source: PTX ISA, sections "mov", "cvta" and "isspacep".
"""

from __future__ import annotations

from jitgen.emulator.isa.modifiers import define, modifiers, sources, width
from jitgen.emulator.program.builder import DTYPES, Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.local import LOCAL
from jitgen.emulator.program.parse import PARAM_BASE, SHARED_WINDOW, wide_halves
from jitgen.emulator.program.table import Unsupported, emits


@emits("mov")
def _mov(builder: Builder, instruction: Instruction) -> None:
    modifiers(instruction, "")
    destination, source = instruction.operands
    kind = instruction.parts[-1]
    if kind == "b128":
        _move_wide(builder, instruction)
    elif destination.startswith("{"):
        _unpack(builder, instruction, kind)
    elif source.startswith("{"):
        _pack(builder, instruction, kind)
    else:
        bits = (
            kind if kind == "pred" else f"b{width(kind)}"
        )  # no view of another type is in between
        define(builder, instruction, builder.value(source, bits), bits)


def _pack(builder: Builder, instruction: Instruction, kind: str) -> None:
    """Join registers to a wider one, the first in the lowest bits."""
    part, whole = _part_of(builder, instruction.operands[1], kind), DTYPES[kind]
    values = builder.values(instruction.operands[1], part)
    step = width(part)
    terms = [
        f"({value}).astype({whole}) << {whole}({step * i})" if i else f"({value}).astype({whole})"
        for i, value in enumerate(values)
    ]
    define(builder, instruction, " | ".join(terms), kind)


def _unpack(builder: Builder, instruction: Instruction, kind: str) -> None:
    """Cut a register into narrower ones, the lowest bits first; ``_`` drops a part."""
    destination, source = instruction.operands
    part, whole = _part_of(builder, destination, kind), DTYPES[kind]
    step = width(part)
    value = builder.value(source, kind)
    if not LOCAL.fullmatch(value):
        value, expression = builder.temporary(), value
        builder.do(f"{value} = {expression}")
    for i, register in enumerate(builder.names(destination)):
        if register != "_":
            shifted = f"({value} >> {whole}({step * i}))" if i else value
            builder.define(register, f"{shifted}.astype({DTYPES[part]})", part, instruction)


def _part_of(builder: Builder, vector: str, kind: str) -> str:
    """Return the type of each part of a register of type `kind`."""
    count = len(builder.names(vector))
    part = f"b{width(kind) // count}"
    if part not in DTYPES:
        raise Unsupported(f"{count} parts of {kind}")
    return part


def _move_wide(builder: Builder, instruction: Instruction) -> None:
    """Move 128 bits: a register, which is two of 64 bits, or two of 64 bits in braces."""
    targets, origins = (
        builder.names(operand) if operand.startswith("{") else wide_halves(operand)
        for operand in instruction.operands
    )
    values = [builder.value(origin, "b64") for origin in origins]
    for register, value in zip(targets, values, strict=True):
        builder.define(register, value, "b64", instruction)


@emits("cvta")
def _cvta(builder: Builder, instruction: Instruction) -> None:
    modifiers(instruction, "to global shared shared::cta shared::cluster param const local")
    kind = instruction.parts[-1]
    (address,) = sources(builder, instruction, kind)
    if kind == "u64" and any(part.startswith("shared") for part in instruction.parts):
        sign = "-" if "to" in instruction.parts else "+"
        address = f"({address} {sign} U8({SHARED_WINDOW}))"
    define(builder, instruction, address, kind)


@emits("isspacep")
def _isspacep(builder: Builder, instruction: Instruction) -> None:
    space = instruction.parts[-1]
    begins = {
        "global": 0,
        **dict.fromkeys(("shared", "shared::cta", "shared::cluster"), SHARED_WINDOW),
    }
    if space not in begins:
        raise Unsupported(f"state space {space}")
    (address,) = sources(builder, instruction, "u64")
    end = SHARED_WINDOW if space == "global" else PARAM_BASE
    inside = f"({address} >= U8({begins[space]})) & ({address} < U8({end}))"
    define(builder, instruction, inside, "pred")
