# SPDX-License-Identifier: Apache-2.0
"""
One call of a compiled GPU kernel, on the CPU, in several modes: of an artifact, or of PTX alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from jitgen.emulator.artifact import Artifact
from jitgen.emulator.call import Call
from jitgen.emulator.host.native import STANDALONE, Host
from jitgen.emulator.machine.global_memory import GlobalMemory
from jitgen.emulator.machine.machine import NUM_SMS, Launch, Machine
from jitgen.emulator.modes import Mode, parse_modes
from jitgen.emulator.prepared import Prepared, of_artifact, of_program
from jitgen.emulator.program.translate import Program, translate
from jitgen.emulator.report import Report
from jitgen.errors import InputError

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
        host: The functions that compile, cache and load native code on this machine.
        unknown: Names of tensors (`Artifact.names`, or "argument 3") whose contents mean nothing
            until the kernel has written them: outputs and workspaces as ``torch.empty`` makes them.
            A read before that is a finding.
        settled: Names of tensors that no earlier grid can still be writing, even if this grid
            starts before that one has ended: reading them before griddepcontrol.wait is no finding.
        explores: Leave out random modes once the modes before prove the result for every schedule,
            and try other orders where the schedule is observed, at most `MOST_EXPLORED`.

    Raises:
        MachineFault: The kernel did what hardware would not survive; Deadlock if it waits for ever.
        UnsupportedPtx: The PTX has something that the emulator does not support.
        EmulationError: The kernel cannot be run for another reason.
        ToolchainError: A C compiler is missing.
        InputError: It is no kernel, `modes` is wrong, or a name in `unknown` or `settled`.
        Exception: Anything that the kernel's host part raises about its arguments.
    """
    if not hasattr(artifact, "names"):
        raise InputError("kernel", f"must be a compiled kernel (got {type(artifact).__name__})")
    chosen = parse_modes(modes)
    given = of_artifact(artifact, arguments, artifact.names, num_sms, host)
    call = _call(given, num_sms, unknown, settled)
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

    The launch runs as in `emulate` with `explores`.

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
        UnsupportedPtx: The PTX has something that the emulator does not support, or no such kernel.
        EmulationError: The PTX names no target, or an unknown one.
        InputError: The arguments do not fit the parameters, `modes` is wrong, or a name in
            `unknown`.
    """
    chosen = parse_modes(modes)
    program = translate(ptx, "", entry)
    given = of_program(program, launch, tuple(arguments), list(arguments.values()))
    call = _call(given, num_sms, unknown)
    name = program.module.entry
    arch = Artifact(library=b"", symbol=name, ptx=ptx).arch
    runs, explored = call.run_all(chosen, time_limit_s, explores=True)
    return Report(name=name, arch=arch, runs=runs, explored=explored)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call(Call):
    """
    The launches of a call, one after the other.

    Attributes:
        launches: Programs and launches, in order.
        num_sms: SMs of the GPU.
    """

    launches: list[tuple[Program, Launch]]
    num_sms: int

    def launch(self, mode: Mode, time_limit_s: float, machines: list[Machine]) -> None:
        memory = GlobalMemory()
        for name in self.tensors:
            self.declare(memory, name)
        for program, launch in self.launches:
            memory.begin()
            machine = Machine(
                program, memory, launch, mode, time_limit_s=time_limit_s, num_sms=self.num_sms
            )
            machines.append(machine)
            machine.run()


def _call(
    given: Prepared, num_sms: int, unknown: Collection[str], settled: Collection[str] = ()
) -> _Call:
    return _Call(
        programs=given.programs,
        launches=given.launches,
        tensors=given.tensors,
        num_sms=num_sms,
        unknown=frozenset(unknown),
        settled=frozenset(settled),
    )
