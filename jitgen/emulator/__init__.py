# SPDX-License-Identifier: Apache-2.0
"""
Runs compiled GPU kernels without a GPU, to show that they are right.

The artifact is taken as it is: its host part runs against a stub of the CUDA runtime, which says
what would be launched, and its PTX is run by a machine of warps, memories, barriers and
asynchronous units. From the outside in: `api.emulate` is the entry, `host` gets the launch out of
the artifact, `program` turns PTX into Python functions over numpy arrays, `isa` says what each
instruction does, `machine` holds what they change, and `formats` the encodings that hardware fixes.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from jitgen.errors import ToolchainError

if TYPE_CHECKING:
    from jitgen.emulator.api import emulate
    from jitgen.emulator.gpu import device
    from jitgen.emulator.report import Report
    from jitgen.emulator.verification import Verification, verify

__all__ = ["Report", "Verification", "device", "emulate", "verify"]

_HOME = {
    "Report": "jitgen.emulator.report",
    "Verification": "jitgen.emulator.verification",
    "device": "jitgen.emulator.gpu",
    "emulate": "jitgen.emulator.api",
    "verify": "jitgen.emulator.verification",
}


def __getattr__(name: str) -> Any:
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
