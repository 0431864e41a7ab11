# SPDX-License-Identifier: Apache-2.0
"""
One call of a compiled GPU kernel, on the CPU, in several modes: of an artifact, or of PTX alone.
"""

from __future__ import annotations

import struct
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jitgen.emulator.artifact import Artifact
from jitgen.emulator.exploring import are_proof, other_orders
from jitgen.emulator.host.cubin import MachineCode, kernels
from jitgen.emulator.host.launch import Device, launches
from jitgen.emulator.host.native import STANDALONE, Host
from jitgen.emulator.host.tensors import Tensor, read_bytes, span, tensor_of, write_bytes
from jitgen.emulator.machine.global_memory import GlobalMemory
from jitgen.emulator.machine.launch_rules import Kernel, as_launched
from jitgen.emulator.machine.machine import NUM_SMS, Launch, Machine
from jitgen.emulator.modes import Mode, parse_modes
from jitgen.emulator.program.coverage import Coverage
from jitgen.emulator.program.translate import Program, translate
from jitgen.emulator.report import RESULT, Finding, Observation, Report, Run, merge_coverage
from jitgen.emulator.threads import one_thread
from jitgen.errors import InputError, MachineFault

TIME_LIMIT_S = 300.0
"""Seconds that one mode may take, unless the caller says otherwise."""


def emulate(
    artifact: Artifact,
    *arguments: object,
    modes: str | Mode | Sequence[str | Mode] = "quick",
    num_sms: int = NUM_SMS,
    time_limit_s: float = TIME_LIMIT_S,
    host: Host = STANDALONE,
    unknown: Collection[str] = (),
    settled: Collection[str] = (),
    explores: bool = False,
) -> Report:
    """
    Run `artifact` on the CPU, once in each mode, and return what was found.

    The artifact is not changed: its host part checks the arguments and launches kernels, and the
    PTX of its device part is run instruction by instruction, with every access checked for bounds,
    initialisation and races. Results are written into the tensors. Every mode starts from the same
    values, and all must give the same bits.

    Args:
        artifact: The compiled kernel.
        arguments: Arguments of its function: torch tensors in host memory, `OnGpu`, numbers.
        modes: ``quick``, ``all``, or names or modes of `jitgen.emulator.modes`.
        num_sms: SMs of the GPU. Few make a small problem give a CTA several tiles.
        time_limit_s: Seconds that one mode may take.
        host: How native code is compiled, cached and loaded on this machine.
        unknown: Names of tensors (`Artifact.names`, or "argument 3") whose contents mean nothing
            until the kernel has written them: outputs and workspaces as ``torch.empty`` makes them.
            A read before that is a finding.
        settled: Names of tensors that no earlier grid can still be writing when this one starts
            before that has ended: to read them before griddepcontrol.wait is no finding.
        explores: Leave out random modes once the modes before stand for every schedule, and try
            other orders where the schedule is observed, at most `MOST_EXPLORED`.

    Raises:
        MachineFault: The kernel did what hardware would not survive; Deadlock if it waits for ever.
        UnsupportedPtx: It holds what the emulator does not know.
        EmulationError: It cannot be run for another reason.
        ToolchainError: A C compiler is missing.
        InputError: `modes` is wrong, or a name in `unknown` or `settled`.
        Exception: Anything that the kernel's host part raises about its arguments.
    """
    chosen = parse_modes(modes)
    call = _prepare(artifact, arguments, num_sms, host)
    call = replace(call, unknown=frozenset(unknown), settled=frozenset(settled))
    runs, explored = call.run_all(chosen, time_limit_s, explores=explores)
    return Report(name=artifact.symbol, arch=artifact.arch, runs=runs, explored=explored)


