# SPDX-License-Identifier: Apache-2.0
"""Mistakes in tall tiles beside MXFP4 weights: in two parts of rows, and CTAs that share tokens."""

from __future__ import annotations

from tests.compile.mutations import Mutation, rewrite


def _written(name: str, old: str, new: str, kind: str = "wrong") -> Mutation:
    return Mutation(name=name, program="tall", edit=rewrite((old, new)), kind=kind, of_source=True)


TALL = (
    _written("both parts have the same rows", "(part, 0, None)", "(0, 0, None)"),
    _written("both parts have the same sums", "total.iterator + part * each", "total.iterator"),
    _written(
        "sums of the first part are not promoted",
        "        promote(total, partials, registers.factors)\n    multiply",
        "    multiply",
    ),
    _written(
        "CTAs of a cluster take the same columns",
        "tile_n * CLUSTER_N + schedule.rank_n",
        "tile_n * CLUSTER_N",
        "race",
    ),
    _written(
        "CTAs of a cluster load the same half of a",
        "0, schedule.rank_n, CLUSTER_N)",
        "0, 0, CLUSTER_N)",
        "race",
    ),
    _written(
        "stages are freed without the other CTA",
        "        4 * MATH_WARPGROUPS * CLUSTER_N,\n",
        "        4 * MATH_WARPGROUPS,\n",
        "deadlock",
    ),
    _written(
        "a round begins one place later",
        "position - place + schedule.step + turned",
        "position - place + schedule.step + turned + 1",
    ),
)
