# SPDX-License-Identifier: Apache-2.0
"""Prepacked weights unpacked by kernels on an emulated GPU, and multiplied as FP8 ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen import quantize
from jitgen.config import Arch
from jitgen.config.unpack_weights import UnpackWeightsConfig
from jitgen.errors import InputError
from jitgen.formats.prepacked import PrepackedWeights
from jitgen.formats.unpacked import unpacked
from jitgen.ops.grouped_gemm import prepacked_algorithms
from jitgen.ops.grouped_gemm.prepacked_call import PrepackedLaunch, UnpackedLaunch
from jitgen.ops.solved import bits_differ
from jitgen.ops.unpack_weights.samples import Sizes, make, solved
from jitgen.runtime.session import current
from jitgen.verify import device, verify
from tests import needs
from tests.compile.kernels import of_words, on_gpu
from tests.compile.test_override import edited

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

KERNELS = ["exact1_k4", "folded1_k4", "exact1_k64_c2_pdl", "folded1"]
OFTEN = KERNELS[:2]
"""Every layout, for every push."""


NIGHTLY = pytest.mark.nightly


config_of = partial(of_words, UnpackWeightsConfig)


PARTS = [
    pytest.param(config_of(words), marks=() if words in OFTEN else NIGHTLY, id=words)
    for words in KERNELS
]


@pytest.mark.parametrize("config", PARTS)
class TestEveryKernel:
    @NIGHTLY
    def test_verified(self, config: UnpackWeightsConfig) -> None:
        """In every quick mode, bit for bit; all of the code is reached."""
        found = verify(config, Arch.SM_90A, artifact=on_gpu(config))

        assert found.is_right, found.to_json()

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize(("groups", "n", "k"), [(3, 8, 32), (2, 136, 416), (1, 64, 1152)])
    def test_tails(self, config: UnpackWeightsConfig, groups: int, n: int, k: int) -> None:
        """One row of blocks or three, K of a quarter of a block, with a tail, of an odd number."""
        sizes = Sizes(groups=groups, n=n, k=k)
        for is_exact in (True, False):
            case = make(config, sizes, is_exact=is_exact, seed=sizes.n)
            report = jitgen.emulate(
                on_gpu(config), *case.tensors, 1, modes="eager", num_sms=sizes.num_sms
            )

            assert case.wrong() == 0
            assert report.is_clean, report.findings

    def test_every_distance(self, config: UnpackWeightsConfig) -> None:
        """All codes at all exponents below the largest, up to where nothing is left of them."""
        codes = torch.arange(16, dtype=torch.uint8).repeat(1, 8, 2 * 24)
        packed = codes[..., 0::2] | codes[..., 1::2] << 4
        scale = (100 + torch.arange(24, dtype=torch.uint8)).repeat(1, 8, 1)
        weights = quantize.prepack_mxfp4(packed, scale, layout=config.b_layout)
        case = solved(weights)
        jitgen.emulate(on_gpu(config), *case.tensors, 1, modes="eager", num_sms=1)

        assert not case.results()[0].is_wrong.any()
        assert weights.row_spread == 23


ROWS = (13, 0, 27)
OFFS = torch.tensor([13, 13, 40], dtype=torch.int32)
COUNTS = torch.tensor([13, 27])
N, K = 72, 416


def weights_of(layout: str, spread: int = 12) -> PrepackedWeights:
    chance = torch.Generator().manual_seed(0)
    packed = torch.randint(256, (3, N, K // 2), dtype=torch.uint8, generator=chance)
    scale = torch.randint(112, 113 + spread, (3, N, K // 32), dtype=torch.uint8, generator=chance)
    scale[2, 5, 3] = 255  # which makes a column of group 2 NaN
    return quantize.prepack_mxfp4(packed, scale, layout=layout)  # type: ignore[arg-type]


def tokens() -> tuple[Tensor, Tensor]:
    x = torch.randn(sum(ROWS), K, generator=torch.Generator().manual_seed(1))
    return quantize.per_row(x.bfloat16())


def padded(x: Tensor, starts: tuple[int, int], rows: int) -> Tensor:
    """Return (rows, ...) with the rows of both groups that have some from `starts` on."""
    out = torch.zeros((rows, *x.shape[1:]), dtype=x.dtype)
    for start, each in zip(starts, (slice(0, 13), slice(13, 40)), strict=True):
        out.view(torch.uint8)[start : start + each.stop - each.start] = x.view(torch.uint8)[each]
    return out


def launches() -> set[type]:
    return {type(each) for launches in current.get().memo.values() for each in launches}


@pytest.fixture
def unpacks(monkeypatch: pytest.MonkeyPatch, shared_cache: None) -> Iterator[None]:
    """An emulated GPU, where few rows are taken for many."""
    monkeypatch.setattr(prepacked_algorithms.Algorithms, "is_unpacked_faster", True)
    with device("sm_90a", num_sms=2):
        yield


@pytest.mark.usefixtures("unpacks")
class TestCalls:
    """What `jitgen.grouped_gemm` does where unpacking pays: the bits of a call with FP8 weights."""

    @pytest.mark.parametrize("layout", ["exact1", pytest.param("folded1", marks=NIGHTLY)])
    def test_ragged(self, layout: str) -> None:
        """Twice, for the second call is warm; and with results of the caller's."""
        weights, (a, scale) = weights_of(layout), tokens()
        expected = jitgen.grouped_gemm(a, *pair(weights, scale), offs=OFFS)
        for out in (None, None, torch.empty(40, N, dtype=torch.bfloat16)):
            found = jitgen.grouped_gemm(a, weights, scale, offs=OFFS, out=out)
            assert same(found, expected)
        exact = reference(a, weights, scale)
        close = torch.allclose(found.float(), exact, rtol=2.0**-8, atol=1e-4, equal_nan=True)

        assert close
        assert UnpackedLaunch in launches()
        assert exact.isnan().any()

    @NIGHTLY
    def test_masked(self) -> None:
        weights, (a, scale) = weights_of("exact1"), tokens()
        a, scale = (padded(x, (0, 54), 81).view(3, 27, *x.shape[1:]) for x in (a, scale))
        counts = torch.tensor(ROWS, dtype=torch.int32)
        found = jitgen.grouped_gemm(a, weights, scale, masked_m=counts)
        expected = jitgen.grouped_gemm(a, *pair(weights, scale), masked_m=counts)

        assert same(found[0, :13], expected[0, :13])
        assert same(found[2], expected[2])
        assert UnpackedLaunch in launches()

    @NIGHTLY
    def test_contiguous(self) -> None:
        weights, (a, scale) = weights_of("folded1"), tokens()
        a, scale = (padded(x, (0, 128), 256) for x in (a, scale))
        group = torch.full((256,), -1, dtype=torch.int32)
        group[:13], group[128:155] = 0, 2
        found = jitgen.grouped_gemm(a, weights, scale, m_indices=group)
        expected = jitgen.grouped_gemm(a, *pair(weights, scale), m_indices=group)

        assert same(found[group >= 0], expected[group >= 0])
        assert UnpackedLaunch in launches()

    def test_with_a_bias(self) -> None:
        weights, (a, scale) = weights_of("exact1"), tokens()
        bias = torch.randn(3, N, generator=torch.Generator().manual_seed(2))
        found = jitgen.grouped_gemm(a, weights, scale, offs=OFFS, bias=bias)
        expected = jitgen.grouped_gemm(a, *pair(weights, scale), offs=OFFS, bias=bias)
        exact = reference(a, weights, scale) + bias[[0, 2]].repeat_interleave(COUNTS, 0)

        assert same(found, expected)
        assert torch.allclose(found.float(), exact, rtol=2.0**-8, atol=1e-4, equal_nan=True)
        assert UnpackedLaunch in launches()

    def test_rows_that_would_be_rounded_are_not_unpacked(self) -> None:
        weights, (a, scale) = weights_of("exact1", 15), tokens()
        found = jitgen.grouped_gemm(a, weights, scale, offs=OFFS)
        expected = reference(a, weights, scale)

        assert torch.allclose(found.float(), expected, rtol=2.0**-8, atol=1e-4, equal_nan=True)
        assert launches() == {PrepackedLaunch}

    def test_no_workspace_no_unpacking(self) -> None:
        weights, (a, scale) = weights_of("exact1"), tokens()
        with jitgen.settings.scope(max_workspace=3 * N * (K + 4) - 1):
            jitgen.grouped_gemm(a, weights, scale, offs=OFFS)
        assert launches() == {PrepackedLaunch}

    def test_mistakes_are_told(self) -> None:
        """By the checks of every other call, warm or not."""
        weights, (a, scale) = weights_of("exact1"), tokens()
        jitgen.grouped_gemm(a, weights, scale, offs=OFFS)
        with pytest.raises(InputError, match="as b was prepacked with K = 416"):
            jitgen.grouped_gemm(a.view(80, 208), weights, torch.ones(80), offs=OFFS)
        with pytest.raises(InputError, match="out: must have shape"):
            jitgen.grouped_gemm(a, weights, scale, offs=OFFS, out=torch.empty(40, 64).bfloat16())


