# SPDX-License-Identifier: Apache-2.0
"""Kernels of a few tcgen05 instructions over memory that is filled at their start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.formats.descriptors import Descriptor, Operand, offsets
from jitgen.emulator.machine.cluster import Cluster
from jitgen.emulator.machine.cta import Cta
from jitgen.emulator.machine.machine import Launch, Machine
from jitgen.emulator.machine.tensor_memory import LANES, rectangle
from jitgen.emulator.modes import DEFERRED, EAGER, LATE_READERS, Mode, random_mode
from jitgen.emulator.program.translate import Program

BARRIER = "%r9"
"""Address of a barrier that kernels here use."""

START = f"""
mov.u32 %r0, %tid.x;
setp.eq.u32 %p0, %r0, 0;
mov.u32 {BARRIER}, %cluster_ctarank;
shl.b32 {BARRIER}, {BARRIER}, 24;
add.u32 {BARRIER}, {BARRIER}, 0x400;
@%p0 mbarrier.init.shared::cta.b64 [{BARRIER}], 1;
"""

WAIT = f"""
$L_wait:
mbarrier.try_wait.parity.shared::cta.b64 %p9, [{BARRIER}], 0;
@!%p9 bra $L_wait;
tcgen05.fence::after_thread_sync;
"""

_SWIZZLES = {0: 0, 3: 2, 2: 4, 1: 6}


def bits_of(descriptor: Descriptor) -> int:
    """Return the 64 bits of a matrix descriptor of tcgen05."""
    fields = (descriptor.start, 0), (descriptor.leading, 16), (descriptor.stride, 32)
    bits = sum(value // 16 << place for value, place in fields)
    return bits | 1 << 46 | _SWIZZLES[descriptor.swizzle] << 61


def instruction_bits(m: int, n: int, a: int = 0, b: int = 0, d: int = 1, more: int = 0) -> int:
    return d << 4 | a << 7 | b << 10 | n // 8 << 17 | m // 16 << 24 | more


class Watched(Program):
    """A program that writes every register back, so that tests can read it."""

    def is_private(self, register: str) -> bool:
        """Return False: every register counts as used by other blocks, too."""
        return False


class Kernel:
    """
    A kernel, its barrier initialised for one arrival, its tensor memory allocated.

    Attributes:
        machine, cluster: The machine and the cluster that run it.
    """

    def __init__(
        self,
        body: str,
        threads: int = 32,
        cluster: int = 1,
        mode: Mode = EAGER,
        columns: int = 512,
    ) -> None:
        sync = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
        text = f"{START}{sync}{body}\n{sync}ret;"
        text = f".version 8.8\n.target sm_100a\n.visible .entry kernel()\n{{\n{text}\n}}\n"
        launch = Launch(
            grid=(cluster, 1, 1),
            block=(threads, 1, 1),
            cluster=(cluster, 1, 1),
            shared_bytes=0x20000,
        )
        self.program = Watched(text)
        self.machine = Machine(self.program, None, launch, mode)  # type: ignore[arg-type]
        self.machine.not_started.clear()
        self.cluster = Cluster(self.machine, (0, 0, 0))
        self.machine.running.append(self.cluster)
        if columns:
            for cta in self.cluster.ctas:
                cta.tensor.allocate(0, columns)

    @property
    def cta(self) -> Cta:
        """The CTA of rank 0."""
        return self.cluster.ctas[0]

    def put(
        self, raw: NDArray[np.uint8], descriptor: Descriptor, operand: Operand, rank: int = 0
    ) -> None:
        """Put an operand, uint8 [rows, bytes], into shared memory."""
        self.cluster.ctas[rank].shared.put(offsets(descriptor, operand), raw)

    def fill(self, column: int, words: NDArray[np.uint32], rank: int = 0) -> None:
        """Put words [128, columns] into tensor memory."""
        cells = rectangle(np.arange(LANES), column, words.shape[1])
        self.cluster.ctas[rank].tensor.put(cells, words)

    def run(self) -> Kernel:
        """Run the kernel; tensor memory that a test leaves allocated is no finding here."""
        self.machine.run()
        for key in [key for key in self.machine.findings if key[0] == "exit tensor memory"]:
            del self.machine.findings[key]
        return self

    def words(self, rank: int = 0) -> NDArray[np.uint32]:
        """Return tensor memory, [128, 512]."""
        return self.cluster.ctas[rank].tensor.words

    def registers(self, prefix: str, count: int) -> NDArray[np.uint32]:
        """Return registers of CTA 0, [count, threads]."""
        rows = [self.program.row(f"%{prefix}{number}")[1] for number in range(count)]
        return self.cta.r[rows]

    @property
    def findings(self) -> list[str]:
        """What was found, as text."""
        return [str(finding) for finding in self.machine.findings.values()]


def at(descriptor: Descriptor, start: int) -> Descriptor:
    """Return a descriptor that starts elsewhere."""
    return replace(descriptor, start=start)


MODES = [EAGER, DEFERRED, LATE_READERS, random_mode(0), random_mode(1)]

A = Descriptor(start=0x2000, leading=16, stride=1024, swizzle=3)
B = at(A, 0x8000)

D_COLUMN, A_COLUMN, SCALE_A, SCALE_B = 0, 256, 300, 308

Raw = NDArray[np.uint8]


def random_raw(rows: int, seed: int) -> Raw:
    """Return 32 bytes for each row, the bits of no special number of any type in use here."""
    raw = np.random.default_rng(seed).integers(0, 256, (rows, 32), np.uint8)
    return raw & np.uint8(0xBB)


def mma(kind: str, idesc: int, ctas: int = 1, a: str = "%rd1", tail: str = "%p2") -> str:
    return (
        f"@%p0 tcgen05.mma.cta_group::{ctas}.kind::{kind} [{D_COLUMN}], {a}, %rd2, {idesc}, {tail};"
    )


def commit(ctas: int = 1) -> str:
    name = f"@%p0 tcgen05.commit.cta_group::{ctas}.mbarrier::arrive::one.shared::cluster"
    if ctas == 1:
        return f"{name}.b64 [{BARRIER}];"
    return f"{name}.multicast::cluster.b64 [{BARRIER}], 3;"


@dataclass
class Case:
    """
    One product.

    Attributes:
        mma: The instructions that multiply.
        a, b: Raw operands, of all CTAs.
        ctas: Number of CTAs.
        commit: PTX that commits the products; by default to the barriers of all CTAs.
        wait: PTX that waits for the end of the products.
        issuer: The CTA that multiplies and commits; %p3 says which thread does it in every CTA.
        a_at, b_at: Places of both operands in memory.
        a_operand, b_operand: What `Kernel.put` takes, of one CTA.
    """

    mma: str
    a: Raw
    b: Raw
    ctas: int = 1
    issuer: int = 0
    commit: str = ""
    wait: str = WAIT
    mode: Mode = EAGER
    a_at: Descriptor = A
    b_at: Descriptor = B
    operand: dict[str, Any] = field(default_factory=dict)
    prepare: Callable[[Kernel], None] = lambda _: None

    def run(self) -> Kernel:
        """Run it; every CTA waits until the product is there."""
        only = "setp.eq.u32 %p3, %r0, 0;\nmov.u32 %r2, %cluster_ctarank;\n"
        only += f"setp.eq.and.u32 %p0, %r2, {self.issuer}, %p0;"
        body = f"""{only}
        mov.b64 %rd1, {bits_of(self.a_at)};
        mov.b64 %rd2, {bits_of(self.b_at)};
        setp.eq.u32 %p1, 0, 0;
        setp.ne.u32 %p2, 0, 0;
        {self.mma}
        {self.commit or commit(self.ctas)}
        {self.wait}"""
        kernel = Kernel(body, cluster=self.ctas, mode=self.mode)
        for rank in range(self.ctas):
            for raw, where in ((self.a, self.a_at), (self.b, self.b_at)):
                part = np.split(raw, self.ctas)[rank]
                kernel.put(part, where, Operand(len(part), 32, **self.operand), rank)
        self.prepare(kernel)
        return kernel.run()


def accumulators(kernel: Kernel, n: int, rank: int = 0) -> NDArray[np.float32]:
    return kernel.words(rank)[:, :n].copy().view(np.float32)


def assert_near(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Assert that values are equal up to the error of float32 sums in any order."""
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
