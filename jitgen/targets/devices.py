# SPDX-License-Identifier: Apache-2.0
"""
Default targets and devices: the target if none is named, and the device that kernels are chosen
for.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from jitgen.config import Arch
from jitgen.errors import ConfigError, SettingError
from jitgen.events import warn_once
from jitgen.settings import place, settings
from jitgen.support.lazy import without_numpy
from jitgen.support.text import shown
from jitgen.targets.legality import target
from jitgen.targets.protocol import Device

_GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""
Device files of NVIDIA GPUs. If neither exists, there is no GPU, and torch need not be imported to
find out.
"""


def has_gpu() -> bool:
    """Return whether a GPU driver is installed; only torch knows which GPU it is."""
    return any(device.exists() for device in _GPU_DEVICES)


def default_arch() -> Arch:
    """
    Return the target of this process: JITGEN_ARCH, else that of the first GPU, else ``cpu``.

    A GPU without kernels of jitgen is ignored, with a warning.

    Raises:
        ConfigError: JITGEN_ARCH is not a target.
    """
    if settings.arch:
        return Arch.parse(settings.arch)
    if not has_gpu():
        return Arch.CPU
    with without_numpy():
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


def require_arch() -> None:
    """
    Check that JITGEN_ARCH is not set, or is the name of a target.

    Raises:
        SettingError: It is not the name of a target.
    """
    if settings.arch:
        try:
            Arch.parse(settings.arch)
        except ConfigError as error:
            raise SettingError(f"{place('arch')} is not allowed: {error}") from None


def find(arch: Arch, name: str | None = None) -> Device:
    """
    Return the device called `name`; None: JITGEN_DEVICE if it is of `arch`, else the target's first
    device.

    A name may be abbreviated, in upper or lower case: ``rtx5090`` is the
    ``NVIDIA GeForce RTX 5090``; the beginning of a name is enough if it is unique.

    Raises:
        ConfigError: No device of the target has this name, or several do; the message lists its
            devices.
    """
    return asked(arch, name) or target(arch).devices[0]


def asked(arch: Arch, name: str | None = None) -> Device | None:
    """
    Return the device that the caller or JITGEN_DEVICE names: the one called `name`, as in `find`;
    if `name` is None, JITGEN_DEVICE. Returns None if that is not set, or of another target.

    Raises:
        ConfigError: As `find`.
        SettingError: JITGEN_DEVICE is needed, and not the name of a device.
    """
    if name is None:
        is_of_it = require_device() is arch
        return _called(settings.device, target(arch).devices) if is_of_it else None
    return _found(name, (arch,))


def require_device() -> Arch | None:
    """
    Return the target of the device that JITGEN_DEVICE names; None if it is not set.

    Raises:
        SettingError: It names no device, or several.
    """
    if not settings.device:
        return None
    try:
        return arch_of(settings.device)
    except ConfigError as error:
        raise SettingError(f"{place('device')} is not allowed: {error}") from None


def arch_of(name: str) -> Arch:
    """
    Return the target that has a device called `name`, as `find` takes it.

    Raises:
        ConfigError: No target has such a device, or several devices may be meant; the message lists
            them.
    """
    every = {device: arch for arch in Arch for device in target(arch).devices}
    if found := _called(name, tuple(every)):
        return every[found]
    known = ", ".join(device.name for device in every)
    raise ConfigError(f"device {shown(name)} is not known; allowed: {known}")


def require(name: str, archs: Iterable[Arch]) -> None:
    """Raise the ConfigError of `find` if none of `archs` has a device called `name`."""
    _found(name, archs)


def _found(name: str, archs: Iterable[Arch]) -> Device:
    """Return the device of one of `archs` called `name`; raises the ConfigError of `find`."""
    archs = tuple(archs)
    known = tuple(device for arch in archs for device in target(arch).devices)
    if found := _called(name, known):
        return found
    raise ConfigError(
        f"device {shown(name)} of {', '.join(archs)} is not known; allowed: "
        f"{', '.join(device.name for device in known)}"
    )


def _called(name: str, known: tuple[Device, ...]) -> Device | None:
    """
    Return the device of `known` that `name` means; None if there is none.

    Raises:
        ConfigError: It is the beginning of several names.
    """
    wanted = _short(name)
    found = [device for device in known if _short(device.name) == wanted]
    if wanted and not found:
        found = [device for device in known if _short(device.name).startswith(wanted)]
    if len(found) > 1:
        names = ", ".join(device.name for device in found)
        raise ConfigError(f"device {shown(name)} may be any of: {names}; give more of its name")
    return found[0] if found else None


@lru_cache(maxsize=256)  # a plan asks for the same few names thousands of times
def _short(name: str) -> str:
    """
    Return the letters and digits of a name in lower case, without ``nvidia`` and ``geforce`` at the
    beginning.
    """
    letters = "".join(letter for letter in name.lower() if letter.isalnum())
    return letters.removeprefix("nvidia").removeprefix("geforce")
