# SPDX-License-Identifier: Apache-2.0
"""
PTX text to instructions.

Source: PTX ISA, sections "Syntax" and "Directives". The compiler's output is regular: registers
declared by ranges, variables in shared and local memory, and pieces of inline assembly. Calls are
replaced by the functions (`calls`). Other declarations are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from jitgen.emulator.program.calls import Caller, closing, functions
from jitgen.emulator.program.instruction import Instruction, split_operands
from jitgen.emulator.program.lines import source_lines
from jitgen.emulator.program.statements import Statement, without_comments
from jitgen.errors import UnsupportedPtx

SHARED_BASE = 1024
"""Offset of the first variable in shared memory; the bytes before it belong to the system."""

SHARED_WINDOW = 1 << 59
"""
Where shared memory begins among generic addresses. It lies above all memory of the host, for that
begins far below 4 GiB where a program is not position-independent, as Debian's Python is not. Its
lower half is 0, so that a generic address that is cut to 32 bits is the shared one.
"""

PARAM_BASE = 1 << 60
"""Address of the first kernel parameter, where no memory of the host is; each has 64 KiB."""

LOCAL_BASE = 1 << 61
"""Address of the first variable in local memory, which is each thread's own."""

_PARAM_SHIFT = 16
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+"
    r"(?:\.ptr\s+(?:\.(?!align)\w+\s+)?(?:\.align\s+\d+\s+)?)?([\w$]+)(?:\[(\d+)\])?"
)
_SHARED = re.compile(
    r"(\.extern\s+)?\.shared\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d*)\])?"
)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
_TARGET = re.compile(r"^\s*\.target\s+(sm_\d+\w?)", re.MULTILINE)
_DIRECTIVE = re.compile(
    r"^\s*\.(maxnreg|maxntid|reqntid|minnctapersm|reqnctapercluster|explicitcluster|maxclusterrank)"
    r"\b([\d\s,]*)",
    re.MULTILINE,
)
_GUARD = re.compile(r"@(!?)\s*(%?[\w@$]+)\s+")
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(.*)")
_RANGE = re.compile(r"(\S+?)\s*<\s*(\d+)\s*>")
_PARAM_ADDRESS = re.compile(r"\[\s*([\w$@]+)\s*(?:\+\s*(\w+))?\s*\]")
_PREFIX = re.compile(r"%[A-Za-z_]+")

_LOCAL = re.compile(r"\.local\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d+)\])?")
_HARMLESS = (".shared", ".local", ".pragma")
"""Directives in a kernel that need no more attention here."""

_CLASS_OF_TYPE = {"pred": "p", "b128": "w"}
_CLASS_OF_WIDTH = {8: "h", 16: "h", 32: "r", 64: "q"}
_USUAL = {
    "%p": "p", "%r": "r", "%f": "r", "%rd": "q", "%fd": "q", "%rs": "h", "%h": "h", "%rq": "w",
}  # fmt: skip
"""Class of registers by the prefixes that the compiler gives them."""


@dataclass(slots=True)
class Module:
    """
    A kernel as parsed.

    Attributes:
        entry: Name of the kernel.
        params: Name and size in bytes of each parameter.
        shared: Offset of each variable in shared memory.
        shared_end: Offset at which dynamic shared memory begins.
        local: Offset of each variable in local memory.
        local_end: Bytes of the local memory of a thread.
        registers: Class (r, q, h, p, w) of each register, or prefix of registers, that is declared.
        code: The instructions.
        labels: Index of the instruction after each label.
        target: Target of the code, as ``.target`` names it; empty where it is not said.
        directives: Numbers of the directives about the launch, by name without the dot.
    """

    entry: str
    params: list[tuple[str, int]] = field(default_factory=list)
    shared: dict[str, int] = field(default_factory=dict)
    shared_end: int = SHARED_BASE
    local: dict[str, int] = field(default_factory=dict)
    local_end: int = 0
    registers: dict[str, str] = field(default_factory=lambda: dict(_USUAL))
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    target: str = ""
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def class_of(self, register: str) -> str:
        """
        Return the class of a register, or an empty string where the name is none.

        The classes are r, q, h (32, 64, 16 bits), p (predicate) and w (128 bits).
        """
        if register in self.registers:
            return self.registers[register]
        prefix = _PREFIX.match(register)
        return self.registers.get(prefix[0], "") if prefix else ""

    def is_wide(self, register: str) -> bool:
        """Return whether a register has 128 bits; see `wide_halves`."""
        return register.startswith("%") and self.class_of(register) == "w"

    def address_of(self, param: str) -> int | None:
        """
        Return the address of a parameter in generated code; None if the kernel has no such
        parameter.
        """
        for number, (name, _) in enumerate(self.params):
            if name == param:
                return PARAM_BASE + (number << _PARAM_SHIFT)
        return None


def wide_halves(register: str) -> tuple[str, str]:
    """
    Return the names of the two 64-bit registers that hold one of 128 bits, the low one first.

    There is no file of such registers: every read or write of one is of these two.
    """
    name = register.removeprefix("%")
    return f"%rd${name}$low", f"%rd${name}$high"


