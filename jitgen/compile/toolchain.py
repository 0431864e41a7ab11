# SPDX-License-Identifier: Apache-2.0
"""
The compiler's versions and options, and the host: inputs of every key.

The compiler comes in parts, with two code generators, one of which is in use.

::

    nvidia-cutlass-dsl               names the release
    nvidia-cutlass-dsl-libs-base     its Python code
    nvidia-cutlass-dsl-libs-core
    nvidia-cutlass-dsl-libs-cu12     a code generator and the runtime library, for CUDA 12
    nvidia-cutlass-dsl-libs-cu13     the same for CUDA 13
    apache-tvm-ffi                   how kernels are called

All parts of a release have the same version. So a machine that only loads kernels needs only the
part with the runtime library: its version is that of the release, and keys are the same as on a
machine with all parts.

The two code generators make different code. If both are installed, the compiler uses the newest
that the driver supports, or the newest if there is no driver. So a key names only the generator in
use.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from functools import cache
from pathlib import Path

from jitgen.config.plugins import TARGETS, Arch
from jitgen.errors import ResourceError, ToolchainError
from jitgen.support.failing import is_passing

COMPILER = "nvidia-cutlass-dsl"
CALLS = "apache-tvm-ffi"
PARTS = (COMPILER, f"{COMPILER}-libs-base", f"{COMPILER}-libs-core")
FLAVOURS = {12: f"{COMPILER}-libs-cu12", 13: f"{COMPILER}-libs-cu13"}
"""Major version of CUDA, and the part with the code generator and the runtime library for it."""


@cache
def versions() -> dict[str, str]:
    """
    Return the version of everything that decides the bytes of an artifact.

    Raises:
        ToolchainError: There is no runtime library, or nothing to call kernels with.
    """
    cuda, calls = flavour(), version(CALLS)
    if cuda is None or calls is None:
        missing = f"{FLAVOURS[12]} (or -cu13)" if cuda is None else CALLS
        raise ToolchainError(
            f"{missing} is not installed, so kernels can be neither found nor compiled; run: pip "
            "install jitgen, or see docs/install.md for a machine that only runs them"
        )
    release = version(FLAVOURS[cuda])
    found = {part: version(part) for part in PARTS}
    if found[COMPILER] is None:  # a part of a release names the rest of it
        found = dict.fromkeys(PARTS, release)
    found |= {FLAVOURS[cuda]: release, CALLS: calls}
    return {name: text for name, text in found.items() if text is not None}


def flavour() -> int | None:
    """Return the major version of CUDA of the code generator in use; None if none is installed."""
    try:
        return _flavour()
    except LookupError:
        return None


@cache
def _flavour() -> int:
    """
    Return the major version of CUDA of the code generator in use, cached; if there is no generator,
    the next call looks again.
    """
    found = flavours()
    if not found:
        _forget_what_is_installed()
        found = flavours()
    if len(found) < 2:
        return found[0]
    supported = driver_cuda()
    usable = [cuda for cuda in found if supported is None or cuda <= supported]
    return (usable or found)[-1]


def flavours() -> list[int]:
    """Return the major versions of CUDA for which there is a code generator, in order."""
    return [cuda for cuda, name in FLAVOURS.items() if version(name) is not None]


def driver_cuda() -> int | None:
    """
    Return the major version of CUDA that the driver supports; None where there is no driver.

    Raises:
        ResourceError: The driver cannot be loaded just now.
    """
    import ctypes

    number = ctypes.c_int()
    try:  # as the compiler asks; this starts nothing on the GPU
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)):
            return None
    except (OSError, AttributeError) as error:
        if is_passing(error):
            raise ResourceError(f"the driver cannot be asked for its version: {error}") from error
        return None
    return number.value // 1000


def why_not_compiling() -> str:
    """
    Return which packages are missing to compile kernels, and how to install them; empty if none is.
    """
    missing = [COMPILER] if version(COMPILER) is None else _missing_parts()
    if version("jinja2") is None:
        missing.append("jinja2")
    if not missing:
        return ""
    verb = "is" if len(missing) == 1 else "are"
    return (
        f"{', '.join(missing)} {verb} not installed; run: pip install jitgen, or prewarm the cache "
        "on a machine that compiles"
    )


def _missing_parts() -> list[str]:
    """Return the missing packages of an installed compiler."""
    missing = [name for name in PARTS if version(name) is None]
    return missing if flavour() else [*missing, f"{FLAVOURS[12]} (or -cu13)"]


def require_compiler() -> None:
    """
    Raise unless kernels can be compiled here.

    Raises:
        ToolchainError: Something is missing; the message says what.
    """
    if reason := why_not_compiling():
        raise ToolchainError(f"kernels cannot be compiled here: {reason}")


def version(name: str) -> str | None:
    """
    Return the version of the distribution `name`; None if it is not installed.

    Only the head of the metadata file is read. Parsing the whole file of each package, as
    importlib.metadata does, would take a fifth of the time of a start, imports excluded.

    Raises:
        ResourceError: What is installed cannot be read just now.
    """
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        _require_readable()
        return None
    head = (found.read_text("METADATA") or "").partition("\n\n")[0]
    lines = (line.partition(":") for line in head.splitlines())
    return next((value.strip() for title, _, value in lines if title == "Version"), "") or (
        found.version
    )


def _require_readable() -> None:
    """
    Raise unless folders can be read: importlib finds nothing in one that it cannot read.

    Raises:
        ResourceError: For example, no descriptors are left.
    """
    try:
        os.close(os.open("/", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        _forget_what_is_installed()
        raise ResourceError(f"what is installed cannot be read: {error.strerror}") from error


def _forget_what_is_installed() -> None:
    """Clear the caches of importlib, which also remember folders that could not be read."""
    # of an object: in some versions of Python the class has no such method
    importlib.metadata.MetadataPathFinder().invalidate_caches()


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


CONVENTION = "--enable-tvm-ffi"
"""Calling convention of the compiled functions."""


def options(arch: Arch) -> tuple[str, ...]:
    """Return the options of the compiler: the calling convention, and those of the target."""
    return (CONVENTION, *TARGETS.get(arch).compiler_options)


@cache
def cpu_level() -> str:
    """
    Return the highest level of `LEVELS` that this CPU has.

    A CPU that does not list its features counts as the base level of its family.

    Raises:
        ToolchainError: The family is unknown.
        ResourceError: Its features cannot be read just now.
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
    Return the level that the host part of kernels for `arch` is compiled for. The target decides:
    all that this CPU has, or the base, which every host has.
    """
    return cpu_level() if TARGETS.get(arch).host_level == "own" else base_level()


def base_level() -> str:
    """Return the level that every host of this family has."""
    return _levels()[0]


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
    """Return the field `name` of the first CPU; empty if there is none."""
    lines = _head(_CPUINFO).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _head(path: Path) -> str:
    """Return the beginning of `path`: the operating system repeats it for each further CPU."""
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            return stream.read(2**14)
    except OSError as error:
        if is_passing(error):  # else the base level would be remembered, and no entry be loaded
            raise ResourceError(f"{path} cannot be read: {error.strerror}") from error
        return ""


def _cpu_flags() -> frozenset[str]:
    return frozenset(cpuinfo("flags").split())


__all__ = [
    "CONVENTION",
    "LEVELS",
    "base_level",
    "cpu_level",
    "cpuinfo",
    "host",
    "host_level",
    "options",
    "runs_level",
    "versions",
]
