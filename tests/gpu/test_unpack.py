# SPDX-License-Identifier: Apache-2.0
"""Prepacked weights unpacked on the GPU: torch's bits; and calls of many rows that do it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen import quantize
from jitgen.config.unpack_weights import UnpackWeightsConfig
from jitgen.formats.prepacked import PrepackedWeights
from jitgen.formats.unpacked import unpacked
from jitgen.ops.grouped_gemm.prepacked_call import UnpackedLaunch
from jitgen.ops.solved import bits_differ
from jitgen.ops.unpack_weights.samples import Sizes, make
from jitgen.runtime.session import current
from tests.gpu.configs import ARCH, MANY_ROWS, UNPACK

pytestmark = pytest.mark.skipif(not UNPACK, reason=f"{ARCH} has no kernels for it")

GROUPS, N, K = MANY_ROWS.groups, MANY_ROWS.n, MANY_ROWS.k
ROWS = MANY_ROWS.rows_per_group
LARGEST_ERROR = 4e-3
"""Of any row, in the Frobenius norm: rounding to bfloat16 leaves 1.65e-3."""


@pytest.mark.parametrize("config", UNPACK, ids=[config.name(ARCH) for config in UNPACK])
@pytest.mark.parametrize("is_exact", [True, False], ids=["near", "far"])
class TestEveryKernel:
    def solve(self, config: UnpackWeightsConfig, sizes: Sizes, is_exact: bool) -> int:
        """Return how many values are wrong."""
        case = make(config, sizes, is_exact=is_exact)
        tensors = [each.cuda() for each in case.tensors]
        jitgen.get_kernel(config, ARCH)(*tensors, 132)
        for output, values in zip(case.outputs, tensors[2:], strict=True):
            output.write(values.cpu())
        return case.wrong()

    def test_edges(self, config: UnpackWeightsConfig, is_exact: bool) -> None:
        """Parts of K of which the last is short, tails of N and K, less than a block."""
        for sizes in Sizes.of(config, ARCH):
            assert self.solve(config, sizes, is_exact) == 0

    def test_many_blocks(self, config: UnpackWeightsConfig, is_exact: bool) -> None:
        assert self.solve(config, Sizes(groups=5, n=1352, k=2912), is_exact) == 0


def weights_of(layout: str) -> PrepackedWeights:
    chance = torch.Generator("cuda").manual_seed(0)
    packed, scale = (
        torch.randint(
            low, high, (GROUPS, N, size), dtype=torch.uint8, device="cuda", generator=chance
        )
        for low, high, size in ((0, 256, K // 2), (110, 125, K // 32))
    )
    return quantize.prepack_mxfp4(packed, scale, layout=layout)  # type: ignore[arg-type]


def tokens() -> tuple[Tensor, Tensor, Tensor]:
    """Return uneven groups, one of which is empty: e4m3, scales, ends."""
    counts = [ROWS + 300, 0, *[ROWS] * (GROUPS - 3), ROWS - 300 + ROWS]
    chance = torch.Generator("cuda").manual_seed(1)
    x = torch.randn(sum(counts), K, device="cuda", generator=chance)
    return *quantize.per_row(x.bfloat16()), torch.tensor(counts, device="cuda").cumsum(0).int()


def reference(weights: PrepackedWeights, given: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    a, scale, offs = given
    out, start = torch.empty(len(a), N, device="cuda"), 0
    for group, end in enumerate(offs.tolist()):
        x = a[start:end].double() * scale[start:end].double().unsqueeze(-1)
        values = weights.part(slice(group, group + 1)).weights(torch.float64)[0]
        out[start:end] = (x @ values.T).float()
        start = end
    return out


def require_near(found: Tensor, expected: Tensor) -> None:
    off = (found.float() - expected).norm(dim=1) / expected.norm(dim=1)

    assert float(off.max()) < LARGEST_ERROR


@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("layout", ["exact1", "folded1"])
def test_many_rows(layout: str, has_bias: bool) -> None:
    """Twice, for the second call is warm; exponents of rows differ by all that is exact."""
    weights, given = weights_of(layout), tokens()
    assert weights.row_spread == 14
    bias = torch.randn(GROUPS, N, device="cuda") if has_bias else None
    with jitgen.Session():
        for _ in range(2):
            found = jitgen.grouped_gemm(*given[:1], weights, given[1], offs=given[2], bias=bias)
        assert {type(each) for (each,) in current.get().memo.values()} == {UnpackedLaunch}
    expected = reference(weights, given)
    if bias is not None:
        counts = given[2].diff(prepend=given[2].new_zeros(1))
        expected += bias.repeat_interleave(counts, 0)

    require_near(found, expected)


def test_a_graph_unpacks_anew() -> None:
    """A captured call reads weights, activations and the ends of groups when it is replayed."""
    weights, (a, scale, offs) = weights_of("folded1"), tokens()
    with jitgen.Session():
        jitgen.grouped_gemm(a, weights, scale, offs=offs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = jitgen.grouped_gemm(a, weights, scale, offs=offs)
        other = weights.values.flip(0).contiguous()
        weights.values.copy_(other)
        weights.factor.copy_(weights.factor.flip(0).clone())
        graph.replay()

    require_near(out, reference(weights, (a, scale, offs)))


def test_for_callers() -> None:
    """With memory of their own; a call with that gives the bits of the one that unpacks."""
    weights, (a, scale, offs) = weights_of("exact1"), tokens()
    out = tuple(map(torch.empty_like, unpacked(weights)))
    b, b_scale = quantize.unpack_mxfp4(weights, out=out)  # type: ignore[arg-type]
    pairs = zip((b, b_scale), unpacked(weights), strict=True)

    assert b is out[0]
    assert not any(bits_differ(*pair).any() for pair in pairs)
    found = jitgen.grouped_gemm(a, b, scale, b_scale, offs=offs)
    assert torch.equal(found, jitgen.grouped_gemm(a, weights, scale, offs=offs))
