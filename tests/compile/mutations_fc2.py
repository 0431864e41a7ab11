# SPDX-License-Identifier: Apache-2.0
"""Mistakes in how experts are found, listed, handed over and weighted."""

from __future__ import annotations

from tests.compile.mutations import LOAD, WAIT, Edit, Mutation, drop, plus, swap


def _fc2(name: str, edit: Edit, kind: str, *names: str) -> Mutation:
    """Return a mistake in a kernel with the experts along K."""
    return Mutation(name=name, program="FC2", edit=edit, kind=kind, names=names)


def _many(name: str, edit: Edit, kind: str, *names: str) -> Mutation:
    """Return a mistake in a kernel with the experts along K that only many experts show."""
    return Mutation(name=name, program="FC2, many experts", edit=edit, kind=kind, names=names)


def _few(name: str, edit: Edit, kind: str, *names: str) -> Mutation:
    """Return a mistake in a kernel with the experts along K that tiles of a single chunk show."""
    return Mutation(name=name, program="FC2, few experts", edit=edit, kind=kind, names=names)


EXPERTS = (
    _fc2(
        "an expert counts if all tokens have it",
        swap("vote.sync.(any)", "all"),
        "wrong",
    ),
    _fc2(
        "one expert of those that are looked at counts always",
        swap("(vote.sync.any.pred) (%p#), (%p#), -1;", "setp.eq.u32", r"\2", "0, 0, 0 //", count=1),
        "wrong",
    ),
    _fc2(
        "an expert is listed in the place of the next",
        swap("st.shared.b32 [%r#+(#)], %r#;...vote.sync.any", plus(4), count=1),
        "uninitialised",
        "ld.shared",
    ),
    _many(
        "the list is half as long",
        swap("and.b32 %r#, %r#, (1073741760);", "1073741792"),
        "wrong",
    ),
    _few(
        "experts of a tile are listed before lanes have read those of the one before",
        drop("(bar.warp.sync -1;)\nsetp.neu"),
        "convergence",
        "hand_over_chunk",
        "list_experts",
    ),
    _fc2(
        "lanes read the list before it is written",
        drop("vote.sync.any...(bar.warp.sync -1;)\nmul"),
        "convergence",
        "list_experts",
        "hand_over_chunk",
    ),
    _fc2(
        "a chunk is not the last one",
        swap("st.shared.v2.b32 [%r#+#], {%r#, (1)};", "0"),
        "deadlock",
        "every thread waits",
    ),
    _many(
        "every chunk is the last one",
        swap("st.shared.v2.b32 [%r#+#], {%r#, (0)};", "1"),
        "deadlock",
        "every thread waits",
        "hand_over_chunk",
    ),
    _fc2(
        "the load warp does not wait for a chunk",
        drop(f"({WAIT})...ld.shared.v2"),
        "uninitialised",
        "ld.shared",
    ),
    _many(
        "the load warp gives a chunk back twice",
        swap(f"({LOAD})...(mbarrier.arrive.shared.b64 %rd#, [%r#+#], %r#;)", r"\1", r"\2 \2"),
        "exit",
        "left in the middle of a phase",
    ),
    _fc2(
        "alpha is not loaded",
        drop(f"({LOAD}.2d.shared::cta...;)"),
        "deadlock",
        "bytes pending",
    ),
    _fc2(
        "alpha is that of the tokens four rows on",
        swap("ld.shared.b32 %r#, [%r#+(#)];\nmul", plus(16)),
        "wrong",
    ),
    _fc2(
        "bytes of alpha are not expected",
        swap("add.s32 %r#, %r#, (8704);", "8448"),
        "deadlock",
        "bytes pending",
    ),
)
