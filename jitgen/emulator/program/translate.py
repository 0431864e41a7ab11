# SPDX-License-Identifier: Apache-2.0
"""
PTX to a program: Python functions, one for each basic block.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import PurePath
from typing import cast

from jitgen.emulator.program.blocks import cut, successors
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.checks import Checks
from jitgen.emulator.program.coverage import purpose_of
from jitgen.emulator.program.definitions import Accesses, find_doubts
from jitgen.emulator.program.flights import find_flights
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.lines import functions_of, source_file
from jitgen.emulator.program.observers import Observer, find_observers
from jitgen.emulator.program.parse import parse
from jitgen.emulator.program.table import Rule, Unsupported, rule_of
from jitgen.emulator.program.types import NAMESPACE
from jitgen.errors import UnsupportedPtx

_REGISTER = re.compile(r"%[\w@]+")

_NO_CHECKS = Checks()

_NO_ROLE = "kernel"
"""Role of an instruction that no function of the source is known for."""

_SHOWN = 8
"""Unknown instructions that a message names."""


class Program:
    """
    A kernel that the machine can run.

    Attributes:
        text: The PTX.
        source: The generated kernel that its line information refers to; may be empty.
        module: The parsed PTX: parameters, symbols, registers.
        code: The instructions.
        params: Name and bytes of each parameter.
        shared_end: Offset at which dynamic shared memory begins.
        local_end: Bytes of the local memory of a thread.
        blocks: The basic blocks.
        whole_warp: For each block whether only whole warps enter it.
        members: For each block the lanes without which a warp does not enter it, a bit each.
        guarded: Instructions that a test must execute and that a guard may turn off.
        register_counts: Rows of each register file: r, q, h and p; and as "unwritten" registers
            that may be read before they are written, as "touched" those that may lack a
            wgmma.fence.
        observers: Instructions that may observe the schedule, by index.
        functions: The function that executes each block; see `jitgen.emulator.machine.schedule`.
        python: The Python text of these functions.
    """

    def __init__(self, text: str, source: str = "", entry: str = "") -> None:
        """
        Translate `text`.

        Args:
            text: PTX.
            source: The generated kernel that its line information refers to, to name places by.
            entry: Name of the kernel; empty for the only one.

        Raises:
            UnsupportedPtx: The PTX has instructions that the emulator does not support; the message
                names the first ones, its attribute `unknown` all.
            MachineFault: Instructions contradict one another.
        """
        import jitgen.emulator.isa  # noqa: F401  # fills the table of emitters

        self.text, self.source = text, source
        self.module = module = parse(text, entry)
        self.code, self.params, self.shared_end = module.code, module.params, module.shared_end
        self.local_end = module.local_end
        self._rows: dict[str, tuple[str, int]] = {}
        self.register_counts: Counter[str] = Counter()
        rules = [rule_of(instruction) or _UNKNOWN for instruction in self.code]
        self.blocks = cut(self.code, module.labels, rules)
        self.whole_warp = [block.whole_warp for block in self.blocks]
        self.members = [block.members for block in self.blocks]
        self.guarded = frozenset(
            x.index for x in self.code if x.guard is not None and purpose_of(x)
        )
        self._starts = [block.start for block in self.blocks]
        self._private = self._private_registers()
        self.python = ""
        self.observers: dict[int, Observer] = {}
        self.functions = self._translate(rules)

    # --- where things are -------------------------------------------------------------------------

    def row(self, register: str) -> tuple[str, int]:
        """Return the class of a register and its row in that file; a new one gets the next."""
        found = self._rows.get(register)
        if found is None:
            kind = self.module.class_of(register)
            if kind not in {"r", "q", "h", "p"}:
                raise Unsupported(f"register {register}")
            found = self._rows[register] = (kind, self.register_counts[kind])
            self.register_counts[kind] += 1
        return found

    def is_private(self, register: str) -> bool:
        """Return whether only one block names a register."""
        return register in self._private

    def block_at(self, at: int) -> int:
        """Return the number of the block that holds instruction `at`."""
        return bisect_right(self._starts, at) - 1

    def block_of(self, label: str) -> int:
        """
        Return the number of the block at `label`; -1 after the last block, where the threads exit.
        """
        at = self.module.labels.get(label)
        if at is None:
            raise Unsupported(f"label {label}")
        return self.block_at(at) if at < len(self.code) else -1

    def place(self, at: int) -> str:
        """Return where instruction `at` stands: in the generated kernel, if known, and the PTX."""
        instruction = self.code[at]
        ptx = f"ptx:{instruction.line}: {instruction.text}"
        if instruction.source is None:
            return ptx
        return f"{self._file}:{instruction.source} ({self.role(at)}) | {ptx}"

    def role(self, at: int) -> str:
        """Return the function of the generated kernel that instruction `at` comes from."""
        line = self.code[at].source
        return _NO_ROLE if line is None else self._roles.get(line, _NO_ROLE)

    @cached_property
    def _file(self) -> str:
        return PurePath(source_file(self.text)).name or "kernel.py"

    @cached_property
    def _roles(self) -> dict[int, str]:
        """The innermost function of each line of the source."""
        spans = sorted(functions_of(self.source))
        return {line: name for first, last, name in spans for line in range(first, last + 1)}

    def _private_registers(self) -> set[str]:
        """Return the registers that only one block names."""
        home: dict[str, int] = {}
        shared: set[str] = set()
        for number, block in enumerate(self.blocks):
            for instruction in self.code[block.start : block.end]:
                for text in (instruction.guard or "", *instruction.operands):
                    for register in _REGISTER.findall(text):
                        if home.setdefault(register, number) != number:
                            shared.add(register)
        return home.keys() - shared

    # --- translation ------------------------------------------------------------------------------

    def _translate(self, rules: list[Rule]) -> list[Callable[..., object]]:
        """Return the function of each block."""
        namespace = dict(NAMESPACE)
        unknown: list[str] = []
        accesses = [Accesses() for _ in self.code]
        numbers = range(len(self.blocks))
        sources = [self._source_of(n, rules, namespace, accesses, unknown) for n in numbers]
        if unknown:
            raise _refusal(unknown)
        checks = self._checks(accesses)
        for number, block in enumerate(self.blocks):
            if any(checks.concern(at) for at in range(block.start, block.end)):
                sources[number] = self._source_of(
                    number, rules, namespace, accesses, unknown, checks
                )
        self.python = "\n".join(sources)
        exec(compile(self.python, "<ptx>", "exec"), namespace)  # noqa: S102  # written above
        functions = [namespace[f"block_{number}"] for number in numbers]
        return cast("list[Callable[..., object]]", functions)  # which the Python defines

    def _checks(self, accesses: list[Accesses]) -> Checks:
        """
        Return what is to be checked of the registers that instructions access, and set `observers`.
        """
        follow = successors(self.code, self.blocks, self.block_of)
        self.observers = find_observers(self.code, self.blocks, accesses, follow)
        doubts = find_doubts(self.code, self.blocks, accesses, follow, self.text)
        flights = find_flights(self.code, self.blocks, follow)
        self.register_counts["unwritten"] = len(doubts.rows)
        self.register_counts["touched"] = len(flights.rows)
        return Checks(doubts, flights)

    def _source_of(
        self,
        number: int,
        rules: list[Rule],
        namespace: dict[str, object],
        accesses: list[Accesses],
        unknown: list[str],
        checks: Checks = _NO_CHECKS,
    ) -> str:
        """
        Return the Python of a block.

        Args:
            number: Number of the block.
            rules: The rule of each instruction.
            namespace: Objects by the names that they have in the Python.
            accesses: The accesses of each instruction; those of the block are set.
            unknown: Instructions that cannot be translated are added here.
            checks: Registers that the Python checks, and what for.
        """
        builder, block = Builder(self, number, namespace, checks), self.blocks[number]
        for instruction in self.code[block.start : block.end]:
            at = instruction.index
            try:
                accesses[at] = builder.emit(instruction, rules[at].emit)
            except (Unsupported, LookupError, ValueError) as error:
                reason = str(error) if isinstance(error, Unsupported) else "operands"
                unknown.append(f"line {instruction.line}: {instruction.text} ({reason})")
        return builder.source()


def _emit_unknown(_builder: Builder, _instruction: Instruction) -> None:
    raise Unsupported("unknown opcode")


_UNKNOWN = Rule(
    emit=_emit_unknown,
    whole_warp=False,
    members=lambda _: 0,
    starts_block=False,
    ends_block=False,
    is_wait=False,
)


def _refusal(unknown: list[str]) -> UnsupportedPtx:
    """Return the error that names unknown instructions."""
    more = f"; and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
    return UnsupportedPtx(
        f"{len(unknown)} instructions that the emulator does not know, so this kernel (or what "
        f"this version of the compiler makes of it) cannot be run: "
        f"{'; '.join(unknown[:_SHOWN])}{more}",
        unknown=tuple(unknown),
    )


@lru_cache(maxsize=64)
def translate(text: str, source: str = "", entry: str = "") -> Program:
    """
    Return the program of `text`; the last ones are kept, so that equal arguments give the same one.
    """
    return Program(text, source, entry)
