# SPDX-License-Identifier: Apache-2.0
"""
Runs launches once in each mode, from the same values, and compares what the modes leave.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jitgen.emulator.host.tensors import Tensor, read_bytes, span, write_bytes
from jitgen.emulator.machine.global_memory import GlobalMemory
from jitgen.emulator.machine.machine import Machine
from jitgen.emulator.machine.observed import EARLY_ARRIVAL, MISSED_PHASE, MIXED
from jitgen.emulator.modes import LATE_PEEKS, MOST_EXPLORED, REVERSED, Mode, last_mode
from jitgen.emulator.program.coverage import Coverage
from jitgen.emulator.program.observers import Kind
from jitgen.emulator.program.translate import Program
from jitgen.emulator.report import RESULT, Finding, Observation, Run, merge_coverage
from jitgen.emulator.threads import one_thread
from jitgen.errors import InputError, MachineFault


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(ABC):
    """
    Launches, and the tensors that they may access.

    Attributes:
        programs: Every kernel of the artifact, launched or not.
        tensors: Tensors by the name that messages call them.
        unknown: Names of tensors whose contents mean nothing until they are written.
        settled: Names of tensors that no earlier grid can still be writing.
    """

    programs: list[Program]
    tensors: dict[str, Tensor]
    unknown: frozenset[str] = frozenset()
    settled: frozenset[str] = frozenset()

    @abstractmethod
    def launch(self, mode: Mode, time_limit_s: float, machines: list[Machine]) -> None:
        """Run the launches; append the machine of each to `machines` when it begins."""

    def declare(self, memory: GlobalMemory, name: str) -> None:
        """Declare a tensor to the memory."""
        tensor = self.tensors[name]
        memory.add(
            tensor.data_ptr(),
            span(tensor),
            name,
            is_unknown=name in self.unknown,
            is_settled=name in self.settled,
        )

    def run_all(
        self, modes: Sequence[Mode], time_limit_s: float, *, explores: bool
    ) -> tuple[tuple[Run, ...], tuple[str, ...]]:
        """
        Run the call once in each mode, from the same values, and compare what they leave.

        Returns:
            The runs, and the names of modes that were added; see `emulate`.

        Raises:
            InputError: A name in `unknown` or `settled` is that of no tensor.
        """
        for what, names in (("unknown", self.unknown), ("settled", self.settled)):
            if strangers := sorted(names - self.tensors.keys()):
                allowed = ", ".join(self.tensors)
                raise InputError(what, f"{strangers[0]!r} is no tensor; allowed: {allowed}")
        before = self.read()
        runs: list[Run] = []
        first: tuple[str, list[bytes]] | None = None
        waiting, explored = deque(modes), list[Mode]()
        while waiting:
            mode = waiting.popleft()
            if explores and mode.seed is not None and are_proof(runs, modes):
                continue
            if runs:
                self.write(before)
            with one_thread():
                run = self.run(mode, time_limit_s)
            if not mode.is_lost:
                after = self.read()
                first = first or (mode.name, after)
                run = _compared(run, self, after, *first)
            runs.append(run)
            if explores and not waiting and not explored:
                explored = other_orders(runs, modes)
                waiting += explored
        return tuple(runs), tuple(mode.name for mode in explored)

    def read(self) -> list[bytes]:
        """Return the bytes of every tensor."""
        return [read_bytes(tensor) for tensor in self.tensors.values()]

    def write(self, contents: list[bytes]) -> None:
        """Write the bytes that `read` returned back to the tensors."""
        for tensor, content in zip(self.tensors.values(), contents, strict=True):
            write_bytes(tensor, content)

    def run(self, mode: Mode, time_limit_s: float) -> Run:
        """Run the launches in one mode."""
        start, cpu_start = time.perf_counter(), time.process_time()
        machines: list[Machine] = []
        try:
            self.launch(mode, time_limit_s, machines)
        except MachineFault as fault:
            found = [str(one) for machine in machines for one in machine.findings.values()]
            before = "".join(f"\nbefore that, {one}" for one in found)
            raise type(fault)(f"{fault}\n  in mode {mode.name}{before}") from fault
        run = _run(mode, time.perf_counter() - start, machines, self.programs)
        return replace(run, cpu_seconds=time.process_time() - cpu_start)


def _run(mode: Mode, seconds: float, machines: list[Machine], programs: list[Program]) -> Run:
    counts: Counter[str] = Counter()
    of_roles: Counter[str] = Counter()
    for machine in machines:
        counts += machine.counts
        of_roles += _warp_instructions(machine)
    return Run(
        mode=mode.name,
        seconds=seconds,
        findings=tuple(_findings(machines)),
        counts=dict(sorted(counts.items())),
        warp_instructions=dict(of_roles.most_common()),
        coverage=_coverage(machines, programs),
        observed=tuple(_observations(machines)),
        firsts=tuple({number: None for machine in machines for number in machine.firsts}),
        devices=len({machine.grid.stream.device for machine in machines}),
    )


def _findings(machines: list[Machine]) -> list[Finding]:
    """Return what was found, once for each instruction of a program."""
    found: dict[tuple[object, ...], Finding] = {}
    for machine in machines:
        for key, x in machine.findings.items():
            count = x.count
            if (known := found.get((machine.program, *key))) is not None:
                found[machine.program, *key] = replace(known, count=known.count + count)
                continue
            found[machine.program, *key] = Finding(
                kind=x.kind, message=x.message, place=x.place, who=x.who, count=count
            )
    return list(found.values())


def _observations(machines: list[Machine]) -> Iterator[Observation]:
    for machine in machines:
        for one in machine.observed.found.values():
            yield Observation(
                what=str(one.what), place=machine.program.place(one.at), count=one.count
            )


def _coverage(machines: list[Machine], programs: list[Program]) -> dict[str, Coverage]:
    """
    Return the coverage of each kernel, launched or not; kernels with the same name get numbers.
    """
    names: dict[Program, str] = {}
    number: Counter[str] = Counter()
    for program in programs:
        name = program.module.entry
        number[name] += 1
        names[program] = f"{name} {number[name]}" if number[name] > 1 else name
    none = [Coverage.of(one, np.zeros(len(one.blocks), np.int64), set()) for one in programs]
    ran = [Coverage.of(one.program, one.block_counts, one.held, one.ways) for one in machines]
    return merge_coverage({names[each.program]: each} for each in [*none, *ran])


def _warp_instructions(machine: Machine) -> Counter[str]:
    """Return the instructions that warps executed, for each function of the source."""
    program = machine.program
    found: Counter[str] = Counter()
    for block, times in zip(program.blocks, machine.block_counts.tolist(), strict=True):
        if times:
            for at in range(block.start, block.end):
                found[program.role(at)] += times
    return found


def _compared(run: Run, call: Call, after: list[bytes], other: str, first: list[bytes]) -> Run:
    """Return `run` with a finding for each tensor whose bytes are not those of the first mode."""
    found = [
        Finding(
            kind=RESULT,
            message=f"{name} differs from that of mode {other} in {_where(tensor, ours, theirs)}",
        )
        for (name, tensor), ours, theirs in zip(call.tensors.items(), after, first, strict=True)
        if ours != theirs
    ]
    return replace(run, findings=(*run.findings, *found)) if found else run


def _where(tensor: Tensor, ours: bytes, theirs: bytes) -> str:
    """Return a text that says how many values differ, and where they are."""
    one, other = (np.frombuffer(content, np.uint8) for content in (ours, theirs))
    values = np.unique(np.flatnonzero(one != other) // tensor.element_size())
    if not tensor.is_contiguous():
        return f"{len(values):,} values, the first {values[0]:,} values behind the first of all"
    places = np.unravel_index(values, tensor.shape)
    first = ", ".join(f"{index[0]}" for index in places)
    box = ", ".join(f"{index.min()}..{index.max()}" for index in places)
    return f"{len(values):,} values, the first at [{first}], all within [{box}]"


def are_proof(runs: Sequence[Run], modes: Sequence[Mode]) -> bool:
    """
    Return whether `runs` prove their result for every schedule; one at least must be of a mode that
    is not random.
    """
    steady = {mode.name for mode in modes if mode.seed is None}
    return any(run.mode in steady for run in runs) and all(run.is_proof for run in runs)


def other_orders(runs: Sequence[Run], modes: Sequence[Mode]) -> list[Mode]:
    """
    Return the modes that try other orders of what is observed; none if a mistake was found.

    If a mode is random, none are added for arrivals, whose orders it tries as well.
    """
    observed = {one.what for run in runs for one in run.observed}
    if any(mode.seed is not None for mode in modes):
        observed -= {EARLY_ARRIVAL, MISSED_PHASE, MIXED}
    if not observed or not all(run.is_clean for run in runs):
        return []
    firsts = dict.fromkeys(number for run in runs for number in run.firsts)
    peeks = [LATE_PEEKS] if Kind.PEEK in observed else []
    found = [REVERSED, *peeks, *(last_mode(number) for number in firsts)]
    return [mode for mode in found if mode not in modes][:MOST_EXPLORED]
