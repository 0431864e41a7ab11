# SPDX-License-Identifier: Apache-2.0
"""
Mistakes in correct kernels: edits of their PTX, and what must be found in what comes of them.

An edit is a pattern that survives another compiler: opcodes and what stands next to them, never a
register or a label. See `swap` for how to write one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

Edit = Callable[[str], str]
Replacement = str | Callable[[str], str]

_NEXT = r"\s*\n(?:[ \t]*(?:\.loc|//)[^\n]*\n|[ \t]*\n)*[ \t]*"
"""From the end of an instruction to the next one, over line information, comments, empty lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """
    A mistake.

    Attributes:
        name: What it is.
        program: Which kernel it is made in.
        edit: Makes it.
        kind: Of the finding that it must give; ``fault`` or ``deadlock`` if the kernel does not
            come to its end, ``wrong`` if only the result shows it.
        names: What the text of the finding must contain, in this order.
        mode: Of the two quick modes the first that finds it.
    """

    name: str
    program: str
    edit: Edit
    kind: str
    names: tuple[str, ...] = ()
    mode: str = "eager"


@cache
def _pattern(text: str) -> re.Pattern[str]:
    """Return what a pattern of `swap` means as a regular expression."""
    found = re.escape(text)
    for written, meant in {
        r"\#": r"\d+",
        r"\(": "(",
        r"\)": ")",
        r"\.\.\.": r"(?:(?!try_wait)[\s\S])*?",
        "\\\n": _NEXT,
        r"\ ": r"[ \t]+",
    }.items():
        found = found.replace(written, meant)
    return re.compile(found)


def swap(pattern: str, *new: Replacement, count: int = 0) -> Edit:
    """
    Return an edit that replaces parts of every match.

    Args:
        pattern: PTX, in which ``#`` is a number, ``...`` whatever comes up to the next match but no
            wait for an mbarrier, a line break the way to the next instruction, and parentheses
            surround the parts to replace.
        new: Text for each part, in which ``\\1`` stands for what the first part was, or a function
            of the old text.
        count: Matches to edit, from the first on; 0 for all.
    """
    compiled = _pattern(pattern)
    assert compiled.groups == len(new)

    def edit(text: str) -> str:
        def replaced(match: re.Match[str]) -> str:
            parts, at = [], match.start()
            for group, each in enumerate(new, 1):
                parts.append(text[at : match.start(group)])
                parts.append(match.expand(each) if isinstance(each, str) else each(match[group]))
                at = match.end(group)
            return "".join([*parts, text[at : match.end()]])

        edited, found = compiled.subn(replaced, text, count)
        assert found, f"nothing looks like {pattern!r}"
        assert edited != text
        return edited

    return edit


def drop(pattern: str, count: int = 0) -> Edit:
    """Return an edit that leaves out the one part of a pattern of `swap`."""
    return swap(pattern, "", count=count)


def plus(number: int) -> Replacement:
    """Return how to replace a number by one that is larger."""
    return lambda text: str(int(text) + number)


_WAIT = "mbarrier.try_wait...bra.uni LAB_WAIT;"
_COPY_OF_A = "multicast::cluster.L2::cache_hint [%r#+#], [%rd#, {(%r#), (%r#), (%r#)}]"
_ACCUMULATE = "mov.b32 %r#, (#);\n{\n.reg .pred p;\nsetp.ne.b32 p, %r#, 0;\nwgmma"
_SOME_WARPS = """{
.reg .pred some;
.reg .b32 thread;
mov.u32 thread, %tid.x;
setp.OF.u32 some, thread, 31;
@some \\1
}"""
_FIRST_WARP, _OTHER_WARPS = _SOME_WARPS.replace("OF", "le"), _SOME_WARPS.replace("OF", "gt")
_LOAD, _STORE = "cp.async.bulk.tensor", "cp.async.bulk.tensor.2d.global"


