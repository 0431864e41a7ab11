# SPDX-License-Identifier: Apache-2.0
"""
What ptxas makes of the menu of sm_100a: no spills in a loop, no loop around single instructions,
and no more instructions in the loops over k-blocks than are written here.
"""

from __future__ import annotations

from functools import cache

import pytest

from jitgen.codegen.render import render
from jitgen.compile import compiler, inspect
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, Operands, Schedule
from tests import needs
from tests.candidates import candidates
from tests.compile.kernels import often
from tests.sass import Loop, k_loop, loops, wrapped

pytestmark = [
    needs.compiler,
    pytest.mark.skipif(inspect._nvdisasm() is None, reason="needs nvdisasm: jitgen[inspect]"),
]

SM_100A = Arch("sm_100a")
MENU = [config for layout in Layout for config in candidates(SM_100A, layout, Operands())]
OFTEN = {
    config
    for config in MENU
    if config.layout is Layout.CONTIGUOUS
    and config.schedule == Schedule(two_cta=True)
    and config.tile.n == 128
}
"""
One that large problems take, for every push. It has a loop of 64 steps, against which the compiler
warns: a process that takes warnings for errors used to get no kernel.
"""

WIDE = 192
"""Columns from which on a thread's totals leave it too few registers between the loops."""

SPILLED_BYTES = 8
"""Of a thread of a wide tile: a word that no k-block needs, and what it is aligned to."""

MULTIPLY = 48
"""Instructions of the MMA warp for each k-block: four of the tensor core, and two commits."""

LOAD_WHOLE, LOAD_PARTS = 46, 80
"""Of the load warp: without parts of a; and with them, of which some are skipped for each tile."""

UPDATE_PACKED = {64: 51, 128: 70, 192: 100, 256: 108}
"""Of an update warp by the columns of a tile, where two multiply-adds are one instruction."""

UPDATE = {64: 66, 128: 101, 192: 148, 256: 181}
"""The same, where they are not."""


@cache
def disassembly(config: GroupedGemmConfig) -> str:
    return inspect.sass(_library(config))


@cache
def _library(config: GroupedGemmConfig) -> bytes:
    made = compiler.compile_source(render(config, SM_100A), links=False)
    return made.files[made.library]


@pytest.mark.parametrize("config", often(MENU, OFTEN, lambda config: config.name(SM_100A)))
class TestMenu:
    def test_spills(self, config: GroupedGemmConfig) -> None:
        """None; a wide tile may keep a word aside, and does not touch it in a k-block."""
        found = inspect.resources(_library(config))

        assert found.stack_bytes <= (SPILLED_BYTES if config.tile.n >= WIDE else 0)
        for name in ("LDTM", "UTCQMMA", "UTMALDG"):
            loop = k_loop(disassembly(config), name)
            assert loop.count("LDL") == loop.count("STL") == 0, name

    def test_no_loop_around_single_instructions(self, config: GroupedGemmConfig) -> None:
        assert wrapped(disassembly(config)) == []

    def test_instructions_of_a_k_block(self, config: GroupedGemmConfig) -> None:
        """As few as they were; fewer are welcome."""
        text, columns = disassembly(config), config.tile.n
        is_packed = config.layout is Layout.RAGGED
        update = k_loop(text, "LDTM")

        assert len(k_loop(text, "UTCQMMA")) <= MULTIPLY
        assert k_loop(text, "UTCQMMA").count("UTCQMMA") == 4
        assert len(k_loop(text, "UTMALDG")) <= (
            LOAD_WHOLE if config.layout is Layout.CONTIGUOUS else LOAD_PARTS
        )
        assert len(update) <= (UPDATE_PACKED if is_packed else UPDATE)[columns]
        assert update.count("FFMA2") == (columns // 4 if is_packed else 0)


def listing(*lines: str) -> str:
    """A disassembly of instructions and labels."""
    return "\n".join(
        line if line.endswith(":") else f"        /*{16 * i:04x}*/  {line} ;"
        for i, line in enumerate(lines)
    )


class TestListing:
    """Loops in a disassembly."""

    def test_loops_are_backward_branches(self) -> None:
        text = listing(
            *(".L_x_1:", "LDS R1, [R2]", ".L_x_2:", "@!P0 FFMA R1, R1, R1, R1"),
            *("@P0 BRA `(.L_x_2)", "BRA `(.L_x_3)", "BRA.U UP0, `(.L_x_1)", ".L_x_3:", "EXIT"),
        )

        assert loops(text) == [
            Loop(names=("FFMA", "BRA")),
            Loop(names=("LDS", "FFMA", "BRA", "BRA", "BRA")),
        ]

    def test_short_loops_around_copies_are_wrapped(self) -> None:
        def loop(length: int, name: str) -> str:
            return listing(".L_x_1:", *["NOP"] * (length - 2), name, "@P0 BRA `(.L_x_1)")

        assert len(wrapped(loop(13, "UTMALDG.2D [UR8], [UR4]"))) == 1
        assert len(wrapped(loop(13, "UTCQMMA gdesc[UR4], gdesc[UR6], tmem[UR8]"))) == 1
        assert wrapped(loop(14, "UTMALDG.2D [UR8], [UR4]")) == []
        assert wrapped(loop(13, "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR5], R4")) == []
        assert len(k_loop(loop(14, "UTMALDG.2D [UR8], [UR4]"), "UTMALDG")) == 14
