# SPDX-License-Identifier: Apache-2.0
"""
Kernels that claim one order of sums give every row the same bits: on the CPU, and on emulated GPUs.

Results are float32, in which no difference hides. A candidate that adds up otherwise, and says so
in no field of its config, fails here; one that says so is left out by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest

import jitgen
from jitgen.config import Arch, BLayout, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import Operands
from jitgen.ops.moe_fc2_dense.samples import Sizes
from jitgen.verify import device
from tests import needs
from tests.covering import covering
from tests.invariance import Pool, allowed, departing, misplaced, mistakes, of_fc2

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

E4M3, E4M3X2, E2M1, BF16, F32 = DType.E4M3, DType.E4M3X2, DType.E2M1, DType.BF16, DType.F32
MX32, ROW = ScaleGranularity.MX32, ScaleGranularity.ROW
BLOCK128 = Operands(out_dtype=F32)
MXFP8 = Operands(scale_granularity=MX32, out_dtype=F32)
NVFP4 = Operands(a_dtype=E2M1, b_dtype=E2M1, scale_granularity=ScaleGranularity.NV16, out_dtype=F32)
MIXED = Operands(b_dtype=E2M1, scale_granularity=MX32, out_dtype=F32)
WIDE = replace(MIXED, a_dtype=BF16, a_scale_granularity=ScaleGranularity.NONE)
PLAIN = Operands(
    a_dtype=BF16, b_dtype=BF16, scale_granularity=ScaleGranularity.TENSOR, out_dtype=F32
)
COLUMNS = replace(PLAIN, b_layout=BLayout.N_MAJOR)
PREPACKED = [
    replace(MIXED, a_dtype=a_dtype, a_scale_granularity=of_a, b_layout=b)
    for a_dtype, of_a, b in (
        (E4M3, ROW, BLayout.EXACT1),
        (E4M3, ROW, BLayout.FOLDED1),
        (BF16, ScaleGranularity.NONE, BLayout.WIDE1),
    )
]
OF_SM_90A = [
    replace(MIXED, a_dtype=a_dtype, a_scale_granularity=of_a, b_layout=b)
    for a_dtype, of_a in ((E4M3, ScaleGranularity.BLOCK128), (E4M3X2, ROW))
    for b in (BLayout.EXACT1, BLayout.FOLDED1)
]
KINDS = [
    *((Arch.CPU, types) for types in (BLOCK128, MXFP8, NVFP4, PLAIN, *PREPACKED)),
    *((Arch.SM_90A, types) for types in (BLOCK128, replace(BLOCK128, scale_granularity=ROW))),
    *((Arch.SM_90A, types) for types in (PLAIN, COLUMNS, *PREPACKED, *OF_SM_90A)),
    *((Arch("sm_100a"), types) for types in (BLOCK128, MXFP8, NVFP4, MIXED)),
    *((Arch("sm_120a"), types) for types in (BLOCK128, MXFP8, NVFP4, MIXED, WIDE)),
]


def depth(arch: Arch, types: Operands) -> int:
    """
    Return K: more than two of the deepest stages, and no whole number of any, if kernels take that.
    """
    if (arch, types) == (Arch("sm_100a"), MIXED):
        return 640
    return 1120 if arch == "sm_120a" else 672


@contextmanager
def on(arch: Arch) -> Iterator[None]:
    """Run calls where kernels of `arch` do: on this CPU, or an emulated GPU of a few SMs."""
    with device(arch, num_sms=4) if arch.is_gpu else nullcontext():
        yield


def name(arch: Arch, types: Operands) -> str:
    """Return how a test is called."""
    scales = types.a_scale_granularity or types.scale_granularity
    words = (arch, types.a_dtype, types.b_dtype, scales, types.b_layout)
    return "-".join(map(str, words))


@pytest.mark.nightly
@pytest.mark.parametrize(("arch", "types"), [pytest.param(*kind, id=name(*kind)) for kind in KINDS])
def test_every_candidate(arch: Arch, types: Operands) -> None:
    """In all layouts, among rows that chance chose."""
    pool = Pool.draw(types, 2, 5, 136, depth(arch, types), "cpu")
    configs = allowed(arch, types)
    with on(arch):
        found = list(mistakes(pool, configs, 50 if arch is Arch.CPU else 1, most=12, seed=3))

    assert {config.layout for config in configs} == set(Layout)
    assert not [config.name(arch) for config, wrong, _ in found if wrong]


@pytest.mark.nightly
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(("arch", "types"), [pytest.param(*kind, id=name(*kind)) for kind in KINDS])
def test_every_candidate_at_every_place(arch: Arch, types: Operands, bias: bool) -> None:
    """
    Rows have their bits at all places of a tile, whatever is done to a sum in the end.

    Compilers fuse products and sums where they meet, in one unrolled block and not in the next.
    """
    pool = Pool.draw(types, 2, 5, 136, 128, "cpu", bias=bias)
    configs = allowed(arch, types, bias=bias)
    with on(arch):
        found = list(misplaced(pool, configs, (260, 27)))

    assert {config.layout for config in configs} == set(Layout)
    assert not [config.name(arch) for config, wrong in found if wrong]


def test_a_bias_is_added_alike_everywhere() -> None:
    """The same for one kernel, whose last 8 tokens had a rounding more than the others."""
    pool = Pool.draw(PREPACKED[0], 1, 5, 128, 128, "cpu", bias=True)
    configs = [
        config
        for config in allowed(Arch.SM_90A, PREPACKED[0], (Layout.RAGGED,), bias=True)
        if (config.tile.m, config.tile.n) == (32, 128)
    ]
    with on(Arch.SM_90A):
        found = list(misplaced(pool, configs, (31,)))

    assert [wrong for _, wrong in found] == [0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("arch", [Arch.CPU, Arch.SM_90A])
def test_layouts_and_tiles(arch: Arch) -> None:
    """The same for a few candidates, which have all layouts and sizes of the rest."""
    pool = Pool.draw(BLOCK128, 2, 3, 72, 656, "cpu")
    few = covering(
        allowed(arch, BLOCK128),
        lambda config: [config.layout, *([config.tile.m] * (arch == "cpu"))],
    )
    with on(arch):
        found = list(mistakes(pool, few, 1, most=4, seed=1))

    assert len(few) >= 3
    assert all(values for _, _, values in found)
    assert not [config.name(arch) for config, wrong, _ in found if wrong]


@pytest.mark.parametrize(
    "arch",
    [
        Arch.CPU,
        *(pytest.param(each, marks=pytest.mark.nightly) for each in (Arch.SM_90A, Arch("sm_100a"))),
    ],
)
def test_fc2(arch: Arch) -> None:
    """Experts along K: a token's sum goes over its own experts, whatever other tokens there are."""
    sizes = Sizes(tokens=11, experts=5, n=136, k=272, top_k=2)
    with on(arch):
        found = list(of_fc2(arch, sizes, "cpu"))

    assert len(found) > 1
    assert not [config.name(arch) for config, wrong in found if wrong]


def test_split_k_departs() -> None:
    """What is left out has other bits, which the tests above would see."""
    pool = Pool.draw(BLOCK128, 1, 3, 72, 656, "cpu")
    whole, split = allowed("sm_90a", BLOCK128)[0], departing("sm_90a", BLOCK128, Layout.RAGGED)[0]
    with on(Arch.SM_90A):
        differing = (pool.expected(whole) != pool.expected(split)).sum()

    assert 0 < int(differing) < pool.rows * pool.n


def test_a_call_that_asks() -> None:
    """Whatever stands around a row, the call of it has the same bits, and prewarmed kernels."""
    pool = Pool.draw(BLOCK128, 2, 3, 72, 272, "cpu")
    table = pool.expected(allowed(Arch.CPU, BLOCK128)[0])
    for layout in Layout:
        for lists in ([[0], []], [[1, 2, 0, 0, 1], [2]], [[0] * 40, [1] * 9]):
            batch = pool.batch(layout, lists)

            assert not int(batch.differing(table, numerics="invariant"))
    assert jitgen.settings.numerics == "fast"
