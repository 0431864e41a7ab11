# SPDX-License-Identifier: Apache-2.0
"""
Which target to work for when none is named, and which of its devices kernels are chosen for.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from jitgen.config import Arch
from jitgen.errors import ConfigError
from jitgen.events import warn_once
from jitgen.settings import settings
from jitgen.targets.legality import target
from jitgen.targets.protocol import Device
from jitgen.text import shown

_GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""Where there is none of these, there is no GPU, and torch need not be imported to know it."""


def has_gpu() -> bool:
    """Return whether the driver of a GPU is here; what GPU it is, torch has to tell."""
    return any(device.exists() for device in _GPU_DEVICES)


def default_arch() -> Arch:
    """
    Return the target to work for: JITGEN_ARCH, else the first GPU's, else ``cpu``.

    A GPU for which jitgen has no kernels yet counts as none, with a warning.

    Raises:
        ConfigError: JITGEN_ARCH is no target.
    """
    if settings.arch:
        return Arch.parse(settings.arch)
    if not has_gpu():
        return Arch.CPU
    import torch

    if not torch.cuda.is_available():
        return Arch.CPU
    capability = torch.cuda.get_device_capability()
    arch = Arch.of_capability(*capability)
    if arch is None:
        warn_once(
            "arch",
            "no kernels for compute capability %d.%d yet, so the default target is cpu; "
            "set JITGEN_ARCH",
            *capability,
        )
        return Arch.CPU
    return arch


def find(arch: Arch, name: str | None = None) -> Device:
    """
    Return the device called `name`; None for the one that JITGEN_DEVICE names, if it is of `arch`,
    else the one that stands for the target.

    Raises:
        ConfigError: The target has none of this name; the message lists those that it has.
    """
    known = target(arch).devices
    wanted = settings.device if name is None else name
    found = next((device for device in known if device.name.lower() == wanted.lower()), None)
    if found is not None:
        return found
    if name is None and (not wanted or _is_anywhere(wanted)):
        return known[0]  # nothing was asked for, or a device of another target
    raise ConfigError(
        f"device {shown(wanted)} of {arch} is not known; allowed: "
        f"{', '.join(device.name for device in known)}"
    )


def arch_of(name: str) -> Arch:
    """
    Return the target that has a device called `name`.

    Raises:
        ConfigError: None has; the message lists the devices of all.
    """
    every = {device.name: arch for arch in Arch for device in target(arch).devices}
    for known, arch in every.items():
        if known.lower() == name.lower():
            return arch
    raise ConfigError(f"device {shown(name)} is not known; allowed: {', '.join(every)}")


def require(name: str, archs: Iterable[Arch]) -> None:
    """Raise the ConfigError of `find` where none of `archs` has a device called `name`."""
    if arch_of(name) not in archs:
        for arch in archs:
            find(arch, name)


def _is_anywhere(name: str) -> bool:
    try:
        arch_of(name)
    except ConfigError:
        return False
    return True
