# SPDX-License-Identifier: Apache-2.0
"""
The device that a target's kernels run on: for which device kernels are chosen, and to which devices
measurements apply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jitgen.config import Arch
from jitgen.errors import ConfigError
from jitgen.support.documents import canonical_json
from jitgen.support.lazy import without_numpy
from jitgen.targets import devices as target
from jitgen.targets import legality
from jitgen.targets.protocol import Device

_DIGITS = 12
_GPUS = Path("/proc/driver/nvidia/gpus")

_MEASURED = ("grouped_gemm",)
"""The operations that `jitgen tune` measures."""


@cache
def device_name(arch: Arch) -> str:
    """
    Return the name of this machine's processor or GPU; without a GPU, that of the target's first
    device, so that a machine without one prewarms what that device chooses.

    If there is a GPU, torch gives its name.
    """
    if not arch.is_gpu:
        return cpu_name()
    return gpu_at_hand(arch) or legality.target(arch).devices[0].name


def chosen_for(arch: Arch, name: str | None = None) -> tuple[Device, str]:
    """
    Return the device that kernels are chosen for, and the name of its measurements; an empty name
    means this machine's device.

    Args:
        arch: The target.
        name: Name as in `jitgen.targets.devices.find`; empty: this machine's device. None:
            JITGEN_DEVICE if it is of `arch`, else this machine's device. If the target does not
            know this machine's device, its first device is taken.

    Raises:
        ConfigError: The device is not known.
    """
    known = legality.target(arch).devices
    if name != "" and (found := target.asked(arch, name)) is not None:
        return found, found.name
    if len(known) == 1:
        return known[0], ""  # for any device: this machine's need not be found out
    own = device_name(arch)
    return next((device for device in known if device.name == own), known[0]), ""


def covered(arch: Arch, names: Sequence[str] = ()) -> tuple[str, ...]:
    """
    Return the names of the devices that a plan's kernels are chosen for: those of `names` that are
    of `arch`; if there are none, JITGEN_DEVICE; if that is not set, all devices of the target and
    this machine's. This machine's device only adds to the list, so that a command compiles the
    target's kernels everywhere.

    Raises:
        ConfigError: `names` is one text, or a name in it is not a device of any target.
        SettingError: JITGEN_DEVICE is not a device of any target.
    """
    if isinstance(names, str):
        raise ConfigError(f"devices must be a list of names, such as [{names!r}] (got {names!r})")
    asked = [target.find(arch, name) for name in names if target.arch_of(name) is arch]
    if not asked and (found := target.asked(arch)) is not None:
        asked = [found]
    if asked:
        return tuple(dict.fromkeys(device.name for device in asked))
    first, *others = (device.name for device in legality.target(arch).devices)
    if not arch.is_gpu:  # this machine's processor represents the target, measured or not
        return device_name(arch), *others
    own = gpu_at_hand(arch)
    return tuple(dict.fromkeys([first, *others, *filter(None, [own])]))


def asking(arch: Arch, name: str) -> str:
    """
    Return the name that the selector takes for one of the `covered` devices: empty, for this
    machine's device, if the target does not know it.
    """
    return name if name in {device.name for device in legality.target(arch).devices} else ""


def gpu_at_hand(arch: Arch) -> str:
    """Return the name of this process's GPU if it runs kernels for `arch`, else an empty one."""
    if not target.has_gpu():
        return ""
    with without_numpy():
        import torch

    if not torch.cuda.is_available():
        return ""
    if Arch.of_capability(*torch.cuda.get_device_capability()) is not arch:
        return ""
    return torch.cuda.get_device_name()


def gpu_of_host() -> str:
    """
    Return the name of this host's GPUs from the driver's files, without using a GPU; empty if there
    is none, or if there are several kinds.
    """
    files = sorted(_GPUS.glob("*/information"))
    lines = (line for path in files for line in _text(path).splitlines())
    names = {line.partition(":")[2].strip() for line in lines if line.startswith("Model:")}
    return names.pop() if len(names) == 1 else ""


def cpu_name() -> str:
    """Return the processor's own name, else its family."""
    from jitgen.compile import toolchain

    if name := toolchain.cpuinfo("model name"):
        return name
    import platform

    return platform.machine()


def driver_version() -> str:
    """Return the version of the NVIDIA driver; empty without a driver."""
    text = _text(Path("/proc/driver/nvidia/version"))
    if not text:
        return ""
    words = text.splitlines()[0].split()
    return next((word for word in words if word[0].isdigit() and "." in word), "unknown")


def fingerprint(arch: Arch, name: str = "") -> dict[str, object]:
    """
    Return the conditions of a measurement besides the problem: device (this machine's if `name` is
    empty), target, generation of the kernels, and release of the compiler without its last number.

    Raises:
        ToolchainError: The compiler's distributions are not installed.
    """
    from jitgen.compile import toolchain

    release = toolchain.versions()["nvidia-cutlass-dsl"]
    return {
        "device": name or device_name(arch),
        "arch": str(arch),
        "kernels": generations(arch),
        "compiler": ".".join(release.split(".")[:2]),
    }


def generations(arch: Arch) -> dict[str, int]:
    """Return the generation of a target's kernels, by operations that are measured."""
    found = legality.target(arch)
    return {op: found.rules(op).generation for op in _MEASURED if op in found.operations}


@cache
def folder(arch: Arch, name: str = "") -> str:
    """
    Return the name of the folder with the measurements of the device called `name`, of this
    machine's if it is empty; raises as `fingerprint`.
    """
    import hashlib

    digest = hashlib.sha256(canonical_json(fingerprint(arch, name)).encode("ascii")).hexdigest()
    return f"{slug(name or device_name(arch))}-{digest[:_DIGITS]}"


def slug(name: str) -> str:
    """Return `name` as a file name: ``NVIDIA H200`` is ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _text(path: Path) -> str:
    """Return the text of a file of the operating system's kernel; empty where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
