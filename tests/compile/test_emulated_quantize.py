# SPDX-License-Identifier: Apache-2.0
"""MXFP8, MXFP4 and NVFP4 by kernels on an emulated GPU: the bits that a CPU's torch makes."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen import quantize
from jitgen.config import Arch
from jitgen.config.format import Format
from jitgen.config.quantize import QuantizeConfig
from jitgen.emulator import Report
from jitgen.errors import InputError
from jitgen.formats import mx32, nv16
from jitgen.ops.quantize.samples import Sizes, make, solved
from jitgen.ops.solved import Solved, bits_differ
from jitgen.verify import device, verify
from tests import needs
from tests.compile.kernels import of_words, on_gpu

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

KERNELS = [
    "ragged_mxfp8_t64_c2",
    "contiguous_nvfp4_t64_c2",
    "masked_mxfp4_floor_t64_c2",
    "masked_mxfp8_floor_t64_c2",
    "ragged_nvfp4_r2_t64_c4_v16",
    "contiguous_mxfp4_r1_t64_c8_v16_once",
    "contiguous_mxfp8_r8_c3",
    "ragged_mxfp4_r2_pdl",
    "masked_nvfp4_t64_c2",
]
"""Every layout with every format; few warps, which all get several tiles."""

OFTEN = KERNELS[:3]
"""Every layout and every format, for every push."""


config_of = partial(of_words, QuantizeConfig)


PARTS = [
    pytest.param(config_of(words), marks=() if words in OFTEN else pytest.mark.nightly, id=words)
    for words in KERNELS
]
NVFP4 = config_of(KERNELS[1])


def emulated(config: QuantizeConfig, case: Solved) -> Report:
    return jitgen.emulate(on_gpu(config), *case.tensors, 1, modes="eager", num_sms=1)


@pytest.mark.parametrize("config", PARTS)
class TestEveryKernel:
    @pytest.mark.nightly
    def test_verified(self, config: QuantizeConfig) -> None:
        """In every quick mode: ties, empty groups, padding rows; all of the code is reached."""
        found = verify(config, Arch.SM_90A, artifact=on_gpu(config))

        assert found.is_right, found.to_json()

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize(
        ("rows", "k"), [((1,), 16), ((0, 3, 129), 48), ((1,) * 40, 256), ((5, 0), 1040)]
    )
    def test_tails(self, config: QuantizeConfig, rows: tuple[int, ...], k: int) -> None:
        """A K that ends within a scale's values, within an atom, behind whole tiles."""
        case = make(config, Sizes(rows=rows, k=k), is_exact=False)
        report = emulated(config, case)

        assert case.wrong() == 0
        assert report.is_clean, report.findings

    def test_what_is_not_finite(self, config: QuantizeConfig) -> None:
        case = special(config)
        emulated(config, case)
        q, scale = case.results()

        assert not scale.is_wrong[scale.group == 0].any()
        if config.format is not Format.NVFP4:
            assert not q.is_wrong[q.group == 0].any()


def special(config: QuantizeConfig) -> Solved:
    """Return a call with every kind of number that is not finite, zeros and subnormal numbers."""
    x = torch.randn(8, 128, generator=torch.Generator().manual_seed(0))
    x[0, 3], x[1, 40], x[2, 70] = math.inf, -math.inf, math.nan
    x[2, 5], x[3], x[4] = -math.nan, 0.0, -0.0
    x[5], x[6, :64], x[7] = x[5] * 2.0**-130, x[6, :64] * 2.0**120, 2.0**-133
    x = x.bfloat16()
    if config.layout == "ragged":
        return solved(config, x, torch.tensor([3, 8], dtype=torch.int32))
    groups = torch.tensor([8], dtype=torch.int32) if config.layout == "masked" else None
    return solved(config, x.unsqueeze(0), groups)


