# SPDX-License-Identifier: Apache-2.0
"""What is compiled with, what it is told, and what the host is: inputs of every key."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

from jitgen.compile.installed import versions
from jitgen.config.arch import Arch
from jitgen.config.rooms import TARGETS
from jitgen.errors import ToolchainError

__all__ = [
    "LEVELS",
    "cpu_level",
    "cpuinfo",
    "host",
    "host_level",
    "options",
    "runs_level",
    "versions",
]

_V2 = ("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3")
_V3 = ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave")
_V4 = ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")

LEVELS: dict[str, tuple[tuple[str, frozenset[str]], ...]] = {
    "x86_64": (
        ("x86-64", frozenset()),
        ("x86-64-v2", frozenset(_V2)),
        ("x86-64-v3", frozenset(_V3)),
        ("x86-64-v4", frozenset(_V4)),
    ),
    "aarch64": (("armv8-a", frozenset()),),
}
"""
Levels of each processor family, and what each adds to the one before, as /proc/cpuinfo spells it.

Source: System V ABI, AMD64 supplement, section 3.1.1 "Processor Architecture". For 64-bit ARM the
base is enough: the host part of a GPU kernel only passes arguments on.
"""

_CPUINFO = Path("/proc/cpuinfo")


def options(arch: Arch) -> tuple[str, ...]:
    """Return what the compiler is told: the calling convention, and what the target says."""
    return ("--enable-tvm-ffi", *TARGETS.get(arch).compiler_options)


@cache
def cpu_level() -> str:
    """
    Return the highest level of `LEVELS` that this CPU has.

    A CPU that does not tell what it has counts as the base, which every one of its family has.

    Raises:
        ToolchainError: The family is unknown.
    """
    names = _levels()
    flags, best = _cpu_flags(), names[0]
    for level, added in LEVELS[platform.machine()]:
        if not added <= flags:
            break
        best = level
    return best


def host_level(arch: Arch) -> str:
    """
    Return the level that the host part of kernels for `arch` is compiled for: as the target says,
    all that this CPU has, or the base, which every host has.
    """
    return cpu_level() if TARGETS.get(arch).host_level == "own" else _levels()[0]


def runs_level(level: str) -> bool:
    """Return whether this CPU can run code that was compiled for `level`."""
    names = _levels()
    return level in names and names.index(level) <= names.index(cpu_level())


def _levels() -> list[str]:
    machine = platform.machine()
    if machine not in LEVELS:
        known = ", ".join(LEVELS)
        raise ToolchainError(f"kernels cannot be compiled for {machine} hosts; known: {known}")
    return [level for level, _ in LEVELS[machine]]


def host(arch: Arch) -> str:
    """
    Return the operating system and processor that the host part of an artifact is compiled for,
    such as ``linux-x86_64``; above the base with its level: ``linux-x86_64-v4``.
    """
    system = f"{platform.system().lower()}-{platform.machine()}"
    level = host_level(arch)
    return system if level == _levels()[0] else f"{system}-{level.rpartition('-')[2]}"


def cpuinfo(name: str) -> str:
    """Return what the system says of the first CPU under `name`; empty where it says nothing."""
    lines = _head(_CPUINFO).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _head(path: Path) -> str:
    """Return the beginning of `path`: the kernel writes as much again for each further CPU."""
    try:
        with path.open(encoding="ascii", errors="replace") as stream:
            return stream.read(2**14)
    except OSError:
        return ""


def _cpu_flags() -> frozenset[str]:
    return frozenset(cpuinfo("flags").split())