def emulate_ptx(
    ptx: str,
    launch: Launch,
    arguments: Mapping[str, object],
    *,
    entry: str = "",
    modes: str | Mode | Sequence[str | Mode] = "quick",
    num_sms: int = NUM_SMS,
    time_limit_s: float = TIME_LIMIT_S,
    unknown: Collection[str] = (),
) -> Report:
    """
    Run one launch of a kernel in `ptx` on the CPU, without a host part.

    It does so as `emulate` does that explores schedules.

    Args:
        ptx: The PTX of any compiler.
        launch: Grid, block, cluster and shared memory. Its parameters come from `arguments`.
        arguments: One for each parameter of the kernel, in their order, by the name that messages
            call it: a torch tensor in host memory for a pointer, an int, or a float of 2, 4 or 8
            bytes.
        entry: Name of the kernel; empty for the only one.
        modes: See `emulate`.
        num_sms: SMs of the GPU.
        time_limit_s: Seconds that one mode may take.
        unknown: Names of tensors whose contents mean nothing until the kernel has written them.

    Raises:
        MachineFault: The kernel did what hardware would not survive; Deadlock if it waits for ever.
        UnsupportedPtx: It holds what the emulator does not know, or no such kernel.
        EmulationError: It names no target, or one that is not known.
        InputError: The arguments do not fit the parameters, `modes` is wrong, or a name in
            `unknown`.
    """
    chosen = parse_modes(modes)
    program = translate(ptx, "", entry)
    values = list(arguments.values())
    launch = replace(launch, params=_packed(program.params, values))
    call = _Call(
        programs=[program],
        launches=[(program, _launched(program, launch, MachineCode()))],
        tensors=_tensors(values, tuple(arguments)),
        num_sms=num_sms,
        unknown=frozenset(unknown),
    )
    name = program.module.entry
    arch = Artifact(library=b"", symbol=name, ptx=ptx).arch
    runs, explored = call.run_all(chosen, time_limit_s, explores=True)
    return Report(name=name, arch=arch, runs=runs, explored=explored)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """
    The launches of a call, and the tensors that it may access.

    Attributes:
        programs: Every kernel of the artifact, launched or not.
        launches: Programs and launches, in order.
        tensors: Tensors by the name that messages call them.
        num_sms: SMs of the GPU.
        unknown: Names of those whose contents mean nothing until they are written.
        settled: Names of those that no earlier grid can still be writing.
    """

    programs: list[Program]
    launches: list[tuple[Program, Launch]]
    tensors: dict[str, Tensor]
    num_sms: int
    unknown: frozenset[str] = frozenset()
    settled: frozenset[str] = frozenset()

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
        first: list[bytes] = []
        waiting, explored = deque(modes), list[Mode]()
        while waiting:
            mode = waiting.popleft()
            if explores and mode.seed is not None and are_proof(runs, modes):
                continue
            if runs:
                self.write(before)
            with one_thread():
                run = self.run(mode, time_limit_s)
            after = self.read()
            first = first or after
            runs.append(_compared(run, self, after, first, runs[0].mode if runs else ""))
            if explores and not waiting and not explored:
                explored = other_orders(runs, modes)
                waiting += explored
        return tuple(runs), tuple(mode.name for mode in explored)

    def read(self) -> list[bytes]:
        """Return the bytes of every tensor."""
        return [read_bytes(tensor) for tensor in self.tensors.values()]

    def write(self, contents: list[bytes]) -> None:
        """Put back what `read` returned."""
        for tensor, content in zip(self.tensors.values(), contents, strict=True):
            write_bytes(tensor, content)

    def run(self, mode: Mode, time_limit_s: float) -> Run:
        """Run the launches one after the other."""
        start, cpu_start = time.perf_counter(), time.process_time()
        machines = []
        memory = GlobalMemory()
        for name, tensor in self.tensors.items():
            memory.add(
                tensor.data_ptr(),
                span(tensor),
                name,
                is_unknown=name in self.unknown,
                is_settled=name in self.settled,
            )
        for program, launch in self.launches:
            memory.begin()
            machine = Machine(
                program, memory, launch, mode, time_limit_s=time_limit_s, num_sms=self.num_sms
            )
            try:
                machine.run()
            except MachineFault as fault:
                before = "".join(f"\nbefore that, {x}" for x in machine.findings.values())
                raise type(fault)(f"{fault}\n  in mode {mode.name}{before}") from fault
            machines.append(machine)
        run = _run(mode, time.perf_counter() - start, machines, self.programs)
        return replace(run, cpu_seconds=time.process_time() - cpu_start)


def _prepare(artifact: Artifact, arguments: Sequence[object], num_sms: int, host: Host) -> _Call:
    """Translate the PTX and run the host part."""
    programs = {
        entry: translate(artifact.ptx, artifact.source, entry) for entry in artifact.entries
    }
    found = launches(
        artifact.library,
        artifact.symbol,
        arguments,
        device=Device(arch=artifact.arch, num_sms=num_sms),
        params={entry: [size for _, size in program.params] for entry, program in programs.items()},
        host=host,
    )
    codes = kernels(artifact.library)
    return _Call(
        programs=list(programs.values()),
        launches=[
            (programs[entry], _launched(programs[entry], launch, codes.get(entry, MachineCode())))
            for entry, launch in found
        ],
        tensors=_tensors(arguments, artifact.names),
        num_sms=num_sms,
    )


