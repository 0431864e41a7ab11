# SPDX-License-Identifier: Apache-2.0
"""The device that a target's kernels run on: what measurements hold for, and nothing else."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from jitgen.config import Arch
from jitgen.config.config import canonical_json
from jitgen.targets import devices as target
from jitgen.targets import legality

_DIGITS = 12

_MEASURED = ("grouped_gemm",)
"""The operations that `jitgen tune` measures."""


@cache
def device_name(arch: Arch) -> str:
    """
    Return the name of the device: this processor's, the GPU's at hand, else that of the one that
    stands for the target, so that kernels are prewarmed on one machine as they are chosen on
    another.

    Asks torch where there is a GPU.
    """
    if not arch.is_gpu:
        return cpu_name()
    return gpu_at_hand(arch) or legality.target(arch).devices[0].name


def gpu_at_hand(arch: Arch) -> str:
    """Return the name of this process's GPU if it runs kernels for `arch`, else an empty one."""
    if not target.has_gpu():
        return ""
    import torch

    if not torch.cuda.is_available():
        return ""
    if Arch.of_capability(*torch.cuda.get_device_capability()) is not arch:
        return ""
    return torch.cuda.get_device_name()


def cpu_name() -> str:
    """Return the processor's own name, else its family."""
    from jitgen.compile import toolchain

    if name := toolchain.cpuinfo("model name"):
        return name
    import platform

    return platform.machine()


def driver_version() -> str:
    """Return the version of the NVIDIA driver; empty where there is none."""
    text = _text(Path("/proc/driver/nvidia/version"))
    if not text:
        return ""
    words = text.splitlines()[0].split()
    return next((word for word in words if word[0].isdigit() and "." in word), "unknown")


def fingerprint(arch: Arch) -> dict[str, Any]:
    """
    Return what a measurement depends on besides the problem: the device, the generation of the
    kernels, and the compiler's release without its last number.

    Raises:
        ToolchainError: The compiler's distributions are not installed.
    """
    from jitgen.compile import toolchain

    release = toolchain.versions()["nvidia-cutlass-dsl"]
    return {
        "device": device_name(arch),
        "arch": str(arch),
        "kernels": generations(arch),
        "compiler": ".".join(release.split(".")[:2]),
    }


def generations(arch: Arch) -> dict[str, int]:
    """Return the generation of a target's kernels, by operations that are measured."""
    found = legality.target(arch)
    return {op: found.rules(op).generation for op in _MEASURED if op in found.operations}


@cache
def folder(arch: Arch) -> str:
    """Return the name under which this device's measurements are kept; raises as `fingerprint`."""
    import hashlib

    digest = hashlib.sha256(canonical_json(fingerprint(arch)).encode("ascii")).hexdigest()
    return f"{slug(device_name(arch))}-{digest[:_DIGITS]}"


def slug(name: str) -> str:
    """Return `name` as a file name: ``NVIDIA H200`` is ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _text(path: Path) -> str:
    """Return the text of a file of the kernel; empty where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
