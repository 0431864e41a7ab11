# SPDX-License-Identifier: Apache-2.0
"""Rows have the same bits in every batch, layout and kernel that invariant numerics allow."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import jitgen
from jitgen.config import DType, Layout
from jitgen.config.grouped_gemm import Operands
from jitgen.ops.moe_fc2_dense.samples import Sizes
from jitgen.targets.legality import target
from tests.gpu.configs import ARCH, INVARIANT, biased
from tests.gpu.test_moe import on_gpu
from tests.invariance import Pool, allowed, departing, misplaced, mistakes, of_fc2

BATCHES = 200
FP8 = Operands()


@pytest.mark.parametrize("types", INVARIANT.values(), ids=INVARIANT)
@pytest.mark.parametrize(("groups", "n", "k"), [(8, 1032, 7168), (3, 264, 288), (32, 512, 2048)])
def test_every_candidate(types: Operands, groups: int, n: int, k: int) -> None:
    """Random batches through all that may be chosen, of all layouts."""
    configs = allowed(ARCH, types)
    if not configs:
        pytest.skip(f"{ARCH} has no kernel for {types.text}")
    pool = Pool.draw(types, groups, 24, n, k, "cuda")
    found = list(mistakes(pool, configs, BATCHES, most=300))

    assert {config.layout for config in configs} == set(Layout)
    assert all(values for _, _, values in found)
    assert not [config.name(ARCH) for config, wrong, _ in found if wrong]


@pytest.mark.parametrize("types", INVARIANT.values(), ids=INVARIANT)
def test_every_place_with_a_bias(types: Operands) -> None:
    """Of long and short groups, results float32: a sum is scaled and biased alike everywhere."""
    configs = biased(ARCH, types)
    if not configs:
        pytest.skip(f"{ARCH} has no kernel for {types.text}")
    of_float32 = replace(types, out_dtype=DType.F32)
    pool = Pool.draw(of_float32, 3, 24, 264, 1536, "cuda", bias=True)
    found = list(misplaced(pool, configs, (700, 37, 300)))

    assert not [config.name(ARCH) for config, wrong in found if wrong]


def test_fc2() -> None:
    if "moe_fc2_dense" not in target(ARCH).operations:
        pytest.skip(f"{ARCH} has no kernel for it")
    sizes = Sizes(tokens=300, experts=64, n=1032, k=272, top_k=8)
    found = list(of_fc2(ARCH, sizes, "cuda"))

    assert len(found) > 1
    assert not [config.name(ARCH) for config, wrong in found if wrong]


def test_what_is_left_out_departs() -> None:
    """Split-K gives other bits, so that the test above would see it."""
    pool = Pool.draw(FP8, 2, 24, 1024, 7168, "cuda")
    split = departing(ARCH, FP8, Layout.RAGGED)
    if not split:
        pytest.skip(f"{ARCH} leaves nothing out")
    table = pool.expected(allowed(ARCH, FP8)[0])

    assert (pool.expected(split[0]) != table).any()


@pytest.mark.parametrize("rows", [1, 3, 17, 64, 200])
@pytest.mark.parametrize("layout", Layout)
def test_what_a_call_chooses(layout: Layout, rows: int) -> None:
    """Whatever rows stand around them, and in a CUDA graph, too."""
    pool = Pool.draw(FP8, 1, 24, 7168, 7168, "cuda")
    table = pool.expected(allowed(ARCH, FP8)[0])
    batch = pool.batch(layout, [[i % 24 for i in range(rows)]])

    assert not int(batch.differing(table, numerics="invariant"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = jitgen.grouped_gemm(**batch.call.arguments, numerics="invariant")
    out.zero_()
    graph.replay()
    assert torch.equal(out[batch.is_owned].view(torch.int16), table[batch.group.long(), batch.row])


@pytest.mark.skipif(ARCH != "sm_90a", reason="layers have kernels for sm_90a")
@pytest.mark.parametrize("form", ["block128", "bf16", "wide1", "exact1_row"])
def test_a_layer(form: str) -> None:
    """A token alone, among few, for whom launches start early, and among many: the same bits."""
    layer, given = on_gpu(form, 700)
    invariant = jitgen.MoELayer(replace(layer.config, numerics="invariant"), layer.weights)
    whole = invariant(*given)
    for tokens in (1, 2, 5, 33, 128, 512):
        index = torch.randint(0, 700, (tokens,), device="cuda")
        found = invariant(*(each[index] for each in given))

        assert torch.equal(found.view(torch.int16), whole[index].view(torch.int16)), tokens