def parse(text: str, entry: str = "") -> Module:
    """
    Return a kernel in `text`.

    Args:
        text: PTX.
        entry: Name of the kernel; empty for the only one.

    Raises:
        UnsupportedPtx: There is no such kernel in it, or there are several and `entry` is empty, or
            it declares or calls something that the emulator does not support.
    """
    sources = source_lines(text)
    text = without_comments(text)
    entries = {found[1]: found.start() for found in _ENTRY.finditer(text)}
    if not entry and len(entries) == 1:
        (entry,) = entries
    if entry not in entries:
        names = ", ".join(entries) or "none"
        raise UnsupportedPtx(f"the PTX holds no kernel {entry!r}; those that it holds: {names}")
    start = text.find("{", entries[entry])
    end = closing(text, max(start, entries[entry]))
    head, signature = text[: min(entries.values())], text[entries[entry] : start]
    module = Module(entry)
    if found := _TARGET.search(text):
        module.target = found[1]
    for name, numbers in _DIRECTIVE.findall(signature):
        module.directives[name] = tuple(map(int, re.findall(r"\d+", numbers)))
    for kind, param, count in _PARAM.findall(signature):
        module.params.append((param, int(count or 1) * _bits(kind) // 8))
    _place_shared(module, head + text[start:end])
    _place_local(module, text)
    caller = Caller(text, functions(text))
    _fill(module, list(caller.statements(start + 1, end)), sources, caller.params)
    return module


def _bits(kind: str) -> int:
    return int(re.sub(r"\D", "", kind) or 0)


def _place_shared(module: Module, text: str) -> None:
    """
    Give each variable in shared memory its offset: static ones in order, dynamic ones after them.
    """
    dynamic, largest = [], 1
    for external, wanted, kind, name, count in _SHARED.findall(text):
        alignment = int(wanted or _bits(kind) // 8)
        if external:
            dynamic.append(name)
            largest = max(largest, alignment)
            continue
        offset = -(-module.shared_end // alignment) * alignment
        module.shared[name] = offset
        module.shared_end = offset + int(count or 1) * _bits(kind) // 8
    module.shared_end = -(-module.shared_end // largest) * largest
    module.shared |= dict.fromkeys(dynamic, module.shared_end)


def _place_local(module: Module, text: str) -> None:
    """Give each variable in local memory its offset, those of functions too."""
    for wanted, kind, name, count in _LOCAL.findall(text):
        alignment = int(wanted or _bits(kind) // 8)
        offset = -(-module.local_end // alignment) * alignment
        module.local[name] = offset
        module.local_end = offset + int(count or 1) * _bits(kind) // 8


def _fill(
    module: Module, statements: list[Statement], sources: list[int | None], params: set[str]
) -> None:
    """Add registers, labels and instructions to a module; `params` are those of calls."""
    refused = []
    for statement in statements:
        if statement.text.startswith(".reg"):
            _declare(module, statement)
        elif statement.text.startswith(".") and not statement.text.startswith(_HARMLESS):
            refused.append(f"line {statement.line}: {statement.text}")
    if refused:
        raise UnsupportedPtx(
            f"declarations that the emulator does not know: {'; '.join(refused)}",
            unknown=tuple(refused),
        )
    for statement in statements:
        if statement.is_label:
            module.labels[statement.text] = len(module.code)
        elif not statement.text.startswith("."):
            source = sources[statement.line - 1]
            instruction = _instruction(statement, len(module.code), source)
            module.code += _moves(module, instruction, params) or [instruction]


def _declare(module: Module, statement: Statement) -> None:
    """Note registers: ``%r<9>`` by their prefix, those of inner scopes one by one."""
    found = _REGISTERS.fullmatch(statement.text)
    if found is None:
        raise UnsupportedPtx(f"PTX line {statement.line}: {statement.text}")
    kind = _CLASS_OF_TYPE.get(found[1]) or _CLASS_OF_WIDTH[_bits(found[1])]
    for name in split_operands(found[2]):
        several = _RANGE.fullmatch(name)
        if several and not statement.scope.number:
            module.registers[several[1]] = kind
            continue
        names = [f"{several[1]}{i}" for i in range(int(several[2]))] if several else [name]
        for each in names:
            module.registers[statement.scope.declare(each, is_register=True)] = kind


def _moves(module: Module, instruction: Instruction, params: set[str]) -> list[Instruction]:
    """
    Return the moves of registers that replace a load or store of a call's parameter, one for each
    element; none for other instructions.

    Each offset and width in a parameter has a register.

    Raises:
        UnsupportedPtx: A part is loaded that was not stored as such.
    """
    kind = instruction.parts[0]
    if kind not in {"ld", "st"} or "param" not in instruction.parts[1:2]:
        return []
    target, source = instruction.operands
    address, value = (source, target) if kind == "ld" else (target, source)
    found = _PARAM_ADDRESS.fullmatch(address)
    if found is None or found[1] not in params:
        return []
    bits = _bits(instruction.parts[-1])
    moves = []
    names = split_operands(value[1:-1]) if value.startswith("{") else [value]
    for position, name in enumerate(names):
        offset = int(found[2] or "0", 0) + position * bits // 8
        place = f"%call_{found[1]}_{offset}_{bits}"
        if kind == "st":
            module.registers[place] = _CLASS_OF_WIDTH[bits]
        elif place not in module.registers:
            raise UnsupportedPtx(
                f"PTX line {instruction.line}: nothing stored what {instruction.text} loads"
            )
        op = f"mov.b{max(bits, 16)}"
        moves.append(
            replace(
                instruction,
                index=instruction.index + position,
                op=op,
                parts=tuple(op.split(".")),
                operands=(name, place) if kind == "ld" else (place, name),
            )
        )
    return moves


def _instruction(statement: Statement, index: int, source: int | None) -> Instruction:
    """Return the instruction of a statement, with unique names."""
    guard, is_negated, rest = None, False, statement.text
    if found := _GUARD.match(rest):
        guard, is_negated, rest = found[2], bool(found[1]), rest[found.end() :]
    op, _, operands = rest.partition(" ")
    return Instruction(
        index=index,
        op=op,
        parts=tuple(op.split(".")),
        operands=tuple(split_operands(statement.scope.resolve(operands))),
        guard=None if guard is None else statement.scope.resolve(guard),
        is_negated=is_negated,
        line=statement.line,
        source=source,
        text=statement.text,
    )
