# SPDX-License-Identifier: Apache-2.0
"""
jitgen's kernels in the emulator: the bridge between what jitgen makes and what runs without a GPU.

`emulation` runs one call of a kernel, `gpu` lets `jitgen.grouped_gemm` find an emulated device,
`verification` compares a kernel with float64 sums on the sizes of `problem`, `files` a kernel of
the user's own with what the `cases` of a file expect. `artifacts` gets artifacts for the emulator
out of the cache or the compiler, and `host` lends it jitgen's loader, compiler driver and cache.
`jitgen.emulator` itself knows nothing of jitgen.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from jitgen.errors import ToolchainError
from jitgen.support.lazy import importing

if TYPE_CHECKING:
    from jitgen.emulator import DeviceCall, OnDevices, Report, Window
    from jitgen.verify.cases import Case
    from jitgen.verify.emulation import emulate
    from jitgen.verify.files import verify_file
    from jitgen.verify.gpu import device
    from jitgen.verify.verification import Verification, verify

__all__ = [
    "Case",
    "DeviceCall",
    "OnDevices",
    "Report",
    "Verification",
    "Window",
    "device",
    "emulate",
    "verify",
    "verify_file",
]


def require_numpy() -> None:
    """Raise ToolchainError where numpy is missing: nothing else of jitgen needs it."""
    if importlib.util.find_spec("numpy") is None:
        raise ToolchainError("the emulator needs numpy; run: pip install 'jitgen[emulator]'")


__getattr__ = importing(
    __name__,
    {
        "Case": ".cases",
        "DeviceCall": "jitgen.emulator",
        "OnDevices": "jitgen.emulator",
        "Report": "jitgen.emulator",
        "Verification": ".verification",
        "Window": "jitgen.emulator",
        "device": ".gpu",
        "emulate": ".emulation",
        "verify": ".verification",
        "verify_file": ".files",
    },
    require_numpy,
)
