# SPDX-License-Identifier: Apache-2.0
"""Counts, addresses and descriptors that are wrong."""

from __future__ import annotations

from tests.compile.mutations import (
    LOAD,
    STORE,
    Mutation,
    contiguous,
    drop,
    masked,
    plus,
    ragged,
    rewrite,
    swap,
)

_COPY_OF_A = "multicast::cluster.L2::cache_hint [%r#+#], [%rd#, {(%r#), (%r#), (%r#)}]"
_BYTES = "shl.b32 %r#, %r#, 11;\nadd.s32 %r#, %r#, (#);"  # of the parts of a, and of the rest
_ACCUMULATE = "mov.b32 %r#, (#);\n{\n.reg .pred p;\nsetp.ne.b32 p, %r#, 0;\nwgmma"

TRANSACTIONS = (
    masked(
        "too few bytes are expected",
        swap(_BYTES, plus(-128)),
        "deadlock",
        "-128 bytes pending",
        "try_wait",
    ),
    masked(
        "too many bytes are expected",
        swap(_BYTES, plus(128)),
        "deadlock",
        "128 bytes pending",
        "try_wait",
    ),
    masked(
        "a full barrier counts two arrivals",
        swap("mov.b32 %r#, (1);\nmbarrier.init", "2"),
        "deadlock",
        "1 of 2 arrived",
    ),
    masked(
        "an empty barrier counts the warps of one CTA",
        swap("mov.b32 %r#, (8);\nmbarrier.init", "4"),
        "deadlock",
        "of 4 arrived",
    ),
    masked(
        "an empty barrier counts one warp more",
        swap("mov.b32 %r#, (8);\nmbarrier.init", "9"),
        "deadlock",
        "8 of 9 arrived",
    ),
    ragged(
        "a plan's barrier counts half of the lanes",
        swap("mov.b32 %r#, (32);\nmbarrier.init", "16"),
        "fault",
        "gets 32 arrivals, of 16 only 16 lack",
        "hand_over",
    ),
    masked(
        "a plan is free when half of the warps gave it back",
        swap("mov.b32 %r#, (4);\nmbarrier.init", "2"),
        "fault",
        "gets 4 arrivals, of 2",
        "give_back",
    ),
    masked(
        "a multicast to a CTA outside of the cluster",
        swap("mov.b16 %rs#, (3);\ncp.async", "7"),
        "fault",
        "of CTA 2 of 2",
        "multicast",
    ),
    masked(
        "a multicast to one CTA only",
        swap("mov.b16 %rs#, (3);\ncp.async", "1"),
        "deadlock",
        "bytes pending",
    ),
    masked(
        "stages are given back to the first CTA only",
        swap("mapa.shared::cluster.u32 %r#, %r#, (%r#);", "0"),
        "fault",
        "arrive",
    ),
    masked(
        "stages are given back to a CTA outside of the cluster",
        swap("mapa.shared::cluster.u32 %r#, %r#, (%r#);", "2"),
        "fault",
        "of CTA 2 of 2",
        "mbarrier.arrive.shared::cluster",
    ),
    masked(
        "stages are not given back",
        drop("(mbarrier.arrive.shared::cluster.b64 _, [%r#], %r#;)"),
        "deadlock",
        "0 of 8 arrived",
        "open_stage",
    ),
    ragged(
        "a tile is not handed over",
        drop("st.shared.v4.b32...(mbarrier.arrive.shared.b64 %rd#, [%r#+#], %r#;)"),
        "deadlock",
        "0 of 32 arrived",
        "take_tile",
    ),
    masked(
        "a barrier is not initialised",
        drop("(mbarrier.init.shared.b64 [%r#+#], %r#;)\n"),
        "fault",
        "no mbarrier was initialised",
        "mbarrier.",
    ),
    masked(
        "a wrong first parity",
        swap("mbarrier.try_wait.parity.shared.b64 P1, [%r#], (%r#), 10000000;...wgmma.fence", "1"),
        "deadlock",
        "try_wait",
    ),
    ragged(
        "the load warp's pipeline is one stage longer",
        swap("elect.sync...tensor.2d...setp.eq.b32 %p#, %r#, (5);", "6"),
        "fault",
        "copy_b",
    ),
    ragged(
        "every pipeline is one stage shorter, the barriers are not",
        swap("elect.sync...tensor.2d...setp.eq.b32 %p#, %r#, (5);", "4"),
        "deadlock",
        "open_stage",
    ),
)
"""Mistakes in bytes, arrivals, receivers, parities and places in a pipeline."""

