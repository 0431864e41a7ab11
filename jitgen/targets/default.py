# SPDX-License-Identifier: Apache-2.0
"""Which target to work for when none is named."""

from __future__ import annotations

from pathlib import Path

from jitgen.config import Arch
from jitgen.events import warn_once
from jitgen.settings import settings

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
