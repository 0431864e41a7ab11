# SPDX-License-Identifier: Apache-2.0
"""
Evaluates PTX instructions that only compute: translated as in a kernel, run without a machine.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from jitgen.emulator.formats.numbers import decode, encode
from jitgen.emulator.program.translate import translate

FILES = {"r": np.uint32, "q": np.uint64, "h": np.uint16, "p": bool}

TYPES = {"r": "b32", "rd": "b64", "rs": "b16", "p": "pred"}
NAMES = [f"{prefix}{i}" for prefix in TYPES for i in range(10)]

KERNEL = """
.version 8.6
.target sm_90a
.address_size 64
.visible .entry kernel()
{{
    .reg .pred %p<10>;
    .reg .b16 %rs<10>;
    .reg .b32 %r<10>;
    .reg .b64 %rd<10>;
    {text}
$later:
    {uses}
    ret;
}}
"""

USES = "\n    ".join(f"mov.{TYPES[name[:-1]]} %{name}, %{name};" for name in NAMES)
"""
PTX of a block that reads every register: a register that no other block reads is not written back.
"""


class Registers(dict):
    """Register values by name without the percent sign, and the warnings there were."""

    warnings: list[str]


def evaluate(text, **registers):
    """
    Runs instructions.

    Args:
        text: PTX that uses ``%r``, ``%rd``, ``%rs`` and ``%p`` 0 to 9.
        registers: What some of them hold: one element for each thread.
    """
    program = translate(KERNEL.format(text=text, uses=USES))
    rows = {name: program.row(f"%{name}") for name in NAMES}
    num_threads = max(len(value) for value in registers.values())
    files = {
        kind: np.zeros((program.register_counts[kind], num_threads), dtype)
        for kind, dtype in FILES.items()
    }
    for name, value in registers.items():
        kind, row = rows[name]
        files[kind][row] = value
    unwritten = np.zeros((program.register_counts["unwritten"], num_threads), bool)
    fragment = SimpleNamespace(
        cta=SimpleNamespace(**files, unwritten=unwritten),
        s=slice(0, num_threads),
        n=num_threads,
        spread=lambda x: np.broadcast_to(x, num_threads),
        selected=np.flatnonzero,
        warn=lambda at, kind, message: found.warnings.append(message),
    )
    found = Registers()
    found.warnings = []
    with np.errstate(all="ignore"):
        program.functions[0](fragment)
    found.update((name, files[kind][row].copy()) for name, (kind, row) in rows.items())
    return found


def s16(*values):
    """16-bit integers as a register file holds them."""
    return np.array([value & 0xFFFF for value in values], np.uint16)


def s32(*values):
    """32-bit integers as a register file holds them."""
    return np.array([value & 0xFFFFFFFF for value in values], np.uint32)


def s64(*values):
    """64-bit integers as a register file holds them."""
    return np.array([value & (2**64 - 1) for value in values], np.uint64)


def f16(*values):
    """The bits of f16."""
    return encode(np.array(values, np.float32), "f16")


def bf16(*values):
    """The bits of bf16."""
    return encode(np.array(values, np.float32), "bf16")


def f32(*values):
    """The bits of float32."""
    return np.array(values, np.float32).view(np.uint32)


def f64(*values):
    """The bits of float64."""
    return np.array(values, np.float64).view(np.uint64)


def numbers(bits, name):
    """The values of f16 or bf16 bits."""
    return decode(bits, name)