ADDRESSES = (
    ragged("a descriptor starts in the wrong place", swap("or.b32 %r#, %r#, (4);", "2"), "wrong"),
    masked(
        "a descriptor starts one tile ahead",
        swap("and.b32 %r#, %r#, (16320);", "16256"),
        "uninitialised",
        "wgmma.mma_async",
    ),
    masked(
        "a descriptor with half of the stride",
        swap("or.b64 %rd#, %rd#, (#);", plus(-(32 << 32))),
        "wrong",
    ),
    masked(
        "a descriptor with twice the stride",
        swap("or.b64 %rd#, %rd#, (#);", plus(64 << 32)),
        "fault",
        "out of bounds",
        "wgmma.mma_async",
    ),
    masked(
        "a descriptor with another swizzle than the tensor map",
        swap("or.b64 %rd#, %rd#, (#);", plus(1 << 62)),
        "wrong",
    ),
    ragged(
        "a tile is swizzled otherwise than the tensor map says",
        swap("and.b32 %r#, %r#, (112);...stmatrix", "48"),
        "wrong",
    ),
    masked("a wrong block of K", swap(_COPY_OF_A, "0", "\\2", "\\3"), "wrong"),
    masked("a wrong row", swap(_COPY_OF_A, "\\1", "0", "\\3"), "wrong"),
    masked("a wrong group", swap(_COPY_OF_A, "\\1", "\\2", "0"), "wrong"),
    ragged(
        "an inner coordinate that is no multiple of 16 bytes",
        swap("shl.b32 %r#, %r#, (2);\nmin.s32 %r#, %r#, 2;", "0"),
        "fault",
        "illegal instruction",
        "copy_scales",
    ),
    ragged(
        "a wrong column of the result",
        swap("tensor.2d.global.shared::cta...or.b32 %r#, %r#, (64);", "32"),
        "wrong",
    ),
    masked("the first product is added, too", swap(_ACCUMULATE, "1", count=0), "wrong"),
    masked("no product is added", swap(_ACCUMULATE, "0"), "wrong"),
    ragged(
        "groups are read beyond their end",
        swap("mul.wide.u32 %rd#, %r#, (4);", "400"),
        "fault",
        "behind groups",
        "ld.global",
    ),
    ragged(
        "scales are read beyond their end",
        swap("shl.b64 %rd#, %rd#, (2);", "8"),
        "fault",
        "b_scale",
        "ld.global",
    ),
    ragged(
        "the result is written beyond its end",
        swap("shl.b64 %rd#, %rd#, (1);", "12"),
        "fault",
        "out of bounds",
        "st.global",
    ),
    ragged(
        "shared memory beyond the end",
        swap("ld.shared.v4.b32 {...}, [%r#+(200064)];", plus(40000)),
        "fault",
        "out of bounds",
        "ld.shared.v4",
    ),
    ragged(
        "a shared address that is misaligned",
        swap("ld.shared.v4.b32 {...}, [%r#+(#)];", plus(4)),
        "fault",
        "not a multiple of 16",
        "ld.shared.v4",
    ),
    ragged(
        "a store that starts in the middle of a swizzle",
        swap("tensor.2d.global.shared::cta...[%r#+(#)]", plus(64)),
        "fault",
        "not a multiple of 128",
        STORE,
    ),
    ragged(
        "a load into the next stage",
        swap("tensor.2d.shared::cta.global.tile...[%r#+(32768)]", plus(16384)),
        "race",
        LOAD,
        LOAD,
    ),
    ragged(
        "the table of tiles has no first entry",
        drop("(st.shared.b32 [%r#+#], 0;)"),
        "fault",
        "behind groups",
        "never written",
        "tile_coord",
    ),
    ragged(
        "scales are not handed over",
        drop("(st.shared.b32 [%r#+199808], %r#;)"),
        "uninitialised",
        "never written",
        "ld.shared.b32",
    ),
    ragged(
        "a part of a tile is not staged",
        drop("(stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r#+8192], {...};)", count=1),
        "uninitialised",
        "never written",
        STORE,
    ),
    contiguous(
        "rows' groups are read beyond their end",
        swap("mul.wide.s32 %rd#, %r#, (4);", "4000"),
        "fault",
        "behind groups",
        "group_at",
    ),
)
"""Mistakes in descriptors, coordinates and pointers, and reads of unwritten memory."""

ROWS = (
    Mutation(
        name="a row between a group's is stored with them",
        program="contiguous",
        edit=rewrite(
            ("        is_stored = is_stored & (store.groups[row + r] == work.group)\n", ""),
        ),
        kind="wrong",
        of_source=True,
    ),
)
"""Mistakes that store or read rows that are not the group's."""
