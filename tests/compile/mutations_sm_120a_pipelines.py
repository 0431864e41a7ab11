# SPDX-License-Identifier: Apache-2.0
"""The pipeline of sm_120a: places, phases, bytes, waits, and what is given back too early."""

from __future__ import annotations

from tests.compile.mutations import WAIT, drop
from tests.compile.mutations_sm_100a import ptx, source
from tests.compile.mutations_sm_120a import CONTIGUOUS, FULL, LOW, MIXED, PROMOTED

_RELEASE = "        cute.arch.sync_warp()\n        loads.consumer_release(state)\n"
_WAIT = "        loads.consumer_wait(state)\n"

PIPELINES = (
    source(
        MIXED,
        "the load warp's pipeline is one stage shorter",
        "deadlock",
        ("PipelineUserType.Producer, NUM_STAGES)", "PipelineUserType.Producer, NUM_STAGES - 1)"),
    ),
    source(
        MIXED,
        "the math warps' pipeline is one stage longer",
        "fault",
        ("PipelineUserType.Consumer, NUM_STAGES)", "PipelineUserType.Consumer, NUM_STAGES + 1)"),
    ),
    source(
        MIXED,
        "the math warps' first phase is that of who fills",
        "deadlock",
        ("PipelineUserType.Consumer, NUM_STAGES)", "PipelineUserType.Producer, NUM_STAGES)"),
    ),
    source(
        MIXED,
        "the load warp's first phase is that of who reads",
        "deadlock",
        ("PipelineUserType.Producer, NUM_STAGES)", "PipelineUserType.Consumer, NUM_STAGES)"),
    ),
    source(
        MIXED,
        "math warps stay at their stage",
        "deadlock",
        (_RELEASE + "        state.advance()\n", _RELEASE),
    ),
    source(
        PROMOTED,
        "math warps that promote stay at their stage",
        "deadlock",
        (_RELEASE + "        state.advance()\n", _RELEASE),
    ),
    source(
        MIXED,
        "the load warp stays at its stage",
        "deadlock",
        ("            state.advance()\n        position", "        position"),
    ),
    source(
        MIXED,
        "the state of the pipeline does not outlive a tile",
        "deadlock",
        ("        state = sum_tile(", "        sum_tile("),
    ),
    source(
        MIXED,
        "more bytes are expected than arrive",
        "deadlock",
        ("tx_count=STAGE_BYTES", "tx_count=STAGE_BYTES + 16"),
    ),
    source(
        MIXED,
        "fewer bytes are expected than arrive",
        "deadlock",
        ("tx_count=STAGE_BYTES", "tx_count=STAGE_BYTES - 16"),
    ),
    source(
        PROMOTED,
        "the pitch of activation scales is expected, not their bytes",
        "deadlock",
        ("SCALE_BYTES = SCALE_BOX * 4", "SCALE_BYTES = SCALE_PITCH * 4"),
    ),
    source(
        LOW,
        "whole atoms of the scales of a are expected",
        "deadlock",
        ("(SCALE_BLOCKS * SCALE_LINES + 32) * 16", "(SCALE_BLOCKS * 32 + 32) * 16"),
    ),
    source(
        MIXED,
        "a stage is free when all math warps but one gave it back",
        "fault",
        ("        MATH_WARPS,\n        tx_count", "        MATH_WARPS - 1,\n        tx_count"),
    ),
    source(
        MIXED,
        "a stage is free when more warps gave it back than multiply",
        "deadlock",
        ("        MATH_WARPS,\n        tx_count", "        MATH_WARPS + 1,\n        tx_count"),
    ),
    source(MIXED, "full stages are not waited for", "deadlock", (_WAIT, "")),
    source(
        PROMOTED, "full stages are not waited for where they are promoted", "deadlock", (_WAIT, "")
    ),
    source(
        MIXED,
        "free stages are not waited for",
        "deadlock",
        ("            loads.producer_acquire(state)\n", ""),
    ),
    source(
        MIXED,
        "a stage is given back before it is read",
        "race",
        (_RELEASE, ""),
        (_WAIT, _WAIT + _RELEASE),
    ),
    source(
        PROMOTED,
        "a stage is given back before its scales are read",
        "race",
        (_RELEASE, ""),
        (_WAIT, _WAIT + _RELEASE),
    ),
    source(MIXED, "a stage is never given back", "deadlock", (_RELEASE, "")),
    source(
        MIXED,
        "the load warp begins with the second k-block",
        "wrong",
        ("*k_block(b_copies, k, state.index)", "*k_block(b_copies, k + 1, state.index)"),
    ),
    source(
        MIXED,
        "a is loaded to the next stage",
        "race",
        (
            "*k_block(a_copies, k, state.index)",
            "*k_block(a_copies, k, (state.index + 1) % NUM_STAGES)",
        ),
    ),
    source(
        MIXED,
        "a k-block is left out",
        "deadlock",
        (
            "    for k in cutlass.range(schedule.num_k_blocks, unroll=1):",
            "    for k in cutlass.range(schedule.num_k_blocks - 1, unroll=1):",
        ),
    ),
    source(
        MIXED,
        "the tail of K is no k-block",
        "wrong",
        (
            "cute.ceil_div(cute.size(mA, mode=[1]), A_ROW_BYTES)",
            "cute.size(mA, mode=[1]) // A_ROW_BYTES",
        ),
    ),
    source(
        MIXED,
        "shared memory has one stage less of a",
        "fault",
        (
            "cute.struct.MemRange[Uint8, TILE_M * A_ROW_BYTES * NUM_STAGES]",
            "cute.struct.MemRange[Uint8, TILE_M * A_ROW_BYTES]",
        ),
    ),
    source(
        MIXED,
        "shared memory has half of the scales of b",
        "race",
        ("MemRange[Int32, 128 * SCALE_WORDS", "MemRange[Int32, 64 * SCALE_WORDS"),
    ),
    source(
        CONTIGUOUS,
        "tiles without rows of a group are loaded",
        "deadlock",
        ("schedule.num_k_blocks if work.is_valid else 0", "schedule.num_k_blocks"),
    ),
    source(
        FULL,
        "math warps ask for more registers than there are",
        "deadlock",
        ("MATH_REGISTERS = 232", "MATH_REGISTERS = 240"),
    ),
    source(
        FULL,
        "idle warps keep their registers",
        "deadlock",
        (
            """        cute.arch.setmaxregister_decrease(LOAD_REGISTERS)
        if warp_index == MATH_WARPS:
""",
            """        if warp_index == MATH_WARPS:
            cute.arch.setmaxregister_decrease(LOAD_REGISTERS)
""",
        ),
    ),
    ptx(
        LOW,
        "the kernel before is not waited for",
        "race",
        drop("(griddepcontrol.wait;)"),
        names=("before griddepcontrol.wait",),
    ),
    ptx(
        LOW,
        "stages are given back without an arrival",
        "deadlock",
        drop("(mbarrier.arrive.shared.b64 %rd#, [%r#+#], %r#;)"),
    ),
    ptx(
        LOW,
        "math warps do not wait",
        "deadlock",
        drop(f"({WAIT})", count=1),
    ),
)
