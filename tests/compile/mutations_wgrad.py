# SPDX-License-Identifier: Apache-2.0
"""Mistakes in kernels that sum over the rows of groups: rows of others, tiles, and store boxes."""

from __future__ import annotations

from tests.compile.mutations import WAIT, Edit, Mutation, drop, rewrite, swap


def _wgrad(name: str, edit: Edit, kind: str, *names: str, of_source: bool = False) -> Mutation:
    """Return a mistake in a kernel of `grouped_gemm_wgrad`."""
    return Mutation(
        name=name, program="wgrad", edit=edit, kind=kind, names=names, of_source=of_source
    )


_CLEAR = "for block in cutlass.range_constexpr(blocks):"

GRADIENTS = (
    _wgrad(
        "rows of others are not cleared",
        rewrite((_CLEAR, "for block in cutlass.range_constexpr(0):")),
        "wrong",
        of_source=True,
    ),
    _wgrad(
        "of a, rows of others are not cleared",
        rewrite(("(operands.rows_a, TILE_N // ATOM)", "(operands.rows_a, 0)")),
        "wrong",
        of_source=True,
    ),
    _wgrad(
        "the last row of others is not cleared",
        rewrite(
            ("TILE_K, threads // vectors, unroll=1", "TILE_K - 1, threads // vectors, unroll=1")
        ),
        "wrong",
        of_source=True,
    ),
    _wgrad(
        "a row of the group is cleared",
        rewrite(("cutlass.range(num_rows + thread", "cutlass.range(num_rows - 1 + thread")),
        "wrong",
        of_source=True,
    ),
    _wgrad(
        "the tensor cores do not wait for what is cleared",
        drop("(fence.proxy.async.shared::cta;)\nbar.sync 3, 256;"),
        "proxy",
        "clear_rows",
        "add_block",
    ),
    _wgrad(
        "a warpgroup does not wait for what the other one clears",
        drop("(bar.sync 3, 256;)"),
        "race",
        "clear_rows",
        "add_block",
    ),
    _wgrad(
        "a group without rows gets what the one before has",
        rewrite(("            total.fill(0.0)", "            pass")),
        "wrong",
        of_source=True,
    ),
    _wgrad(
        "rows of dy are taken for columns",
        swap("p, 1, 1, (1), 1;", "0"),
        "wrong",
    ),
    _wgrad(
        "rows of a are taken for columns",
        swap("p, 1, 1, 1, (1);", "0"),
        "uninitialised",  # and then beyond the end: columns are further apart than rows
        "add_block",
    ),
    _wgrad(
        "a stage is given back while it is multiplied",
        swap("wgmma.wait_group.sync.aligned (1);", "2"),
        "race",
        "add_block",
    ),
    _wgrad(
        "a tile is taken before it is handed over",
        drop(f"({WAIT})...ld.shared.v4.b32", count=1),
        "uninitialised",
        "take_tile",
    ),
    _wgrad(
        "a tile is handed over in the place of one that is not taken yet",
        drop(f"({WAIT})...st.shared.v4.b32 [%r#+#], {{%r#, %r#", count=1),
        "race",
        "hand_over_tile",
    ),
    _wgrad(
        "a box is written before the one in its place has left",
        swap("cp.async.bulk.wait_group.read (#);\nbar.sync %r#, 128", "7"),
        "race",
        "stage_box",
    ),
    _wgrad(
        "the TMA unit does not wait for what is in a box",
        drop("(fence.proxy.async.shared::cta;)\nbar.sync %r#, 128;"),
        "proxy",
        "stage_box",
    ),
    _wgrad(
        "the TMA unit stores a box before all have written to it",
        drop("fence.proxy.async.shared::cta;\n(bar.sync %r#, 128;)"),
        "race",
        "stage_box",
    ),
)