def _masked(
    name: str, edit: Edit, kind: str, *names: str, mode: str = "eager", program: str = "masked"
) -> Mutation:
    return Mutation(name=name, program=program, edit=edit, kind=kind, names=names, mode=mode)


def _ragged(name: str, edit: Edit, kind: str, *names: str) -> Mutation:
    return _masked(name, edit, kind, *names, program="ragged")


def _contiguous(name: str, edit: Edit, kind: str, *names: str) -> Mutation:
    return _masked(name, edit, kind, *names, program="contiguous")


TRANSACTIONS = (
    _masked(
        "too few bytes are expected",
        swap("mov.b32 %r#, (#);\nmbarrier.arrive.expect_tx", plus(-128)),
        "deadlock",
        "-128 bytes pending",
        "try_wait",
    ),
    _masked(
        "too many bytes are expected",
        swap("mov.b32 %r#, (#);\nmbarrier.arrive.expect_tx", plus(128)),
        "deadlock",
        "128 bytes pending",
        "try_wait",
    ),
    _masked(
        "a full barrier counts two arrivals",
        swap("mov.b32 %r#, (1);\nmbarrier.init", "2"),
        "deadlock",
        "1 of 2 arrived",
    ),
    _masked(
        "an empty barrier counts the warps of one CTA",
        swap("mov.b32 %r#, (8);\nmbarrier.init", "4"),
        "deadlock",
        "of 4 arrived",
    ),
    _masked(
        "an empty barrier counts one warp more",
        swap("mov.b32 %r#, (8);\nmbarrier.init", "9"),
        "deadlock",
        "8 of 9 arrived",
    ),
    _ragged(
        "a plan's barrier counts half of the lanes",
        swap("mov.b32 %r#, (32);\nmbarrier.init", "16"),
        "fault",
        "gets 32 arrivals, of 16 only 16 lack",
        "hand_over",
    ),
    _masked(
        "a plan is free when half of the warps gave it back",
        swap("mov.b32 %r#, (4);\nmbarrier.init", "2"),
        "fault",
        "gets 4 arrivals, of 2",
        "give_back",
    ),
    _masked(
        "a multicast to a CTA outside of the cluster",
        swap("mov.b16 %rs#, (3);\ncp.async", "7"),
        "fault",
        "of CTA 2 of 2",
        "multicast",
    ),
    _masked(
        "a multicast to one CTA only",
        swap("mov.b16 %rs#, (3);\ncp.async", "1"),
        "deadlock",
        "bytes pending",
    ),
    _masked(
        "stages are given back to the first CTA only",
        swap("mapa.shared::cluster.u32 %r#, %r#, (%r#);", "0"),
        "fault",
        "arrive",
    ),
    _masked(
        "stages are given back to a CTA outside of the cluster",
        swap("mapa.shared::cluster.u32 %r#, %r#, (%r#);", "2"),
        "fault",
        "of CTA 2 of 2",
        "mbarrier.arrive.shared::cluster",
    ),
    _masked(
        "stages are not given back",
        drop("(mbarrier.arrive.shared::cluster.b64 _, [%r#], %r#;)"),
        "deadlock",
        "0 of 8 arrived",
        "load_tiles",
    ),
    _ragged(
        "a tile is not handed over",
        drop("st.shared.v4.b32...(mbarrier.arrive.shared.b64 %rd#, [%r#+#], %r#;)"),
        "deadlock",
        "0 of 32 arrived",
        "take_tile",
    ),
    _masked(
        "a barrier is not initialised",
        drop("(mbarrier.init.shared.b64 [%r#+#], %r#;)\n"),
        "fault",
        "no mbarrier was initialised",
        "mbarrier.",
    ),
    _masked(
        "a wrong first parity",
        swap("mbarrier.try_wait.parity.shared.b64 P1, [%r#], (%r#), 10000000;...wgmma.fence", "1"),
        "deadlock",
        "try_wait",
    ),
    _ragged(
        "the load warp's ring is one stage longer",
        swap("elect.sync...tensor.2d...setp.eq.b32 %p#, %r#, (5);", "6"),
        "fault",
        "load_tiles",
    ),
    _ragged(
        "every ring is one stage shorter, the barriers are not",
        swap("elect.sync...tensor.2d...setp.eq.b32 %p#, %r#, (5);", "4"),
        "deadlock",
        "load_tiles",
    ),
)
"""Bytes, arrivals, receivers, parities and places in a ring."""