@pytest.mark.parametrize("overall", [1.0, 2.0**-100, 2.0**100, 0.0, math.nan, 1e-42, 3e-3])
def test_any_scale_over_the_scales(overall: float) -> None:
    """Where inverses would overflow or lose bits, and where scales are 0, clipped or NaN."""
    x = torch.randn(1, 9, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    x = torch.cat([x, x * 2.0**100, x * 2.0**-100, x * 2.0**-60], 1)
    given = torch.tensor([overall])
    q, scale, _ = nv16.nvfp4(x, global_scale=given)
    mine, my_scale = torch.empty_like(q), torch.empty_like(scale)
    jitgen.emulate(on_gpu(NVFP4), x, mine, my_scale, given, 1, modes="eager", num_sms=1)
    atoms = (quantize.from_atoms(each, x.shape[1], 4) for each in (my_scale, scale))

    assert not bits_differ(*atoms).any()
    assert torch.equal(mine, q)


def test_quotients_beside_a_tie() -> None:
    """Divisors whose inverse is hardest to round: a bit more or less than a power of two."""
    x = torch.arange(128, 256).repeat(6, 1).float() * 2.0 ** torch.arange(-5, 1)[:, None]
    x = torch.cat([x, torch.full((6, 128), 12.0)], 1).view(6, 2, 8, 16).transpose(1, 2)
    x = torch.cat([x.flatten(1), -x.flatten(1)]).bfloat16().unsqueeze(0)
    for bits in (0x3F7FFFFF, 0x3F800001, 0x3F7FFFFE, 0x3FAAAAAB):
        given = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
        q, _, _ = nv16.nvfp4(x, global_scale=given)
        mine, scale = torch.empty_like(q), torch.empty(1, 1, 4, 512, dtype=torch.float8_e4m3fn)
        jitgen.emulate(on_gpu(NVFP4), x, mine, scale, given, 1, modes="eager", num_sms=1)

        assert torch.equal(mine, q)


def test_every_mantissa_beside_every_tie() -> None:
    """MXFP4's quotients have the 8 bits of bf16: all of them, from below a quarter to beyond 6."""
    config = config_of(KERNELS[2])
    mantissas = torch.arange(128, 256).float() / 128 * 2.0 ** torch.arange(-4, 4)[:, None]
    x = torch.cat([mantissas.view(-1, 16), torch.full((64, 16), 12.0)], 1).view(1, 16, 128)
    x = torch.cat([x, -x], 1).bfloat16()
    case = solved(config, x, torch.tensor([x.shape[1]], dtype=torch.int32))
    emulated(config, case)

    assert case.wrong() == 0


class TestCalls:
    """What `jitgen.quantize` gives where a GPU has a kernel."""

    @pytest.fixture(autouse=True)
    def emulated_gpu(self, shared_cache: None) -> Any:
        with device("sm_90a", num_sms=1):
            yield

    X = torch.randn(2, 9, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    OFFS = torch.tensor([4, 4, 9], dtype=torch.int32)

    def same(self, found: tuple[Tensor, ...], expected: tuple[Tensor, ...], size: int) -> None:
        rows = expected[0].shape[-2]

        assert torch.equal(found[0].view(torch.uint8), expected[0].view(torch.uint8))
        assert found[1].shape == expected[1].shape
        mine, want = (quantize.from_atoms(each, rows, size) for each in (found[1], expected[1]))
        assert torch.equal(mine.view(torch.uint8), want.view(torch.uint8))

    def test_matrices(self) -> None:
        """One, several, a part of one, and the same once more, which is warm."""
        for x in (self.X[0], self.X, self.X[:, :5], self.X[1, 2:]):
            for _ in range(2):
                self.same(quantize.mxfp8(x), mx32.mxfp8(x), 2)

    def test_ragged(self) -> None:
        x = self.X[0]
        q, scale = quantize.mxfp8(x, offs=self.OFFS)
        want, atoms = mx32.mxfp8(x, offs=self.OFFS)
        by_row = (quantize.from_atoms(each, 9, 2, offs=self.OFFS) for each in (scale, atoms))

        assert torch.equal(q.view(torch.uint8), want.view(torch.uint8))
        first, second = (each.view(torch.uint8) for each in by_row)
        assert torch.equal(first, second)

    def test_masked(self) -> None:
        counts = torch.tensor([9, 9], dtype=torch.int32)
        self.same(quantize.mxfp8(self.X, masked_m=counts), mx32.mxfp8(self.X), 2)

    def test_nvfp4(self) -> None:
        for given in (None, torch.tensor([0.002])):
            found = quantize.nvfp4(self.X, global_scale=given)
            expected = nv16.nvfp4(self.X, global_scale=given)

            self.same(found[:2], expected[:2], 4)
            assert torch.equal(found[2], expected[2])

    def test_torch_does_the_rest(self) -> None:
        for x in (self.X[0].float(), self.X[0, :, :40], self.X[0].t().contiguous().t()):
            self.same(quantize.mxfp8(x), mx32.mxfp8(x), -(-x.shape[1] // 32))

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"config": NVFP4}, r"config: must be for what is asked, contiguous_mxfp8"),
            ({"masked_m": OFFS}, r"masked_m: is for x \(G, M, K\), without offs"),
        ],
    )
    def test_refused(self, given: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError, match=message):
            quantize.mxfp8(self.X[0], **given)

    def test_a_config_needs_a_kernel(self) -> None:
        with pytest.raises(InputError, match="config: is for bfloat16 on a GPU"):
            quantize.mxfp8(self.X[0].float(), config=config_of(KERNELS[6]))
