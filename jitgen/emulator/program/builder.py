# SPDX-License-Identifier: Apache-2.0
"""
How an emitter writes Python: a basic block becomes a function over numpy arrays.

An array has one element for each thread of the fragment that executes the block. Registers live in
files of the CTA, a row each; a block loads those that it uses into locals, works on the locals and
writes back what it changed::

    def block_7(f):
        s = f.s                 # the fragment's threads
        r = f.cta.r
        r5 = r[5, s]
        # 812: add.s32 %r9, %r5, 1
        r9 = r5 + U4_1
        r[9, s] = r9
        return 8                # the next block

No array is ever changed in place, so that registers may share one. But a loaded local is a view of
its row where the threads are a slice; it is copied if the block changes the register later, because
writing back would also change the other users' values. A function that keeps an argument for later
must copy it for the same reason.

Where all threads agree on a value it may be a numpy scalar, in a local as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from numpy import generic

from jitgen.emulator.program.batch import Batch, row_of
from jitgen.emulator.program.checks import Checks
from jitgen.emulator.program.definitions import Accesses
from jitgen.emulator.program.instruction import Instruction, split_operands
from jitgen.emulator.program.local import LOCAL, Load, Pick, is_same, rendered
from jitgen.emulator.program.parse import LOCAL_BASE, PARAM_BASE, wide_halves
from jitgen.emulator.program.table import Emitter, Unsupported
from jitgen.emulator.program.types import (
    DTYPES,
    FILE_DTYPES,
    converted,
    dtype_of,
    immediate,
    is_number,
    scalar,
)

if TYPE_CHECKING:
    from jitgen.emulator.program.translate import Program

__all__ = ["DTYPES", "PARAM_BASE", "Builder"]

_ADDRESS = re.compile(r"\[\s*([^\s+\]]+)\s*(?:\+\s*(-?\w+))?\s*\]")
_SYMBOL = re.compile(r"([A-Za-z_$][\w$]*)(?:\s*\+\s*(-?\w+))?")
_CALL = "(f, "
_NO_CHECKS = Checks()


class Builder:
    """
    The function of one basic block, while it is written.

    Attributes:
        program: The program of the block: its registers, symbols, parameters, labels.
        namespace: Objects by the names that they have in generated code.
        next_block: Number of the block that follows in the program, -1 if there is none.
        accesses: Registers that the instruction being translated reads and writes.
        checks: Registers that generated code checks, and what for.
    """

    def __init__(
        self,
        program: Program,
        number: int,
        namespace: dict[str, object],
        checks: Checks = _NO_CHECKS,
    ) -> None:
        self.program, self.namespace, self.checks = program, namespace, checks
        self.next_block = number + 1 if number + 1 < len(program.blocks) else -1
        self._number = number
        self._lines: list[str | Load | Pick] = []
        self._loads: dict[str, Load] = {}
        self._fresh: set[str] = set()  # locals that hold what the file holds, or newer
        self._scalars: set[str] = set()  # locals that hold one value for all threads
        self._files: set[str] = set()
        self._changed: dict[str, str] = {}  # those newer than the file, in order; their registers
        self._outcome = str(self.next_block)
        self._batch: Batch | None = None
        self._num_temporaries = 0
        self._at = -1
        self.accesses = Accesses()

    # --- operands ---------------------------------------------------------------------------------

    def value(self, operand: str, type: str) -> str:
        """
        Return the expression of an operand, read as a PTX type.

        It may be a register, a negated predicate, a special register, a constant, or the address of
        a parameter or of a variable in shared or local memory, with an offset.

        Raises:
            Unsupported: It is none of these, or the type is unknown.
        """
        dtype = dtype_of(type)
        if operand.startswith("!"):
            return f"(~{self.value(operand[1:], type)})"
        if operand.startswith("%"):
            return self._register_value(operand, dtype)
        if is_number(operand):
            value = immediate(operand, type)
            return f"np.bool_({bool(value)})" if dtype == "bool" else self._scalar(value, dtype)
        return f"{dtype}({self._symbol(operand)})"

    def values(self, operand: str, type: str) -> list[str]:
        """Return the expressions of the elements of a vector; see `names`."""
        return [self.value(name, type) for name in self.names(operand)]

    def names(self, operand: str) -> list[str]:
        """
        Return the elements of a vector ``{a, b}`` as text.

        A single register is a vector of one, but one of 128 bits is its low and its high half,
        registers of 64 bits each.
        """
        elements = split_operands(operand[1:-1]) if operand.startswith("{") else [operand]
        is_wide = self.program.module.is_wide
        return [
            half for name in elements for half in (wide_halves(name) if is_wide(name) else (name,))
        ]

    def address(self, operand: str) -> str:
        """
        Return the expression of the address in brackets: an array of uint32 or uint64, or a scalar
        of a variable.

        Raises:
            Unsupported: There is more in the brackets than a name or number and an offset.
        """
        found = _ADDRESS.fullmatch(operand)
        if not found:
            raise Unsupported(f"address {operand}")
        base, offset = found[1], found[2] or "0"
        if not base.startswith("%"):
            return self.value(base if offset == "0" else f"{base}+{offset}", "u64")
        local, kind = self._local(base), self.register(base)[0]
        bits = {"r": "u32", "q": "u64"}.get(kind, "")
        return local if offset == "0" else f"({local} + {self.value(offset, bits)})"

    def mask(self, instruction: Instruction) -> str:
        """Return ``"None"``, or the expression of the guard: a bool array."""
        if instruction.guard is None:
            return "None"
        guard = self._loaded(instruction.guard)
        self.accesses.guard = instruction.guard
        sign = "~" if instruction.is_negated else ""
        return f"f.spread({sign}{guard})" if guard in self._scalars else f"{sign}{guard}"

    def literal(self, number: int, type: str) -> str:
        """Return the name of the numpy scalar of a PTX type whose bits are `number`."""
        dtype = dtype_of(type)
        bits = scalar(number, f"u{8 * int(dtype[1])}")
        return self._scalar(bits.view(f"{dtype[0].lower()}{dtype[1]}"), dtype)

    def register(self, name: str) -> tuple[str, int]:
        """Return the class of a register (r, q, h or p) and its row in that file."""
        return self.program.row(name)

    # --- statements -------------------------------------------------------------------------------

    def define(self, register: str, expression: str, type: str, instruction: Instruction) -> None:
        """
        Assign to a register, under the guard of `instruction`.

        Args:
            register: Its name; ``_`` drops the value, but the expression is evaluated.
            expression: An array, or a scalar where all threads agree.
            type: PTX type of the expression; it says how a wider register is filled.
            instruction: The instruction whose guard counts.
        """
        if register == "_":
            self.do(expression)
            return
        kind, row = self.register(register)
        expression = converted(expression, dtype_of(type), FILE_DTYPES[kind])
        if instruction.guard is not None:
            old = self._loaded(register)
            expression = f"np.where({self.mask(instruction)}, {expression}, {old})"
        self.accesses.writes.add(register)
        self._assign(f"{kind}{row}", register, expression)

    def do(self, statement: str) -> None:
        """Append a statement."""
        self._end_batch()
        self._lines.append(statement)

    def define_alike(
        self, register: str, function: Callable[..., object], arguments: list[str]
    ) -> bool:
        """
        Assign ``function(*arguments)`` of f32 or f32x2 to a register. Assignments by the same
        function that follow each other are done at once, at the last; in between there may be
        assignments of other registers.

        Args:
            register: Name of the register that is assigned, without a guard.
            function: Takes and returns arrays of any shape: float32, or uint64 of f32x2.
            arguments: As `value` returns them.

        Returns:
            Whether the assignment was added. It is not if an argument is no register of its own for
            each thread, such as a literal: the caller then adds it in another way.
        """
        kind, target = self.register(register) if register != "_" else ("", -1)
        sources = tuple(row_of(argument, kind) for argument in arguments)
        if -1 in sources or self._scalars & {f"{kind}{row}" for row in sources}:
            return False
        name = self.constant(function, function.__name__)
        if self._batch is None or not self._batch.takes(name, target, sources):
            self._end_batch()
            self._batch = Batch(name, kind)
        self._batch.add(target, sources, register)
        self.accesses.writes.add(register)
        return True

    def call(self, function: Callable[..., object], *arguments: str) -> str:
        """
        Return the expression ``function(f, at, ...)``; at is the index of the instruction that is
        translated.
        """
        name = self.constant(function, function.__name__)
        return f"{name}{_CALL}{', '.join([str(self._at), *arguments])})"

    def constant(self, value: object, hint: str = "k") -> str:
        """
        Return a name for `value` in generated code: `hint`, or a similar name that is still free.
        """
        name, number = hint, 0
        while name in self.namespace and not is_same(self.namespace[name], value):
            number += 1
            name = f"{hint}_{number}"
        self.namespace[name] = value
        return name

    def temporary(self) -> str:
        """Return the name of a new local."""
        self._num_temporaries += 1
        return f"t{self._num_temporaries}"

    def flush(self, registers: Iterable[str] | None = None) -> None:
        """Write registers, all by default, back to their files now."""
        self._end_batch()
        wanted = None if registers is None else {self._name(name) for name in registers}
        for local in [name for name in self._changed if wanted is None or name in wanted]:
            self._files.add(local[0])
            self.do(f"{local[0]}[{local[1:]}, s] = {local}")
            del self._changed[local]

    def forget(self, registers: Iterable[str]) -> None:
        """Load registers again when they are next used: their files were changed."""
        self._end_batch()
        for name in registers:
            local = self._name(name)
            self.accesses.writes.add(name)
            self._end_load(local)
            self._fresh.discard(local)
            self._scalars.discard(local)
            self._changed.pop(local, None)

    def leave(self, expression: str) -> None:
        """Set the expression that the function returns instead of the number of the next block."""
        self._outcome = expression

    def block_of(self, label: str) -> int:
        """Return the number of the block at `label`."""
        return self.program.block_of(label)

    # --- for the translator -----------------------------------------------------------------------

    def emit(self, instruction: Instruction, emitter: Emitter) -> Accesses:
        """Let `emitter` translate the next `instruction`; return what it does with registers."""
        self._at = instruction.index
        self.accesses = Accesses()
        self._lines.append(f"# {instruction.line}: {instruction.text}")
        if instruction.index in self.program.guarded:
            at = instruction.index
            has_any = f"({self.mask(instruction)}).any()"
            self.do(f"if {at} not in f.machine.held and {has_any}: f.machine.held.add({at})")
        self._lines += self.checks.before(self, instruction)
        emitter(self, instruction)
        self._lines += self.checks.after(self, instruction)
        return self.accesses

    def source(self) -> str:
        """Return the function as text."""
        self._end_batch()
        for local, register in list(self._changed.items()):
            if local not in self._loads and self.program.is_private(register):
                del self._changed[local]  # unused, also by the next round of a loop
        self.flush()
        files = [f"{kind} = f.cta.{kind}" for kind in sorted(self._files)]
        body = ["s = f.s", *files, *rendered([*self._lines, f"return {self._outcome}"])]
        return "\n    ".join([f"def block_{self._number}(f):", *body]) + "\n"

    # --- inside -----------------------------------------------------------------------------------

    def _name(self, register: str) -> str:
        kind, row = self.register(register)
        return f"{kind}{row}"

    def _local(self, register: str) -> str:
        """
        Return the local that holds a register, loaded if necessary, and note that the instruction
        reads the register.
        """
        self.accesses.reads.add(register)
        return self._loaded(register)

    def _loaded(self, register: str) -> str:
        local = self._name(register)
        if self._batch and register in self._batch.registers:
            self._end_batch()
        if local not in self._fresh:
            self._fresh.add(local)
            self._files.add(local[0])
            self._loads[local] = load = Load(local)
            self._lines.append(load)
        return local

    def _assign(self, local: str, register: str, expression: str) -> None:
        is_scalar = self._is_scalar(expression)
        (self._scalars.add if is_scalar else self._scalars.discard)(local)
        self._end_load(local)
        if _CALL in expression or (self._batch and self._batch.involves(local)):
            self._end_batch()
        self._lines.append(f"{local} = {expression}")
        self._fresh.add(local)
        self._changed[local] = register

    def _end_batch(self) -> None:
        """Write down the operations that were put off, if there are any."""
        batch, self._batch = self._batch, None
        if batch is None:
            return
        file = batch.file
        if not batch.is_worth_it:
            for i, (row, register) in enumerate(zip(batch.targets, batch.registers, strict=True)):
                self._assign(f"{file}{row}", register, batch.single(i))
            return
        self._files.add(file)
        result = self.temporary()
        self._lines += batch.together(result, self._is_filed, self.constant)
        for position, row in enumerate(sorted(batch.targets)):
            local = f"{file}{row}"
            self._end_load(local)
            self._loads.pop(local, None)
            self._changed.pop(local, None)
            self._scalars.discard(local)
            self._fresh.add(local)
            self._lines.append(Pick(local, f"{result}[{position}]"))

    def _is_filed(self, local: str) -> bool:
        """Return whether the register file has the present value of a local."""
        load = self._loads.get(local)
        return load is not None and not load.is_changed

    def _end_load(self, local: str) -> None:
        """Note that a register changes, so that what was loaded must be a copy, not a view."""
        if local in self._loads:
            self._loads[local].is_changed = True

    def _is_scalar(self, expression: str) -> bool:
        """Return whether an expression has one value for all threads."""
        return _CALL not in expression and self._scalars.issuperset(LOCAL.findall(expression))

    def _register_value(self, operand: str, dtype: str) -> str:
        if self.program.module.class_of(operand):
            kind = self.register(operand)[0]
            return converted(self._local(operand), FILE_DTYPES[kind], dtype)
        from jitgen.emulator.isa import special

        if operand not in special.NAMES:
            raise Unsupported(f"{operand} is no register that is declared or special")
        found = self.call(special.special, repr(operand))
        return converted(found, "U8" if special.is_wide(operand) else "U4", dtype)

    def _scalar(self, value: generic, dtype: str) -> str:
        bits = int.from_bytes(value.tobytes(), "little")
        return self.constant(value, f"{dtype}_{bits:x}")

    def _symbol(self, text: str) -> str:
        """Return the expression of the address of a name with an offset."""
        found, module = _SYMBOL.fullmatch(text), self.program.module
        name = found[1] if found else text
        offset = int(immediate(found[2], "s64")) if found and found[2] else 0
        if name in module.shared:
            return f"f.cta.base + {module.shared[name] + offset}"
        if name in module.local:
            return str(LOCAL_BASE + module.local[name] + offset)
        address = module.address_of(name)
        if address is not None:
            return str(address + offset)
        raise Unsupported(f"{name} is not declared")
