# SPDX-License-Identifier: Apache-2.0
"""
Runs compiled GPU kernels without a GPU, to show that they are right.

The artifact is used unchanged: its host part runs against a stub of the CUDA runtime, which reports
the launch, and its PTX is run by a machine of warps, memories, barriers and asynchronous units.
From the outside in: `api.emulate` is the entry, `host` gets the launch out of the artifact,
`program` turns PTX into Python functions over numpy arrays, `isa` says what each instruction does,
`machine` holds what they change, and `formats` the encodings that hardware fixes.

The package implements PTX and the machine, and imports only the errors of jitgen; `jitgen.verify`
passes kernels to it. Other packages import the names in `__all__`, and nothing from its modules.
``python -m jitgen.emulator KERNEL.ptx`` runs a kernel of any compiler (`__main__`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jitgen.emulator.api import TIME_LIMIT_S, emulate, emulate_ptx
    from jitgen.emulator.artifact import Artifact
    from jitgen.emulator.devices import DeviceCall, OnDevices, emulate_devices
    from jitgen.emulator.document import read_document
    from jitgen.emulator.host.launch import dynamic_shared_bytes
    from jitgen.emulator.host.native import Host, is_from_host_part
    from jitgen.emulator.host.runtime import compile_stub, stub_library
    from jitgen.emulator.host.tensors import ELEMENTS
    from jitgen.emulator.host.windows import Window
    from jitgen.emulator.machine.limits import target_of
    from jitgen.emulator.machine.machine import NUM_SMS, Launch
    from jitgen.emulator.modes import Mode, parse_modes
    from jitgen.emulator.program.coverage import Coverage
    from jitgen.emulator.program.lines import source_file, source_lines
    from jitgen.emulator.program.translate import Program
    from jitgen.emulator.report import Finding, Observation, Report, Run, merge_coverage

__all__ = [
    "ELEMENTS",
    "NUM_SMS",
    "PRELOAD",
    "TIME_LIMIT_S",
    "Artifact",
    "Coverage",
    "DeviceCall",
    "Finding",
    "Host",
    "Launch",
    "Mode",
    "Observation",
    "OnDevices",
    "Program",
    "Report",
    "Run",
    "Window",
    "compile_stub",
    "dynamic_shared_bytes",
    "emulate",
    "emulate_devices",
    "emulate_ptx",
    "is_from_host_part",
    "merge_coverage",
    "parse_modes",
    "read_document",
    "source_file",
    "source_lines",
    "stub_library",
    "target_of",
]

PRELOAD = ("torch", "numpy", "jitgen.emulator.api", "jitgen.emulator.isa")
"""Modules to import in a process that forks others to emulate in, so that they start with them."""

_HOME = {
    "ELEMENTS": "host.tensors",
    "NUM_SMS": "machine.machine",
    "TIME_LIMIT_S": "api",
    "Artifact": "artifact",
    "Coverage": "program.coverage",
    "DeviceCall": "devices",
    "Finding": "report",
    "Host": "host.native",
    "Launch": "machine.machine",
    "Mode": "modes",
    "Observation": "report",
    "OnDevices": "devices",
    "Program": "program.translate",
    "Report": "report",
    "Run": "report",
    "Window": "host.windows",
    "compile_stub": "host.runtime",
    "dynamic_shared_bytes": "host.launch",
    "emulate": "api",
    "emulate_devices": "devices",
    "emulate_ptx": "api",
    "is_from_host_part": "host.native",
    "merge_coverage": "report",
    "parse_modes": "modes",
    "read_document": "document",
    "source_file": "program.lines",
    "source_lines": "program.lines",
    "stub_library": "host.runtime",
    "target_of": "machine.limits",
}
"""The module of each name, imported when the name is first used: it brings numpy or torch."""


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
