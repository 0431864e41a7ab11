# SPDX-License-Identifier: Apache-2.0
"""Which device a target's kernels are chosen for."""

from __future__ import annotations

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


def _is_anywhere(name: str) -> bool:
    every = (device.name.lower() for arch in Arch for device in target(arch).devices)
    return name.lower() in every
