# SPDX-License-Identifier: Apache-2.0
"""Mistakes in how prepacked weights are loaded, decoded, multiplied and handed back."""

from __future__ import annotations

from tests.compile.mutations import WAIT, Edit, Mutation, drop, plus, rewrite, swap


def _exact(name: str, edit: Edit, kind: str, *names: str) -> Mutation:
    """Return a mistake in a kernel whose sums have a scale for each 32 of K."""
    return Mutation(name=name, program="exact", edit=edit, kind=kind, names=names)


def _wide(name: str, edit: Edit, kind: str, *names: str) -> Mutation:
    """Return a mistake in a kernel that decodes to bf16, two k-blocks at a time."""
    return Mutation(name=name, program="wide", edit=edit, kind=kind, names=names)


def _written(name: str, kind: str, *pairs: tuple[str, str]) -> Mutation:
    """Return a mistake in the source of the kernel whose sums have a scale for each 32 of K."""
    return Mutation(name=name, program="exact", edit=rewrite(*pairs), kind=kind, of_source=True)


def _folded(name: str, *pairs: tuple[str, str]) -> Mutation:
    """Return a mistake in the source of a kernel with folded scales: the result shows it."""
    return Mutation(name=name, program="folded", edit=rewrite(*pairs), kind="wrong", of_source=True)


LOADS = (
    _exact(
        "a block of weights is not expected",
        swap("mov.b32 %r#, (#);\nmbarrier.arrive.expect_tx", plus(-4352)),
        "deadlock",
        "bytes pending",
    ),
    _written(
        "stages of weights overlap",
        "race",
        (
            "BLOCK_WORDS, BLOCK_WORDS * MATH_WARPGROUPS)\n    return",
            "BLOCK_WORDS, BLOCK_WORDS)\n    return",
        ),
    ),
    _written(
        "weights are those of the first columns",
        "wrong",
        ("(0, work.tile_n, None)", "(0, 0, None)"),
    ),
    _written(
        "weights are those of the first group",
        "wrong",
        ("None, work.group]\n    tile", "None, 0]\n    tile"),
    ),
    _written(
        "weights are those of the first of K",
        "wrong",
        ("k_block(b_copies, k,", "k_block(b_copies, 0,"),
    ),
    _exact(
        "no wait for an empty stage",
        drop(f"({WAIT})...expect_tx"),
        "race",
        "load_rows",
    ),
    _exact(
        "no wait for weights",
        drop(f"({WAIT})...ld.shared.v4"),
        "deadlock",
        "open_stage",
    ),
)

MATRICES = (
    _exact(
        "a stage is given back before its products are done",
        swap(
            "(wgmma.wait_group.sync.aligned 0;)\n@%p# bra...mbarrier.arrive...$L__BB#_#:()",
            "",
            "\n\\1",
        ),
        "race",
        "wgmma.mma_async",
    ),
    _exact(
        "scales of a are read once their stage was given back",
        swap(
            "(ld.shared.b32 %r#, [%r#+#];)\n(ld.shared.b32 %r#, [%r#+#];)\nwgmma.wait_group"
            "...mbarrier.arrive...$L__BB#_#:()",
            "",
            "",
            "\n\\1\n\\2",
        ),
        "race",
        "finish",
    ),
    _exact(
        "products of 32 of K add to those of the k-block before",
        swap("mov.b32 %r#, (0);\n{\n.reg .pred p;\nsetp.ne.b32 p, %r#, 0;\nwgmma", "1"),
        "wrong",
    ),
    _exact(
        "registers of weights are not fenced",
        drop("(wgmma.fence.sync.aligned;)"),
        "fence",
        "wgmma.mma_async",
    ),
    _exact(
        "stages are not given back",
        drop("(mbarrier.arrive.shared.b64 %rd#, [%r#+#], %r#;)"),
        "deadlock",
        "0 of 8 arrived",
    ),
    _wide(
        "the second k-block is multiplied with the rows of the first",
        swap("wgmma.wait_group...shl.b32 %r#, %r#, (#);", plus(1), count=1),
        "wrong",
    ),
    _wide(
        "products of the first k-block are not waited for",
        drop("(wgmma.wait_group.sync.aligned 0;)", count=1),
        "race",
        "wgmma.mma_async",
    ),
)

VALUES = (
    _exact(
        "signs of four weights are lost",
        swap("and.b32 %r#, %r#, (-1667457892);", "471604252"),
        "wrong",
    ),
    _exact("the exponent of a weight is cut", swap("and.b32 %r#, %r#, (269488144);", "0"), "wrong"),
    _exact(
        "scales of a thread are those of the next row",
        swap("and.b32 %r#, %r#, (62);", "60"),
        "wrong",
    ),
    _exact(
        "rows of the next group are stored",
        swap("setp.(ge).s32 %p#, %r#, %r#;\n@%p# bra $L__BB#_#;\ncvt.rn", "gt"),
        "wrong",
    ),
    _wide(
        "a scale is that of the other row", swap("prmt.b32 %r#, %r#, %r#, (%r#);", "17472"), "wrong"
    ),
    _folded("weights are shifted by one exponent more", ("0x14100800", "0x1C181000")),
    _folded("a sign is that of the weight beside", ("(word << 4)", "(word << 12)")),
    _folded(
        "all of K has the exponent of its first part",
        ("exponent >> (4 * j) if j else exponent", "exponent"),
    ),
)

PREPACKED = (*LOADS, *MATRICES, *VALUES)
"""Mistakes in kernels for prepacked weights."""
