# SPDX-License-Identifier: Apache-2.0
"""
Runs jitgen's kernels in the emulator.

`emulation` runs one call of a kernel. `gpu` makes `jitgen.grouped_gemm` use an emulated device.
`verification` compares a kernel with float64 sums on the sizes of a problem; `files` compares a
user's kernel with the expected values of the `cases` of a file. `artifacts` gets artifacts for the
emulator from the cache or the compiler, and `host` gives the emulator jitgen's loader, compiler
driver and cache. `jitgen.emulator` itself does not import jitgen.
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
    """Raise ToolchainError if numpy is missing, which the emulator and checks of kernels need."""
    if importlib.util.find_spec("numpy") is None:
        raise ToolchainError(
            "numpy is missing, which the emulator and checks of kernels need; "
            "run: pip install 'jitgen[emulator]'"
        )


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