WAITS = (
    _masked(
        "nobody waits until a stage is full",
        drop(f"({_WAIT})...wgmma.fence"),
        "race",
        _LOAD,
        "wgmma.mma_async",
    ),
    _masked(
        "a stage that is not full is asked for once",
        drop("mbarrier.try_wait...(@P1 bra.uni DONE;\nbra.uni LAB_WAIT;)...wgmma.fence"),
        "race",
        _LOAD,
        _LOAD,
    ),
    _masked(
        "nobody waits until a stage is empty", drop(f"({_WAIT})...expect_tx"), "fault", "load_tiles"
    ),
    _masked(
        "nobody waits for the products",
        drop("(wgmma.wait_group.sync.aligned 0;)"),
        "race",
        "wgmma.mma_async",
        _LOAD,
    ),
    _masked(
        "one group of products is not waited for",
        swap("wgmma.wait_group.sync.aligned (0);", "1"),
        "race",
        "wgmma.mma_async",
        _LOAD,
    ),
    _masked(
        "a stage is given back before its products are done",
        swap(
            "(wgmma.wait_group.sync.aligned 0;)\n@%p# bra $L__BB#_#;...mbarrier.arrive...$L__BB#_#:()",
            "",
            "\n\\1",
        ),
        "race",
        "wgmma.mma_async",
        _LOAD,
    ),
    _masked(
        "products are in no group",
        drop("(wgmma.commit_group.sync.aligned;)"),
        "exit",
        "never waited for its last wgmma groups",
    ),
    _ragged(
        "a store reads what the next tile overwrites",
        drop("(cp.async.bulk.wait_group.read 0;)\nbar.sync"),
        "race",
        _STORE,
        "stmatrix",
    ),
    _ragged(
        "stores are in no group",
        drop("(cp.async.bulk.commit_group;)"),
        "race",
        _STORE,
        "stmatrix",
    ),
    _ragged(
        "the last store still reads at the end",
        drop("(cp.async.bulk.wait_group.read 0;)\nbra.uni"),
        "exit",
        "cp.async.bulk.wait_group",
    ),
    _ragged(
        "nobody waits for a tile",
        drop(f"cp.async.bulk.commit_group;...({_WAIT})"),
        "deadlock",
        "before that, race",
        "st.shared.v4",
        "ld.shared.v4",
    ),
    _ragged(
        "a tile overwrites one that is not taken",
        drop(f"({_WAIT})...@%p# bra $L__BB#_#;...st.shared.v4"),
        "race",
        "ld.shared.v4",
        "st.shared.v4",
    ),
    _ragged(
        "nobody waits for the weights' scales",
        drop(f"max.s32 %r#, %r#, 1;...({_WAIT})"),
        "deadlock",
        "before that, race",
        "st.shared.b32",
        "ld.shared.b32",
    ),
    _ragged(
        "scales overwrite such as are in use",
        drop(f"({_WAIT})...ld.global.b32...st.shared.b32"),
        "race",
        "ld.shared.b32",
        "st.shared.b32",
    ),
    _ragged(
        "the kernel before is not waited for",
        drop("(griddepcontrol.wait;)"),
        "race",
        "before griddepcontrol.wait",
        "ld.global",
    ),
    _ragged(
        "a CTA exits while its peer gives back stages",
        drop(f"griddepcontrol.launch_dependents;...({_WAIT}...{_WAIT}...{_WAIT}...{_WAIT}...{_WAIT})"),
        "exit",
        "may exit before",
        "mbarrier.arrive.shared::cluster",
    ),
)
"""Waits that are missing or come too late."""