def _tensors(arguments: Sequence[object], names: Sequence[str]) -> dict[str, Tensor]:
    """Return the tensors among `arguments`, by the names that messages call them."""
    return {
        names[index] if index < len(names) else f"argument {index}": tensor
        for index, value in enumerate(arguments)
        if (tensor := tensor_of(value)) is not None
    }


def _packed(params: Sequence[tuple[str, int]], arguments: Sequence[object]) -> tuple[bytes, ...]:
    """Return the bytes of each parameter; `params` are their names and sizes in bytes."""
    if len(params) != len(arguments):
        wanted = ", ".join(f"{name} ({size} bytes)" for name, size in params) or "none"
        raise InputError("arguments", f"must be one for each of {wanted} (got {len(arguments)})")
    return tuple(
        _bytes_of(name, size, value) for (name, size), value in zip(params, arguments, strict=True)
    )


def _bytes_of(name: str, size: int, value: object) -> bytes:
    if (tensor := tensor_of(value)) is not None:
        value = tensor.data_ptr()
    try:
        if isinstance(value, int):
            return value.to_bytes(size, "little", signed=value < 0)
        return struct.pack({2: "<e", 4: "<f", 8: "<d"}[size], value)
    except (KeyError, OverflowError, struct.error) as error:
        raise InputError(name, f"must fit its {size} bytes (got {value!r})") from error


def _launched(program: Program, launch: Launch, code: MachineCode) -> Launch:
    """Return a launch as hardware makes it, of a kernel with that machine code."""
    kernel = Kernel(
        target=program.module.target,
        opcodes=tuple((instruction.line, instruction.op) for instruction in program.code),
        directives=program.module.directives,
        shared_end=program.shared_end,
        registers=code.registers,
        lacks_setmaxnreg=not code.has_setmaxnreg,
    )
    return as_launched(kernel, launch)


def _run(mode: Mode, seconds: float, machines: list[Machine], programs: list[Program]) -> Run:
    counts: Counter[str] = Counter()
    of_roles: Counter[str] = Counter()
    findings = []
    for machine in machines:
        counts += machine.counts
        of_roles += _warp_instructions(machine)
        findings += [
            Finding(kind=x.kind, message=x.message, place=x.place, who=x.who, count=x.count)
            for x in machine.findings.values()
        ]
    return Run(
        mode=mode.name,
        seconds=seconds,
        findings=tuple(findings),
        counts=dict(sorted(counts.items())),
        warp_instructions=dict(of_roles.most_common()),
        coverage=merge_coverage([*map(_nothing, programs), *map(_coverage, machines)]),
        observed=tuple(_observations(machines)),
        firsts=tuple({number: None for machine in machines for number in machine.firsts}),
    )


def _observations(machines: list[Machine]) -> Iterator[Observation]:
    for machine in machines:
        for one in machine.observed.found.values():
            yield Observation(
                what=str(one.what), place=machine.program.place(one.at), count=one.count
            )


def _nothing(program: Program) -> dict[str, Coverage]:
    """Return the coverage of a kernel that may never be launched."""
    none = np.zeros(len(program.blocks), np.int64)
    return {program.module.entry: Coverage.of(program, none, set())}


def _coverage(machine: Machine) -> dict[str, Coverage]:
    program = machine.program
    return {program.module.entry: Coverage.of(program, machine.block_counts, machine.held)}


def _warp_instructions(machine: Machine) -> Counter[str]:
    """Return the instructions that warps executed, for each function of the source."""
    program = machine.program
    found: Counter[str] = Counter()
    for block, times in zip(program.blocks, machine.block_counts.tolist(), strict=True):
        if times:
            for at in range(block.start, block.end):
                found[program.role(at)] += times
    return found


def _compared(run: Run, call: _Call, after: list[bytes], first: list[bytes], other: str) -> Run:
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
    """Return how many values differ, and where they are."""
    one, other = (np.frombuffer(content, np.uint8) for content in (ours, theirs))
    values = np.unique(np.flatnonzero(one != other) // tensor.element_size())
    if not tensor.is_contiguous():
        return f"{len(values):,} values, the first {values[0]:,} values behind the first of all"
    places = np.unravel_index(values, tensor.shape)
    first = ", ".join(f"{index[0]}" for index in places)
    box = ", ".join(f"{index.min()}..{index.max()}" for index in places)
    return f"{len(values):,} values, the first at [{first}], all within [{box}]"
