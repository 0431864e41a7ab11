# SPDX-License-Identifier: Apache-2.0
"""Mistakes in the list of contiguous tiles that have rows, whatever their height is."""

from __future__ import annotations

from tests.compile.mutations import Edit, Mutation, drop, rewrite


def _listed(name: str, edit: Edit, kind: str, *names: str, program: str = "live tiles") -> Mutation:
    return Mutation(name=name, program=program, edit=edit, kind=kind, names=names)


def _of_source(
    name: str, old: str, new: str, kind: str, *names: str, program: str = "live tiles"
) -> Mutation:
    edit = rewrite((old, new))
    return Mutation(name=name, program=program, edit=edit, kind=kind, names=names, of_source=True)


LIVE_TILES = (
    _listed(
        "tiles with rows are moved together before all are looked at",
        drop("(bar.sync 0;)\nsetp.gt.u32 %p#, %r#, 31;"),
        "race",
        "st.shared.b32",
        "ld.shared.b32",
    ),
    _listed(
        "the list of tiles is read too early",
        drop("(bar.sync 0;)\nld.shared.b32 %r#, [%r#+#];\nsub.s32"),
        "race",
        "st.shared.b32",
        "ld.shared.b32",
    ),
    _listed(
        "a lane moves a tile to where another has yet to read",
        drop("vote.sync.ballot.b32 %r#, %p#, -1;\n(bar.warp.sync -1;)"),
        "convergence",
        "ld.shared.b32",
        "st.shared.b32",
    ),
    _of_source(
        "all parts of a warp look at one tile",
        "first, own = of_warp + part, Int32(0)",
        "first, own = of_warp, Int32(0)",
        "uninitialised",
        "never written",
        "list_live_tiles",
    ),
    _of_source(
        "a part of a warp takes the votes of its neighbour",
        "vote_ballot_sync(has_row) >> part * width",
        "vote_ballot_sync(has_row) >> (part ^ 1) * width",
        "wrong",
    ),
    _of_source(
        "the second tile that a warp looks at is the first one again",
        "starts = [(first + i * at_once) * TILE_M",
        "starts = [first * TILE_M",
        "wrong",
        program="live tiles, more than at once",
    ),
    _of_source(
        "tiles that the list has no room for are dealt from its end on",
        "place + order.num_skipped",
        "place",
        "wrong",
        program="live tiles, more than entries",
    ),
)