def pair(weights: PrepackedWeights, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what stands for the weights in a call with FP8 ones: b, a_scale, b_scale."""
    b, b_scale = unpacked(weights)
    return b, scale, b_scale


def same(found: Tensor, expected: Tensor) -> bool:
    return torch.equal(found.isnan(), expected.isnan()) and torch.equal(
        found.nan_to_num(), expected.nan_to_num()
    )


def reference(a: Tensor, weights: PrepackedWeights, scale: Tensor) -> Tensor:
    """Return the product in float64, of ragged rows."""
    x, w = a.double() * scale.double().unsqueeze(-1), weights.weights(torch.float64)
    parts = [x[:13] @ w[0].T, x[13:] @ w[2].T]
    return torch.cat(parts).float()


class TestUnpacking:
    """`jitgen.quantize.unpack_mxfp4` beside torch's operations."""

    def test_the_same_bits_everywhere(self, shared_cache: None) -> None:
        weights = weights_of("exact1", 20)
        expected, in_torch = unpacked(weights), quantize.unpack_mxfp4(weights)
        mine = tuple(map(torch.empty_like, expected))
        with device("sm_90a", num_sms=2):
            found = quantize.unpack_mxfp4(weights)
            config = config_of("exact1_k4")
            assert quantize.unpack_mxfp4(weights, out=mine, config=config) is mine

        for each in (in_torch, found, mine):
            assert not any(bits_differ(*pair).any() for pair in zip(each, expected, strict=True))

    def test_an_edited_kernel(self, shared_cache: None, tmp_path: Path) -> None:
        weights, config = weights_of("exact1"), config_of("exact1_k4")
        before = "return factor * bits.bitcast(Float32)"
        mine = edited(config, tmp_path / "my.py", before, f"{before} * 2.0", arch="sm_90a")
        with device("sm_90a", num_sms=2):
            b, b_scale = quantize.unpack_mxfp4(weights, config=config)
            found, scale = quantize.unpack_mxfp4(weights, config=mine)

        assert not bits_differ(found, b).any()
        assert not bits_differ(scale, b_scale * 2).any()
        assert b_scale.nan_to_num().any()

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"out": torch.empty(2)}, r"out: must be two tensors, b and b_scale \(got Tensor"),
            ({"out": (torch.empty(3, N, K), torch.empty(3, N))}, r"out\[0\]: must"),
            ({"config": config_of("folded1")}, "config: must be for exact1"),
            ({"config": 3}, r"config: must be an UnpackWeightsConfig \(got int"),
        ],
    )
    def test_refused(self, given: dict[str, Any], message: str) -> None:
        with device("sm_90a", num_sms=2), pytest.raises(InputError, match=message):
            quantize.unpack_mxfp4(weights_of("exact1"), **given)

    def test_a_config_needs_a_kernel(self) -> None:
        with pytest.raises(InputError, match=r"config: is for a GPU with a kernel \(got cpu"):
            quantize.unpack_mxfp4(weights_of("exact1"), config=config_of("exact1_k4"))
