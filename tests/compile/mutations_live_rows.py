# SPDX-License-Identifier: Apache-2.0
"""Mistakes in how much of a contiguous tile is loaded and multiplied beside MXFP4 weights."""

from __future__ import annotations

from tests.compile.mutations import Mutation, rewrite


def _written(name: str, old: str, new: str, kind: str, *names: str) -> Mutation:
    return Mutation(
        name=name,
        program="live rows",
        edit=rewrite((old, new)),
        kind=kind,
        names=names,
        of_source=True,
    )


LIVE_ROWS = (
    _written(
        "the last row of a tile is left out",
        "end = start + width - cute.arch.clz(lanes)",
        "end = start + width - 1 - cute.arch.clz(lanes)",
        "wrong",
    ),
    _written(
        "rows behind one of padding are left out",
        "cute.arch.clz(lanes)",
        "cute.arch.clz(lanes & ~(lanes + 1))",
        "wrong",
    ),
    _written(
        "fewer rows are loaded than multiplied",
        "state = load_live(schedule, wider(width), loads, state, a, b, scales, work)",
        "state = load_rows(schedule, width, loads, state, a, b, work)",
        "uninitialised",
        "wgmma.mma_async",
    ),
    _written(
        "bytes are announced of rows that are not loaded",
        "expect_tx(full, STAGE_BYTES - missing)",
        "expect_tx(full, STAGE_BYTES)",
        "deadlock",
        "bytes pending",
    ),
)
"""
Mistakes in a kernel whose tiles are loaded and multiplied with a quarter, half or all of their
rows.
"""
