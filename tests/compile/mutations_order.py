# SPDX-License-Identifier: Apache-2.0
"""Waits, barriers and fences that are missing, come too late, or are not for everybody."""

from __future__ import annotations

from tests.compile.mutations import (
    FIRST_WARP,
    LOAD,
    OTHER_WARPS,
    STORE,
    WAIT,
    contiguous,
    drop,
    masked,
    ragged,
    ragged_of_many,
    swap,
)

WAITS = (
    masked(
        "no wait for a full stage",
        drop(f"({WAIT})...wgmma.fence"),
        "deadlock",
        "load_tiles",
    ),
    masked(
        "a stage that is not full is asked for once",
        drop("mbarrier.try_wait...(@P1 bra.uni DONE;\nbra.uni LAB_WAIT;)...wgmma.fence"),
        "deadlock",
        "load_tiles",
    ),
    masked("no wait for an empty stage", drop(f"({WAIT})...expect_tx"), "fault", "open_stage"),
    masked(
        "no wait for the products",
        drop("(wgmma.wait_group.sync.aligned 0;)"),
        "race",
        "wgmma.mma_async",
        LOAD,
    ),
    masked(
        "one group of products is not waited for",
        swap("wgmma.wait_group.sync.aligned (0);", "1"),
        "race",
        "wgmma.mma_async",
        LOAD,
    ),
    masked(
        "a stage is given back before its products are done",
        swap(
            "(wgmma.wait_group.sync.aligned 0;)\n@%p# bra...mbarrier.arrive...$L__BB#_#:()",
            "",
            "\n\\1",
        ),
        "race",
        "wgmma.mma_async",
        LOAD,
    ),
    masked(
        "products are in no group",
        drop("(wgmma.commit_group.sync.aligned;)"),
        "exit",
        "never waited for its last wgmma groups",
    ),
    ragged(
        "a store reads what the next tile overwrites",
        drop("(cp.async.bulk.wait_group.read 0;)\nbar.sync"),
        "race",
        STORE,
        "stmatrix",
    ),
    ragged(
        "stores are in no group", drop("(cp.async.bulk.commit_group;)"), "race", STORE, "stmatrix"
    ),
    ragged(
        "the last store still reads at the end",
        drop("(cp.async.bulk.wait_group.read 0;)\nbra.uni"),
        "exit",
        "cp.async.bulk.wait_group",
    ),
    ragged(
        "no wait for a tile",
        drop(f"cp.async.bulk.commit_group;...({WAIT})"),
        "deadlock",
        "every thread waits",
        "before that, uninitialised",
        "ld.shared.v4",
    ),
    ragged(
        "a tile overwrites one that is not taken",
        drop(f"({WAIT})...@%p# bra $L__BB#_#;...st.shared.v4"),
        "race",
        "ld.shared.v4",
        "st.shared.v4",
    ),
    ragged(
        "no wait for the weights' scales",
        drop(f"max.s32 %r#, %r#, 1;...({WAIT})"),
        "deadlock",
        "every thread waits",
        "before that, uninitialised",
        "ld.shared.b32",
    ),
    ragged(
        "scales overwrite such as are in use",
        drop(f"({WAIT})...ld.global.b32...st.shared.b32"),
        "race",
        "ld.shared.b32",
        "st.shared.b32",
    ),
    ragged(
        "the kernel before is not waited for",
        drop("(griddepcontrol.wait;)"),
        "race",
        "before griddepcontrol.wait",
        "ld.global",
    ),
    ragged(
        "a CTA exits while its peer gives back stages",
        drop(f"griddepcontrol.launch_dependents;...({WAIT}...{WAIT}...{WAIT}...{WAIT}...{WAIT})"),
        "exit",
        "may exit before",
        "mbarrier.arrive.shared::cluster",
    ),
)
"""Waits that are missing or come too late."""

FENCES = (
    masked(
        "the cluster does not meet after the barriers' initialisation",
        drop("(barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;)"),
        "race",
        "mbarrier.init",
        "mbarrier.arrive.shared::cluster",
    ),
    masked(
        "the cluster arrives and does not wait",
        drop("(barrier.cluster.wait;)"),
        "race",
        "mbarrier.init",
        "multicast",
    ),
    masked(
        "no fence behind the barriers' initialisation",
        drop("(fence.mbarrier_init.release.cluster;)"),
        "race",
        "mbarrier.init",
        "multicast",
    ),
    contiguous(
        "the CTA does not meet after the barriers' initialisation",
        drop("fence.mbarrier_init.release.cluster;\n(bar.sync 0;)"),
        "race",
        "mbarrier.init",
        "try_wait",
    ),
    ragged_of_many(
        "the counts of tiles are added up too early",
        drop("(bar.sync 0;)\nsetp.gt.u32 %p#, %r#, 31;"),
        "race",
        "st.shared.b32",
        "ld.shared.b32",
    ),
    ragged(
        "the table of tiles is read too early",
        drop("(bar.sync 0;)\nshl.b32 %r#, %r#, 2;"),
        "race",
        "st.shared.b32",
        "ld.shared.b32",
    ),
    ragged(
        "no barrier between the wait for a store and what overwrites it",
        drop("wait_group.read 0;\n(bar.sync %r#, 128;)"),
        "race",
        STORE,
        "stmatrix",
    ),
    ragged(
        "no barrier between a tile and its store",
        drop("fence.proxy.async.shared::cta;\n(bar.sync %r#, 128;)"),
        "race",
        "stmatrix",
        STORE,
    ),
    ragged(
        "both warpgroups meet at the barrier of the CTA",
        swap("bar.sync (%r#), 128;", "0"),
        "fault",
        "256 threads arrive of 128",
        "sync_warpgroup",
    ),
    ragged(
        "a barrier waits for one warp more",
        swap("bar.sync %r#, (128);", "160"),
        "deadlock",
        "128 of 160 threads arrived",
    ),
    ragged(
        "a barrier waits for one warp less",
        swap("bar.sync %r#, (128);", "96"),
        "fault",
        "128 threads arrive of 96",
    ),
    ragged(
        "no proxy fence between a tile and its store",
        drop("(fence.proxy.async.shared::cta;)"),
        "proxy",
        "stmatrix",
        STORE,
    ),
    ragged(
        "only the warp that stores executes the proxy fence",
        swap("(fence.proxy.async.shared::cta;)", FIRST_WARP),
        "proxy",
        "stmatrix",
        STORE,
    ),
    ragged(
        "no fence before the products",
        drop("(wgmma.fence.sync.aligned;)"),
        "fence",
        "no wgmma.fence",
        "wgmma.mma_async",
    ),
    masked(
        "one warp keeps its registers",
        swap("(setmaxnreg.inc.sync.aligned.u32 #;)", OTHER_WARPS),
        "exit",
        "setmaxnreg differs within a warpgroup",
    ),
)
"""Barriers and fences that are missing, or not for everybody."""
