# SPDX-License-Identifier: Apache-2.0
"""
Runs compiled GPU kernels without a GPU, to show that they are right.

The artifact is taken as it is: its host part runs against a stub of the CUDA runtime, which says
what would be launched, and its PTX is run by a machine of warps, memories, barriers and
asynchronous units. From the outside in: `api.emulate` is the entry, `host` gets the launch out of
the artifact, `program` turns PTX into Python functions over numpy arrays, `isa` says what each
instruction does, `machine` holds what they change, and `formats` the encodings that hardware fixes.

It knows PTX and the machine, and nothing of jitgen but its errors: `jitgen.verify` brings kernels
here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jitgen.emulator.api import emulate
    from jitgen.emulator.artifact import Artifact
    from jitgen.emulator.host.native import Host
    from jitgen.emulator.modes import Mode
    from jitgen.emulator.report import Finding, Report, Run

__all__ = ["Artifact", "Finding", "Host", "Mode", "Report", "Run", "emulate"]

_HOME = {
    "Artifact": "jitgen.emulator.artifact",
    "Finding": "jitgen.emulator.report",
    "Host": "jitgen.emulator.host.native",
    "Mode": "jitgen.emulator.modes",
    "Report": "jitgen.emulator.report",
    "Run": "jitgen.emulator.report",
    "emulate": "jitgen.emulator.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
