# SPDX-License-Identifier: Apache-2.0
"""Mistakes in how a bias comes to the sums of a tile, where two CTAs have a part of K each."""

from __future__ import annotations

from tests.compile.mutations import Mutation, rewrite

_ADD = "            add_bias(scales.bias, own)\n"


def _biased(name: str, old: str, new: str, kind: str, *names: str) -> Mutation:
    """Return a mistake in the source of a kernel with a bias."""
    edit = rewrite((old, new))
    return Mutation(
        name=name, program="bias, split K", edit=edit, kind=kind, names=names, of_source=True
    )


BIAS = (
    _biased("the bias is another group's", "bias.gmem[work.group,", "bias.gmem[0,", "wrong"),
    _biased("each part of K adds the bias", _ADD, 2 * _ADD, "wrong"),
    _biased(
        "both CTAs add the bias of the first one's columns",
        "    first += cute.arch.block_idx_in_cluster() * OUT_N  # the share of this CTA\n",
        "",
        "wrong",
    ),
    _biased(
        "no wait for the bias",
        "    cute.arch.cp_async_wait_group(0)\n",
        "",
        "race",
        "cp.async",
        "ld.shared",
    ),
    _biased(
        "each warp waits for its own part of the bias",
        "    sync_warpgroup(math_warpgroup)  # each thread has brought some of it\n",
        "",
        "race",
        "cp.async",
        "ld.shared",
    ),
)
"""Mistakes in a kernel with a bias and split_k."""
