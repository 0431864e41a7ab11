# SPDX-License-Identifier: Apache-2.0
"""Registers that are not given back, launches that the kernel forbids, barriers made wrongly."""

from __future__ import annotations

from tests.compile.mutations import LOAD, contiguous, drop, ragged, swap

RESOURCES = (
    ragged(
        "the math warps want more registers than there are",
        swap("setmaxnreg.inc.sync.aligned.u32 (#);", "240"),
        "deadlock",
        "registers more for each thread",
        "setmaxnreg asks for 240, it has 168",
        "setmaxnreg.inc",
    ),
    ragged(
        "the loading warps give no registers back",
        drop("(setmaxnreg.dec.sync.aligned.u32 #;)"),
        "deadlock",
        "registers more for each thread",
    ),
    ragged(
        "an increase to fewer registers",
        swap("setmaxnreg.inc.sync.aligned.u32 (#);", "160"),
        "setmaxnreg",
        "it increases the registers of a warp to 160; it has 168",
    ),
    ragged(
        "a CTA of other threads than the kernel requires",
        swap(".reqntid (#), 1, 1", "256"),
        "fault",
        "cannot be launched on sm_90a",
        ".reqntid says (256, 1, 1)",
    ),
    ragged(
        "another cluster than the kernel requires",
        swap("(.minnctapersm 1)", "\\1\n.reqnctapercluster 4, 1, 1"),
        "fault",
        "cannot be launched on sm_90a",
        ".reqnctapercluster says (4, 1, 1)",
    ),
    ragged(
        "fewer registers than the machine code has",
        swap("(.minnctapersm 1)", "\\1\n.maxnreg 128"),
        "fault",
        "machine code with 168 registers, but .maxnreg says 128",
    ),
    ragged(
        "another target",
        swap(".target (sm_90a)", "sm_100a"),
        "fault",
        "cannot be launched on sm_100a",
        "wgmma",
    ),
    contiguous(
        "a barrier that is initialised twice",
        swap("(mbarrier.init.shared.b64...;)", "\\1\n\\1", count=1),
        "mbarrier",
        "initialised again without mbarrier.inval",
        "mbarrier.init",
    ),
    contiguous(
        "no fence between the barriers' initialisation and the copies",
        drop("(fence.mbarrier_init.release.cluster;)"),
        "proxy",
        "no fence.mbarrier_init or fence.proxy.async",
        LOAD,
    ),
)
"""Mistakes in which a kernel does not heed the limits of the launch and the machine."""
