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

import importlib
import importlib.util
from typing import TYPE_CHECKING

from jitgen.errors import ToolchainError

if TYPE_CHECKING:
    from jitgen.emulator import Report
    from jitgen.verify.cases import Case
    from jitgen.verify.emulation import emulate
    from jitgen.verify.files import verify_file
    from jitgen.verify.gpu import device
    from jitgen.verify.verification import Verification, verify

__all__ = ["Case", "Report", "Verification", "device", "emulate", "verify", "verify_file"]

_HOME = {
    "Case": "jitgen.verify.cases",
    "Report": "jitgen.emulator",
    "Verification": "jitgen.verify.verification",
    "device": "jitgen.verify.gpu",
    "emulate": "jitgen.verify.emulation",
    "verify": "jitgen.verify.verification",
    "verify_file": "jitgen.verify.files",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_numpy()
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def require_numpy() -> None:
    """Raise ToolchainError where numpy is missing: nothing else of jitgen needs it."""
    if importlib.util.find_spec("numpy") is None:
        raise ToolchainError("the emulator needs numpy; run: pip install 'jitgen[emulator]'")