FENCES = (
    _masked(
        "the cluster does not meet after the barriers' initialisation",
        drop("(barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;)"),
        "race",
        "mbarrier.init",
        "mbarrier.arrive.shared::cluster",
    ),
    _masked(
        "the cluster arrives and nobody waits",
        drop("(barrier.cluster.wait;)"),
        "race",
        "mbarrier.init",
        "multicast",
    ),
    _masked(
        "no fence behind the barriers' initialisation",
        drop("(fence.mbarrier_init.release.cluster;)"),
        "race",
        "mbarrier.init",
        "multicast",
    ),
    _contiguous(
        "the CTA does not meet after the barriers' initialisation",
        drop("fence.mbarrier_init.release.cluster;\n(bar.sync 0;)"),
        "race",
        "mbarrier.init",
        "try_wait",
    ),
    _ragged(
        "the counts of tiles are added up too early",
        drop("(bar.sync 0;)\nsetp.gt.u32 %p#, %r#, 31;"),
        "race",
        "st.shared.b32",
        "ld.shared.b32",
    ),
    _ragged(
        "the table of tiles is read too early",
        drop("(bar.sync 0;)\nshl.b32 %r#, %r#, 2;"),
        "race",
        "st.shared.b32",
        "ld.shared.b32",
    ),
    _ragged(
        "no barrier between the wait for a store and what overwrites it",
        drop("wait_group.read 0;\n(bar.sync %r#, 128;)"),
        "race",
        _STORE,
        "stmatrix",
    ),
    _ragged(
        "no barrier between a tile and its store",
        drop("fence.proxy.async.shared::cta;\n(bar.sync %r#, 128;)"),
        "race",
        "stmatrix",
        _STORE,
    ),
    _ragged(
        "both warpgroups meet at the barrier of the CTA",
        swap("bar.sync (%r#), 128;", "0"),
        "fault",
        "256 threads arrive of 128",
        "sync_warpgroup",
    ),
    _ragged(
        "a barrier waits for one warp more",
        swap("bar.sync %r#, (128);", "160"),
        "deadlock",
        "128 of 160 threads arrived",
    ),
    _ragged(
        "a barrier waits for one warp less",
        swap("bar.sync %r#, (128);", "96"),
        "fault",
        "128 threads arrive of 96",
    ),
    _ragged(
        "no proxy fence between a tile and its store",
        drop("(fence.proxy.async.shared::cta;)"),
        "proxy",
        "stmatrix",
        _STORE,
    ),
    _ragged(
        "only the warp that stores executes the proxy fence",
        swap("(fence.proxy.async.shared::cta;)", _FIRST_WARP),
        "proxy",
        "stmatrix",
        _STORE,
    ),
    _ragged(
        "no fence before the products",
        drop("(wgmma.fence.sync.aligned;)"),
        "fence",
        "no wgmma.fence",
        "wgmma.mma_async",
    ),
    _masked(
        "one warp keeps its registers",
        swap("(setmaxnreg.inc.sync.aligned.u32 #;)", _OTHER_WARPS),
        "exit",
        "setmaxnreg differs within a warpgroup",
    ),
)
"""Barriers and fences that are missing, or not for everybody."""

