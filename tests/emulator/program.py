# SPDX-License-Identifier: Apache-2.0
"""Small programs: blocks written in Python, to test the machine alone, and a few lines of PTX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from jitgen.emulator.machine.cluster import Cluster
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.machine.global_memory import GlobalMemory
from jitgen.emulator.machine.machine import Launch, Machine
from jitgen.emulator.modes import ALL, QUICK, Mode
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.observers import Observer
from jitgen.emulator.program.translate import Program
from jitgen.errors import MachineFault
from tests.emulator.mutation import text_of

EAGER = Mode(name="eager", deferred=frozenset(), by_warp=False, seed=None)
BY_WARP = Mode(name="by warp", deferred=frozenset(), by_warp=True, seed=1)
DEFERRED = Mode(
    name="deferred", deferred=frozenset({"load", "matrix", "store"}), by_warp=False, seed=None
)

EVERY_MODE = [
    pytest.param(mode, id=mode.name, marks=() if mode in QUICK else pytest.mark.nightly)
    for mode in sorted({*QUICK, *ALL}, key=lambda mode: (mode not in QUICK, mode.name))
]
"""
Parameters of tests whose findings do not depend on which thread runs first: quick modes with every
push, others at night.
"""


@dataclass
class FakeProgram:
    """
    The part of a program that the machine needs; each block has one instruction, of the same
    number.
    """

    functions: Sequence[Callable[[Fragment], Any]]
    whole_warp: Sequence[bool]
    shared_end: int = 1024

    def __post_init__(self) -> None:
        self.code: list[Instruction] = []
        self.members = [0] * len(self.functions)
        self.observers: dict[int, Observer] = {}
        self.register_counts = {"r": 4, "q": 2, "h": 1, "p": 1}
        self.blocks = [SimpleNamespace(start=block) for block in range(len(self.functions))]

    def place(self, at: int) -> str:
        return f"instruction {at}"

    def block_at(self, at: int) -> int:
        return at


def machine(
    *functions: Callable[[Fragment], Any],
    threads: int = 64,
    clusters: int = 1,
    cluster: int = 1,
    mode: Mode = EAGER,
    whole_warp: Sequence[int] = (),
    **options: Any,
) -> Machine:
    """Return a machine that has not run; `whole_warp` are the blocks that whole warps enter."""
    program = FakeProgram(functions, [block in whole_warp for block in range(len(functions))])
    launch = Launch(
        grid=(clusters * cluster, 1, 1),
        block=(threads, 1, 1),
        cluster=(cluster, 1, 1),
        shared_bytes=4096,
        is_dependent=options.pop("is_dependent", False),
    )
    return Machine(program, None, launch, mode, **options)  # type: ignore[arg-type]


def fragment(threads: int = 64, cluster: int = 1, rank: int = 0, **options: Any) -> Fragment:
    """Return all threads of one CTA of a machine, ready to be given to semantic functions."""
    made = machine(lambda _: -1, threads=threads, cluster=cluster, **options)
    group = Cluster(made, (0, 0, 0))
    made.running.append(group)
    ready = [part for part in group.schedule.ready.values() if part.cta.rank == rank]
    return ready[0]


def run_ptx(body: str, threads: int = 32, cluster: int = 1, **options: Any) -> Run:
    """
    Run a kernel without parameters on one cluster.

    Args:
        body: Its instructions; registers with the usual prefixes need no declaration.
        threads: Threads of a CTA.
        cluster: Number of CTAs.
        options: Text before the kernel (functions); of `Launch` (is_dependent, registers, ...) and
            `Machine` (mode, time_limit_s, ...).
    """
    found = _prepare(body, threads, cluster, options)
    found.machine.run()
    return found


def found_by(body: str, mode: Mode, threads: int = 32, cluster: int = 1) -> list[str]:
    """
    Return what is found in a kernel as `run_ptx` runs it; a fault that ends the kernel is the last
    finding.
    """
    run = _prepare(body, threads, cluster, {"mode": mode})
    try:
        run.machine.run()
    except MachineFault as fault:
        return [*map(str, run.machine.findings.values()), text_of(fault)]
    return [*map(str, run.machine.findings.values())]


def _prepare(body: str, threads: int, cluster: int, options: dict[str, Any]) -> Run:
    """Return a launch that has not run; see `run_ptx`."""
    functions = options.pop("functions", "")
    head = f".version 8.8\n.target sm_90a\n{functions}\n"
    text = f"{head}.visible .entry kernel()\n{{\n{body}\nret;\n}}\n"
    program = Watched(text)
    launch = Launch(
        grid=(cluster, 1, 1),
        block=(threads, 1, 1),
        cluster=(cluster, 1, 1),
        shared_bytes=4096,
        is_dependent=options.pop("is_dependent", False),
        registers=options.pop("registers", 0),
        ignores_setmaxnreg=options.pop("ignores_setmaxnreg", False),
    )
    made = Machine(program, GlobalMemory(), launch, options.pop("mode", EAGER), **options)
    group = Cluster(made, (0, 0, 0))
    made.not_started.clear()
    made.running.append(group)
    return Run(made, group)


def run_grid(body: str, words: NDArray[np.uint32], clusters: int, **options: Any) -> Machine:
    """
    Run a kernel of single warps on several clusters.

    Args:
        body: Its instructions; %rd1 is the address of `words`.
        words: Words of global memory.
        clusters: Clusters of one CTA.
        options: Arguments of `Machine`.
    """
    head = "ld.param.b64 %rd1, [words];\n"
    text = f".version 8.8\n.target sm_90a\n.visible .entry kernel(.param .u64 words)\n{{\n{head}"
    memory = GlobalMemory()
    memory.add(words.ctypes.data, words.nbytes, "words")
    params = (words.ctypes.data.to_bytes(8, "little"),)
    launch = Launch(grid=(clusters, 1, 1), block=(32, 1, 1), params=params)
    mode = options.pop("mode", EAGER)
    made = Machine(Program(f"{text}{body}\nret;\n}}\n"), memory, launch, mode, **options)
    made.run()
    return made


class Watched(Program):
    """A program that writes every register back, so that tests can read it."""

    def is_private(self, register: str) -> bool:
        return False


@dataclass
class Run:
    """A launch that has ended."""

    machine: Machine
    cluster: Cluster

    def register(self, name: str, rank: int = 0) -> NDArray[Any]:
        """Return what a register holds in each thread of a CTA."""
        kind, row = self.machine.program.row(name)
        found: NDArray[Any] = getattr(self.cluster.ctas[rank], kind)[row]
        return found

    @property
    def findings(self) -> list[str]:
        """Kinds of the findings."""
        return [finding.kind for finding in self.machine.findings.values()]
