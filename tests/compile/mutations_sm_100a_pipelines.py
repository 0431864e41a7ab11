# SPDX-License-Identifier: Apache-2.0
"""Rings of sm_100a: places, phases, bytes, waits, and what is given back too early."""

from __future__ import annotations

from tests.compile.mutations import drop
from tests.compile.mutations_sm_100a import (
    ONE,
    PAIR,
    ptx,
    source,
)

_MULTIPLY = "            multiply(mmas, operands, acc[None, None, None, total.index], load.index)"

PIPELINES = (
    source(
        ONE,
        "the load warp's pipeline of operands is one stage shorter",
        "deadlock",
        (
            "make_pipeline_state(pipeline.PipelineUserType.Producer, NUM_STAGES)",
            "make_pipeline_state(pipeline.PipelineUserType.Producer, NUM_STAGES - 1)",
        ),
    ),
    source(
        ONE,
        "the MMA warp's pipeline of operands is one stage longer",
        "deadlock",
        (
            "make_pipeline_state(pipeline.PipelineUserType.Consumer, NUM_STAGES)",
            "make_pipeline_state(pipeline.PipelineUserType.Consumer, NUM_STAGES + 1)",
        ),
    ),
    source(
        PAIR,
        "the update warps' pipeline of sums is one stage shorter",
        "deadlock",
        (
            "make_pipeline_state(consumer, NUM_ACC_STAGE)",
            "make_pipeline_state(consumer, NUM_ACC_STAGE - 1)",
        ),
    ),
    source(
        PAIR,
        "the pipeline of activation scales is one slot shorter where they are read",
        "deadlock",
        (
            "make_pipeline_state(consumer, SCALE_STAGES)",
            "make_pipeline_state(consumer, SCALE_STAGES - 1)",
        ),
    ),
    source(
        ONE,
        "the MMA warp's first phase is that of who fills",
        "deadlock",
        (
            "load = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer",
            "load = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer",
        ),
    ),
    source(
        PAIR,
        "the MMA warp's first phase of sums is that of who reads",
        "deadlock",
        (
            "total = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer",
            "total = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer",
        ),
    ),
    source(
        ONE,
        "the MMA warp stays at its stage of sums",
        "deadlock",
        ("            total.advance()\n", ""),
    ),
    source(
        PAIR,
        "the load warp stays at its slot of activation scales",
        "deadlock",
        ("            scale.advance()\n        position", "        position"),
    ),
    source(
        PAIR,
        "the bytes of one CTA are expected",
        "deadlock",
        ("expected_tx=copies.stage_bytes", "expected_tx=copies.stage_bytes // 2"),
    ),
    source(
        PAIR,
        "the bytes of whole tiles are expected, whatever is loaded",
        "deadlock",
        (
            "loads.producer_acquire(state, expected_tx=copies.stage_bytes)",
            "loads.producer_acquire(state)",
        ),
    ),
    source(
        PAIR,
        "the even CTA counts its own parts twice",
        "deadlock",
        (
            "all_parts = live_parts(work.row, work) + live_parts(work.row + ROWS, work)",
            "all_parts = 2 * num_parts",
        ),
    ),
    source(
        ONE,
        "the bytes of whole tiles are expected of one CTA",
        "deadlock",
        (
            "stage_bytes = STAGE_BYTES - (A_PARTS - num_parts) * (PART_M * ROW_BYTES)",
            "stage_bytes = Int32(STAGE_BYTES)",
        ),
    ),
    source(
        ONE,
        "the pitch of activation scales is expected, not their bytes",
        "deadlock",
        ("tx_count=SCALE_BOX * 4", "tx_count=SCALE_PITCH * 4"),
    ),
    source(
        PAIR,
        "one part of a is forgotten",
        "deadlock",
        ("range_constexpr(A_PARTS - 1)", "range_constexpr(A_PARTS - 2)"),
    ),
    source(
        ONE,
        "whole tiles are loaded where parts are expected",
        "deadlock",
        ("if copies.num_parts == A_PARTS:", "if copies.num_parts > 0:"),
    ),
    source(
        ONE,
        "parts of a land on the first one",
        "race",
        ("stage * A_PARTS + i", "stage * A_PARTS"),
        names=("copy_a",),
    ),
    source(
        ONE,
        "operands are not waited for",
        "deadlock",
        ("            loads.consumer_wait(load)\n", ""),
    ),
    source(
        PAIR, "sums are not waited for", "deadlock", ("            sums.consumer_wait(done)\n", "")
    ),
    source(
        PAIR,
        "free sums are not waited for",
        "deadlock",
        ("            sums.producer_acquire(total)\n", ""),
    ),
    source(
        ONE,
        "activation scales are not waited for",
        "deadlock",
        ("            scales.rows.consumer_wait(row_scale)\n", ""),
    ),
    source(
        ONE,
        "weight scales are not waited for",
        "deadlock",
        ("        scales.pipeline.consumer_wait(scale)\n", ""),
    ),
    source(
        ONE,
        "free slots of weight scales are not waited for",
        "race",
        ("        scales.pipeline.producer_acquire(state)\n", ""),
        names=("accumulate",),
    ),
    ptx(
        ONE,
        "reads of tensor memory are not waited for",
        "race",
        drop("(tcgen05.wait::ld.sync.aligned;)"),
        names=("read_sums",),
    ),
    source(
        PAIR,
        "sums are given back before they are read",
        "race",
        (
            (
                "            read_sums(read, half, 0, done.index, part)\n"
                "            give_back(sums, done)\n"
            ),
            (
                "            give_back(sums, done)\n"
                "            read_sums(read, half, 0, done.index, part)\n"
            ),
        ),
        names=("read_sums",),
    ),
    source(
        ONE,
        "activation scales are given back before they are read",
        "race",
        (
            "            a_scale = scales.a_scale.smem[row, 0, row_scale.index]\n            sums",
            (
                "            scales.rows.consumer_release(row_scale)\n"
                "            a_scale = scales.a_scale.smem[row, 0, row_scale.index]\n"
                "            sums"
            ),
        ),
        (
            "            scales.rows.consumer_release(row_scale)\n            column",
            "            column",
        ),
        names=("accumulate",),
    ),
    source(
        ONE,
        "weight scales are given back before they are read",
        "race",
        ("        give_back(scales.pipeline, scale)\n", ""),
        (
            "        num_blocks = cutlass.min(schedule.num_k_blocks - first, SCALE_CHUNK)\n",
            (
                "        num_blocks = cutlass.min(schedule.num_k_blocks - first, SCALE_CHUNK)\n"
                "        give_back(scales.pipeline, scale)\n"
            ),
        ),
        names=("accumulate",),
    ),
    source(
        ONE,
        "a warp gives back what its other lanes still read",
        "race",
        (
            (
                "    cute.arch.sync_warp()\n"
                "    if cute.arch.lane_idx() == 0:\n"
                "        read_pipeline.consumer_release(state)"
            ),
            "    if cute.arch.lane_idx() == 0:\n        read_pipeline.consumer_release(state)",
        ),
        names=("take_tile",),
    ),
    source(
        ONE,
        "a stage is given back before its products",
        "race",
        (
            (f"{_MULTIPLY}\n            loads.consumer_release(load)\n"),
            (f"            loads.consumer_release(load)\n{_MULTIPLY}\n"),
        ),
        names=("multiply",),
    ),
    source(
        ONE,
        "sums are handed over before their products",
        "race",
        (
            (
                f"{_MULTIPLY}\n"
                "            loads.consumer_release(load)\n"
                "            sums.producer_commit(total)\n"
            ),
            (
                "            sums.producer_commit(total)\n"
                f"{_MULTIPLY}\n"
                "            loads.consumer_release(load)\n"
            ),
        ),
        names=("multiply",),
    ),
    source(
        PAIR,
        "the kernel before is not waited for",
        "race",
        ("    cute.arch.griddepcontrol_wait()  # before", "    pass  # before"),
        names=("rows_of",),
    ),
    source(
        ONE,
        "free slots of activation scales are not waited for",
        "deadlock",
        (
            (
                "            rows.producer_acquire(scale)\n"
                "            full = rows.producer_get_barrier(scale)\n"
            ),
            (
                "            full = rows.producer_get_barrier(scale)\n"
                "            with cute.arch.elect_one():\n"
                "                cute.arch.mbarrier_arrive_and_expect_tx(full, SCALE_BOX * 4)\n"
            ),
        ),
    ),
)
