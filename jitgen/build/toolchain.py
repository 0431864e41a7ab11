# SPDX-License-Identifier: Apache-2.0
"""Which compiler is installed, what it is told, and what the host is: inputs of every key."""

from __future__ import annotations

import importlib.metadata
import platform
from functools import cache
from pathlib import Path

from jitgen.errors import ToolchainError
from jitgen.model.arch import Arch

DISTRIBUTIONS = (
    "nvidia-cutlass-dsl",
    "nvidia-cutlass-dsl-libs-base",
    "nvidia-cutlass-dsl-libs-core",
    "nvidia-cutlass-dsl-libs-cu12",
    "nvidia-cutlass-dsl-libs-cu13",
    "apache-tvm-ffi",
)
"""Everything that decides the bytes of an artifact; the code generator is in the libs packages."""

_ISA = (
    *("popcnt", "sse4_2", "f16c", "fma", "bmi1", "bmi2", "abm", "movbe", "avx", "avx2", "avx_vnni"),
    *("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"),
    *("avx512_bf16", "avx512_fp16"),
)
"""Instruction sets that a compiler may choose where they are, as /proc/cpuinfo spells them."""


@cache
def versions() -> dict[str, str]:
    """
    Return the versions of the distributions that are installed.

    Raises:
        ToolchainError: Neither the compiler nor its runtime library is installed.
    """
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if "nvidia-cutlass-dsl" not in found or "apache-tvm-ffi" not in found:
        raise ToolchainError(
            "nvidia-cutlass-dsl and apache-tvm-ffi must be installed to find or compile kernels; "
            "run: pip install jitgen"
        )
    return found


def options(arch: Arch) -> tuple[str, ...]:
    """
    Return what the compiler is told: the target of the device code, and the calling convention.
    """
    return ("--enable-tvm-ffi", *(("--gpu-arch", str(arch)) if arch.is_gpu else ()))


@cache
def host() -> str:
    """
    Return the operating system and processor family that the host part of an artifact is compiled
    for.
    """
    return f"{platform.system().lower()}-{platform.machine()}"


@cache
def host_isa() -> frozenset[str]:
    """
    Return the instruction sets of this CPU that compiled host code may use.

    The compiler generates host code for the CPU it runs on, so an entry records the builder's sets,
    and is a miss on a CPU that lacks one of them.
    """
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(_ISA) & frozenset(flags.partition(":")[2].split())
