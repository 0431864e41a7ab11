# SPDX-License-Identifier: Apache-2.0
"""
Comparison and selection: setp, set, selp, slct.

Source: PTX ISA, section "Comparison and Selection Instructions".
"""

from __future__ import annotations

from jitgen.emulator.isa import packed
from jitgen.emulator.isa.floating import flush
from jitgen.emulator.isa.logic import OPERATORS
from jitgen.emulator.isa.modifiers import apply, define, is_float, modifiers, sources, width
from jitgen.emulator.program.builder import DTYPES, Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

_COMPARISONS = {
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "lo": "{0} < {1}",
    "ls": "{0} <= {1}",
    "hi": "{0} > {1}",
    "hs": "{0} >= {1}",
}

_FLOAT_COMPARISONS = {
    **_COMPARISONS,
    "ne": "({0} < {1}) | ({0} > {1})",  # false where one is NaN, unlike !=
    "equ": "~(({0} < {1}) | ({0} > {1}))",
    "neu": "{0} != {1}",
    "ltu": "~({0} >= {1})",
    "leu": "~({0} > {1})",
    "gtu": "~({0} <= {1})",
    "geu": "~({0} < {1})",
    "num": "({0} == {0}) & ({1} == {1})",
    "nan": "({0} != {0}) | ({1} != {1})",
}


@emits("setp")
def _setp(builder: Builder, instruction: Instruction) -> None:
    """
    Translate setp: p gets the comparison and q its opposite, or of packed types p the lower and q
    the upper lane's; each is combined with a predicate if there is one.
    """
    kind = instruction.parts[-1]
    condition = _comparison(builder, instruction, kind, types=1)
    registers = instruction.operands[0].split("|")
    if len(registers) == 1:
        builder.define(
            registers[0], _combined(builder, instruction, condition), "pred", instruction
        )
        return
    condition = _kept(builder, condition)
    if kind.endswith("x2"):  # p is of the lower half, q of the upper one
        conditions = [f"{condition}[..., 0]", f"{condition}[..., 1]"]
    else:
        conditions = [condition, f"~{condition}"]
    # both are computed before p is overwritten, which may be the predicate that they read
    results = [_kept(builder, _combined(builder, instruction, x)) for x in conditions]
    for register, result in zip(registers, results, strict=True):
        builder.define(register, result, "pred", instruction)


def _kept(builder: Builder, expression: str) -> str:
    """Return a local that holds the value of an expression."""
    name = builder.temporary()
    builder.do(f"{name} = {expression}")
    return name


def _comparison(builder: Builder, instruction: Instruction, kind: str, *, types: int) -> str:
    """Return the expression of the comparison of operands 1 and 2 as type `kind`."""
    comparison = instruction.parts[1]
    table = _FLOAT_COMPARISONS if is_float(kind) else _COMPARISONS
    if comparison not in table:
        raise Unsupported(f"comparison .{comparison} of {kind}")
    found = modifiers(instruction, f"{comparison} and or xor ftz", types=types)
    values = [_readable(builder, operand, kind) for operand in instruction.operands[1:3]]
    if "ftz" in found:
        values = [apply(builder, flush, value) for value in values]
    return f"({table[comparison].format(*values)})"


def _readable(builder: Builder, operand: str, kind: str) -> str:
    """Return the expression of an operand as numbers; packed ones have lanes as last axis."""
    if kind not in packed.TYPES:
        return builder.value(operand, kind)
    lanes = apply(builder, packed.split, builder.value(operand, packed.container(kind)), repr(kind))
    return lanes if kind.endswith("x2") else f"{lanes}[..., 0]"


def _combined(builder: Builder, instruction: Instruction, expression: str) -> str:
    """Return `expression` combined with the predicate that is the last operand, if there is one."""
    combination = next((OPERATORS[part] for part in instruction.parts if part in OPERATORS), None)
    if combination is None:
        return expression
    return f"({expression} {combination} {builder.value(instruction.operands[3], 'pred')})"


_TRUE = {
    "u32": "U4(0xFFFFFFFF)",
    "s32": "U4(0xFFFFFFFF)",
    "f32": "U4(0x3F800000)",
    "f16": "U2(0x3C00)",
    "bf16": "U2(0x3F80)",
}
"""The bits of true in each type; 0 is false."""


@emits("set")
def _set(builder: Builder, instruction: Instruction) -> None:
    result, kind = instruction.parts[-2:]
    if result not in _TRUE or kind.endswith("x2"):
        raise Unsupported(f"set of {result} from {kind}")
    condition = _combined(builder, instruction, _comparison(builder, instruction, kind, types=2))
    bits = f"b{width(result)}"
    define(builder, instruction, f"np.where({condition}, {_TRUE[result]}, {DTYPES[bits]}(0))", bits)


@emits("selp")
def _selp(builder: Builder, instruction: Instruction) -> None:
    modifiers(instruction, "")
    bits = f"b{width(instruction.parts[-1])}"
    a, b, condition = sources(builder, instruction, bits, bits, "pred")
    define(builder, instruction, f"np.where({condition}, {a}, {b})", bits)


@emits("slct")
def _slct(builder: Builder, instruction: Instruction) -> None:
    modifiers(instruction, "ftz", types=2)
    kind, sign = instruction.parts[-2:]
    bits = f"b{width(kind)}"
    a, b, value = sources(builder, instruction, bits, bits, sign)
    define(builder, instruction, f"np.where({value} >= 0, {a}, {b})", bits)