ADDRESSES = (
    _ragged(
        "a descriptor starts in the wrong place",
        swap("or.b32 %r#, %r#, (4);", "2"),
        "wrong",
    ),
    _masked(
        "a descriptor starts one tile ahead",
        swap("and.b32 %r#, %r#, (16320);", "15360"),
        "uninitialised",
        "wgmma.mma_async",
    ),
    _masked(
        "a descriptor with half of the stride",
        swap("or.b64 %rd#, %rd#, (#);", plus(-(32 << 32))),
        "wrong",
    ),
    _masked(
        "a descriptor with twice the stride",
        swap("or.b64 %rd#, %rd#, (#);", plus(64 << 32)),
        "fault",
        "out of bounds",
        "wgmma.mma_async",
    ),
    _masked(
        "a descriptor with another swizzle than the tensor map",
        swap("or.b64 %rd#, %rd#, (#);", plus(1 << 62)),
        "wrong",
    ),
    _ragged(
        "a tile is swizzled otherwise than the tensor map says",
        swap("and.b32 %r#, %r#, (112);...stmatrix", "48"),
        "wrong",
    ),
    _masked("a wrong block of K", swap(_COPY_OF_A, "0", "\\2", "\\3"), "wrong"),
    _masked("a wrong row", swap(_COPY_OF_A, "\\1", "0", "\\3"), "wrong"),
    _masked("a wrong group", swap(_COPY_OF_A, "\\1", "\\2", "0"), "wrong"),
    _ragged(
        "an inner coordinate that is no multiple of 16 bytes",
        swap("and.b32 %r#, %r#, (-4);\nadd.s32 %r#, %r#, %r#;", "-1"),
        "fault",
        "illegal instruction",
        "load_tiles",
    ),
    _ragged(
        "a wrong column of the result",
        swap("tensor.2d.global.shared::cta...or.b32 %r#, %r#, (64);", "32"),
        "wrong",
    ),
    _masked("the first product is added, too", swap(_ACCUMULATE, "1", count=0), "wrong"),
    _masked("no product is added", swap(_ACCUMULATE, "0"), "wrong"),
    _ragged(
        "groups are read beyond their end",
        swap("mul.wide.u32 %rd#, %r#, (4);", "400"),
        "fault",
        "behind groups",
        "ld.global",
    ),
    _ragged(
        "scales are read beyond their end",
        swap("shl.b64 %rd#, %rd#, (2);", "8"),
        "fault",
        "b_scale",
        "ld.global",
    ),
    _ragged(
        "the result is written beyond its end",
        swap("shl.b64 %rd#, %rd#, (1);", "12"),
        "fault",
        "behind out",
        "st.global",
    ),
    _ragged(
        "shared memory beyond the end",
        swap("ld.shared.v4.b32 {...}, [%r#+(200064)];", plus(40000)),
        "fault",
        "out of bounds",
        "ld.shared.v4",
    ),
    _ragged(
        "a shared address that is misaligned",
        swap("ld.shared.v4.b32 {...}, [%r#+(#)];", plus(4)),
        "fault",
        "not a multiple of 16",
        "ld.shared.v4",
    ),
    _ragged(
        "a store that starts in the middle of a swizzle",
        swap("tensor.2d.global.shared::cta...[%r#+(#)]", plus(64)),
        "fault",
        "not a multiple of 128",
        _STORE,
    ),
    _ragged(
        "a load into the next stage",
        swap("tensor.2d.shared::cta.global.tile...[%r#+(32768)]", plus(16384)),
        "race",
        _LOAD,
        _LOAD,
    ),
    _ragged(
        "the table of tiles has no first entry",
        drop("(st.shared.b32 [%r#+#], 0;)"),
        "uninitialised",
        "never written",
        "find_tile",
    ),
    _ragged(
        "scales are not handed over",
        drop("(st.shared.b32 [%r#+199808], %r#;)"),
        "uninitialised",
        "never written",
        "ld.shared.b32",
    ),
    _ragged(
        "a part of a tile is not staged",
        drop("(stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r#+8192], {...};)", count=1),
        "uninitialised",
        "never written",
        _STORE,
    ),
    _contiguous(
        "rows' groups are read beyond their end",
        swap("mul.wide.s32 %rd#, %r#, (4);", "4000"),
        "fault",
        "behind groups",
        "group_at",
    ),
)
"""Descriptors, coordinates, pointers, and memory that nobody wrote."""

MUTATIONS = (*TRANSACTIONS, *WAITS, *FENCES, *ADDRESSES)
