# SPDX-License-Identifier: Apache-2.0
"""
Logic: of predicates and of bits.

Source: PTX ISA, section "Logic and Shift Instructions".
"""

from __future__ import annotations

from jitgen.emulator.isa.modifiers import define, modifiers, one_of, sources, width
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import emits

OPERATORS = {"and": "&", "or": "|", "xor": "^"}
"""Operations on two predicates or registers, also those that setp and lop3 end with."""


@emits("and", "or", "xor")
def _combine(builder: Builder, instruction: Instruction) -> None:
    modifiers(instruction, "")
    operation, kind = instruction.parts[0], instruction.parts[-1]
    a, b = sources(builder, instruction, kind)
    define(builder, instruction, f"{a} {OPERATORS[operation]} {b}", kind)


@emits("not")
def _not(builder: Builder, instruction: Instruction) -> None:
    modifiers(instruction, "")
    kind = instruction.parts[-1]
    (value,) = sources(builder, instruction, kind)
    define(builder, instruction, f"~{value}", kind)


@emits("cnot")
def _cnot(builder: Builder, instruction: Instruction) -> None:
    modifiers(instruction, "")
    kind = instruction.parts[-1]
    (value,) = sources(builder, instruction, kind)
    define(builder, instruction, f"({value} == 0).astype(U{width(kind) // 8})", kind)


@emits("lop3")
def _lop3(builder: Builder, instruction: Instruction) -> None:
    combination = one_of(instruction, " ".join(OPERATORS), "")
    modifiers(instruction, combination)
    destination, *operands = instruction.operands
    table = int(operands[3], 0) & 0xFF
    a, b, c = (builder.value(operand, "b32") for operand in operands[:3])
    expression = three_way(a, b, c, table)
    register, *predicate = destination.split("|")
    if not combination:
        builder.define(register, expression, "b32", instruction)
        return
    result = builder.temporary()
    builder.do(f"{result} = {expression}")
    condition = f"({result} != 0) {OPERATORS[combination]} {builder.value(operands[4], 'pred')}"
    builder.define(predicate[0], condition, "pred", instruction)
    builder.define(register, result, "b32", instruction)


def three_way(a: str, b: str, c: str, table: int) -> str:
    """
    Return the expression of any function of three bits, for each bit of three registers.

    Args:
        a: Expression of the first register, unsigned integers.
        b: Expression of the second.
        c: Expression of the third.
        table: Bit ``4 a + 2 b + c`` is the result for these inputs.
    """
    if table.bit_count() > 4:
        return f"~({three_way(a, b, c, ~table & 0xFF)})"
    terms = []
    for row in range(8):
        if table >> row & 1:
            inputs = zip((a, b, c), (row & 4, row & 2, row & 1), strict=True)
            terms.append(" & ".join(x if is_set else f"~{x}" for x, is_set in inputs))
    return " | ".join(f"({term})" for term in terms) or f"({a} ^ {a})"
