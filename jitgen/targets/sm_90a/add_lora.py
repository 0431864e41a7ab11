# SPDX-License-Identifier: Apache-2.0
"""Rules of sm_90a for `add_lora`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from math import ceil

from jitgen.config.add_lora import AddLoraConfig, AddLoraProblem, Tiling
from jitgen.targets.base import Cost
from jitgen.targets.protocol import Device, refuse_unless
from jitgen.targets.sm_90a.streams import WARP, StreamRules, share_of
from jitgen.targets.sums import SumOrder

VECTOR = 8
"""Values that a lane reads at once: 16 bytes."""

WINDOW = 32
"""
Number of consecutive rows; those of them with the same adapter and the same expert are computed by
one CTA.
"""

ROWS = 8
"""Rows of x that an instruction multiplies."""

_SIDES = {
    "threads": (128, 256, 512),
    "ctas_per_sm": (1, 2, 3),
}
"""
An SM has shared memory for as many CTAs as for registers: of 61, 109 and 205 KB, with 128, 256 and
512 threads.
"""

_NEEDED = 128
"""
Registers of a thread with which the compiler spills nothing. Found by compiling with
nvidia-cutlass-dsl 4.8.1.
"""

_TILINGS = (Tiling(), Tiling(threads=512, ctas_per_sm=1))

_CALL_US, _LATENCY_US, _BYTES_PER_US, _WARP_BYTES_PER_US = 3.0, 0.7, 3.6e6, 4.5e3
"""
Microseconds of a launch and of a load from memory, and the rates of memory and of a warp with all
its loads under way, on an H200: on paper.
"""


class AddLora(StreamRules[AddLoraConfig, AddLoraProblem]):
    """Rules of the `add_lora` kernels, their candidates and their cost model."""

    row_edges: tuple[int, ...] = (1, 4, 16, 64, 256, 1024, 4096, 16384)
    sums = SumOrder(
        words="16 columns in one instruction, every sixteenth 128 of x in turn, then these sums",
        free=("by_row", "tiling"),
    )
    entry = "sm90/add_lora.py.jinja"
    usual = AddLoraConfig()
    sides = span = _SIDES
    listed = _TILINGS
    note = "the model is on paper: nothing was measured"

    def needed(self, config: AddLoraConfig) -> int:
        """Return the registers that a thread needs."""
        return _NEEDED

    def work_words(self, config: AddLoraConfig) -> str:
        """Describe the loads that a warp has in flight, for errors."""
        return "a warp's tiles"

    def thread_bytes(self, config: AddLoraConfig) -> int:
        """
        Return the bytes of all loads that a thread has in flight at the same time: its share of two
        stages, in which a warp has 16 vectors of each of 24 rows.
        """
        return 2 * 16 * 24 * 2 * VECTOR // WARP

    def check_flags(self, config: AddLoraConfig) -> None:
        """Refuse an early kernel that starts when the previous kernel has ended."""
        refuse_unless(
            config.tiling.use_pdl or not config.tiling.early,
            "E_EARLY",
            "early without use_pdl: such a kernel starts when the one before has ended, so that "
            "nothing is early; it needs use_pdl",
        )

    def cost(
        self, problem: AddLoraProblem, config: AddLoraConfig, device: Device, num_sms: int
    ) -> Cost:
        """
        Estimate the time of `config`, on paper: its launch, bytes at the rate of memory, and what
        CTAs take one after the other, at the rate of their warps.
        """
        tiling, rows = config.tiling, problem.rows
        sharing = min(WINDOW, max(1.0, rows / (problem.adapters * problem.experts)))
        ctas = rows / sharing  # that do something
        bytes_of_cta = problem.matrix_bytes * ceil(sharing / ROWS)
        bytes_us = ctas * bytes_of_cta / (_BYTES_PER_US * share_of(device, num_sms))
        rate = _WARP_BYTES_PER_US * tiling.threads / WARP
        waves = ceil(ctas / (num_sms * tiling.ctas_per_sm))
        alone_us = waves * (3 * _LATENCY_US + bytes_of_cta / rate)
        return Cost(_CALL_US + bytes_us + alone_us, waves)

    def check_sizes(self, problem: AddLoraProblem) -> None:
        """Raise a Refusal if a row of x, or a part of a row of y, is not whole vectors."""
        for name, size, multiple in (
            ("K", problem.k, VECTOR),
            ("N", problem.n, VECTOR * problem.parts),
        ):
            refuse_unless(
                size % multiple == 0,
                "E_SIZE",
                f"must have {name} a multiple of {multiple} on {self.arch} (got {size})",
            )
