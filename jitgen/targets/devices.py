# SPDX-License-Identifier: Apache-2.0
"""Which device a target's kernels are chosen for."""

from __future__ import annotations

from collections.abc import Iterable

from jitgen.config import Arch
from jitgen.errors import ConfigError
from jitgen.settings import settings
from jitgen.targets.legality import target
from jitgen.targets.protocol import Device
from jitgen.text import shown


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
