# SPDX-License-Identifier: Apache-2.0
"""Sizes at the edges of a kernel's tiles."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from jitgen.config import Arch
from jitgen.ops.edges import around, in_pairs, rows_around
from jitgen.ops.sizes import Number
from jitgen.verify.verification import samples_of
from tests.cases import pool
from tests.covering import covering

ARCH = Arch.parse("sm_90a")


def test_values_lie_at_a_constant_and_one_step_beside_it() -> None:
    columns = Number("N", "columns", multiple=8)
    assert around(columns, 256) == (8, 16, 248, 256, 264)
    assert around(columns, 250) == (8, 16, 248, 256, 264)


def test_no_value_is_beyond_what_a_number_may_be() -> None:
    assert around(Number("K", "places", most=32), 32) == (1, 2, 31, 32)
    assert around(Number("T", "tokens", least=0), 1) == (1, 2)


def test_groups_have_rows_around_a_constant() -> None:
    counts = {count for rows in rows_around(16) for count in rows}
    assert {0, 1, 15, 16, 17} <= counts
    assert {len(rows) for rows in rows_around(16)} >= {1, 32, 33}


@pytest.mark.parametrize("axes", [("ab", "xyz"), ("abc", "xyz", "12"), ("ab", "x", "1234", "+-*")])
def test_each_two_values_occur_together(axes: tuple[str, ...]) -> None:
    found = [*in_pairs(*axes)]
    for one, other in combinations(range(len(axes)), 2):
        together = {(each[one], each[other]) for each in found}
        assert together == set(product(axes[one], axes[other]))
    assert len(found) <= 2 * len(max(axes, key=len)) * len(min(axes, key=len)) + 8


@pytest.mark.parametrize("op", ["combine", "permute_quantize", "route", "silu_mul_quantize"])
def test_samples_can_be_made_of_all(op: str) -> None:
    for kernel in covering(pool(ARCH, op), lambda kernel: kernel.values):
        samples = samples_of(kernel.config)
        edges = samples.Sizes.edges(kernel.config, ARCH)
        assert len(edges) >= 10
        for seed, sizes in enumerate(edges[:: len(edges) // 4], 1):
            case = samples.make(kernel.config, sizes, is_exact=True, seed=seed)
            assert all(output.expected is not None for output in case.outputs)
