# SPDX-License-Identifier: Apache-2.0
"""Operands in shared memory and small kernels, to test wgmma with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.formats import fragments, numbers
from jitgen.emulator.formats.descriptors import Descriptor, Operand, offsets
from jitgen.emulator.machine.cluster import Cluster
from jitgen.emulator.machine.global_memory import GlobalMemory
from jitgen.emulator.machine.machine import Launch, Machine
from jitgen.emulator.modes import EAGER, LATE_READERS, Mode, random_mode
from tests.emulator.program import Watched

MODES = [EAGER, LATE_READERS, random_mode(0), random_mode(1), random_mode(2)]

A_START, B_START = 0x2000, 0x8000
SHARED_BYTES = 0x10000
CODES = {0: 0, 3: 1, 2: 2, 1: 3}
BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}

FENCE = "wgmma.fence.sync.aligned;\n"
COMMIT = "wgmma.commit_group.sync.aligned;\n"
WAIT = "wgmma.wait_group.sync.aligned 0;\n"


# --- operands in shared memory, and kernels ------------------------------------------------------


class Matrix:
    """A random operand: its values [rows, K], where it is and what names it."""

    def __init__(
        self,
        start: int,
        rows: int,
        kind: str,
        *,
        swizzle: int = 3,
        is_mn_major: bool = False,
        seed: int = 0,
    ) -> None:
        size, width = BYTES[kind], 16 << swizzle
        self.operand = Operand(rows, 32, size, is_mn_major)
        descriptor = Descriptor(start, *self._strides(width), swizzle)
        self.where = offsets(descriptor, self.operand)
        self.raw = _random(kind, rows * 32 // size, seed).view(np.uint8).reshape(rows, 32)
        self.values = numbers.elements(self.raw, kind)
        fields = start // 16 | descriptor.leading // 16 << 16 | descriptor.stride // 16 << 32
        self.bits = fields | CODES[swizzle] << 62

    def _strides(self, width: int) -> tuple[int, int]:
        """Leading and stride offset of a dense operand."""
        if not self.operand.is_mn_major:
            return (self.operand.rows * 16, 128) if width == 16 else (16, 8 * width)
        if width == 16:
            return self.operand.rows * self.operand.element_bytes * 8, 128
        k = 32 // self.operand.element_bytes
        return k * width, 8 * width


def _random(kind: str, count: int, seed: int) -> NDArray[Any]:
    """Return codes of small numbers with a few bits, so that sums are exact."""
    chance = np.random.default_rng(seed)
    small = chance.integers(-4, 5, count).astype(np.float32)
    if kind in {"s8", "u8"}:
        return chance.integers(0, 256, count, np.uint8)
    return numbers.encode(small, kind)


class Kernel:
    """A kernel over operands that are in shared memory at its start."""

    def __init__(
        self, body: str, *matrices: Matrix, threads: int = 128, mode: Mode = EAGER
    ) -> None:
        text = f".version 8.8\n.target sm_90a\n.visible .entry kernel()\n{{\n{body}\nret;\n}}\n"
        self.program = Watched(text)
        launch = Launch(
            grid=(1, 1, 1), block=(threads, 1, 1), cluster=(1, 1, 1), shared_bytes=SHARED_BYTES
        )
        self.machine = Machine(self.program, GlobalMemory(), launch, mode)
        self.machine.not_started.clear()
        self.cta = self._start()
        for matrix in matrices:
            self.cta.shared.put(matrix.where, matrix.raw)
        self.machine.run()

    def _start(self) -> Any:
        cluster = Cluster(self.machine, (0, 0, 0))
        self.machine.running.append(cluster)
        return cluster.ctas[0]

    def registers(self, count: int, first: int = 0) -> NDArray[np.uint32]:
        rows = [self.program.row(f"%r{first + i}")[1] for i in range(count)]
        found: NDArray[np.uint32] = self.cta.r[rows]
        return found

    def result(self, columns: int) -> NDArray[np.float32]:
        return fragments.matrix_of(self.registers(columns // 2).view(np.float32))

    @property
    def findings(self) -> list[str]:
        return [finding.kind for finding in self.machine.findings.values()]


def vector(count: int, first: int = 0) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


def product(
    shape: str = "m64n16k16.f32.f16.f16",
    registers: int = 8,
    *,
    a: str = "%rd1",
    is_added: int = 0,
    rest: str = "1, 1, 0, 0",
    first: int = 0,
) -> str:
    name = f"wgmma.mma_async.sync.aligned.{shape}"
    rest = f", {rest}" if rest else ""
    return f"{name} {vector(registers, first)}, {a}, %rd2, {is_added}{rest};\n"


def descriptors(a: Matrix | None, b: Matrix) -> str:
    loads = f"mov.b64 %rd2, {b.bits:#x};\n"
    return loads if a is None else loads + f"mov.b64 %rd1, {a.bits:#x};\n"
