# SPDX-License-Identifier: Apache-2.0
"""NVFP4 weights prepacked for Hopper: scales, the way back, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen import quantize
from jitgen.config import BLayout
from jitgen.errors import InputError
from jitgen.formats import e2m1
from jitgen.formats import prepacked_blocks as blocks

LAYOUTS = [BLayout.EXACT1, BLayout.WIDE1]
SIZES = [(2, 72, 48), (1, 128, 256), (1, 200, 400)]


def drawn(groups: int, n: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    chance = torch.Generator().manual_seed(n + k)
    packed = torch.randint(0, 256, (groups, n, k // 2), dtype=torch.uint8, generator=chance)
    bits = torch.randint(1, 127, (groups, n, k // 16), dtype=torch.uint8, generator=chance)
    overall = torch.rand(groups, generator=chance) / 1000 + 1e-4
    return packed, bits.view(torch.float8_e4m3fn), overall


def numbers(packed: Tensor, scale: Tensor, overall: Tensor) -> Tensor:
    factor = (scale.double() * overall.double()[:, None, None]).repeat_interleave(16, -1)
    return e2m1.unpack(packed, torch.float64) * factor


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", SIZES)
def test_weights_are_what_they_were(sizes: tuple[int, int, int], layout: BLayout) -> None:
    """Of every scale that e4m3 has, subnormal ones too, in both layouts."""
    packed, scale, overall = drawn(*sizes)
    found = quantize.prepack_nvfp4(packed, scale, overall, layout=layout)

    assert found.format == "nvfp4"
    assert torch.equal(found.unpack()[0], packed)
    assert torch.equal(found.unpack()[1].float(), scale.float())
    assert torch.equal(found.weights(torch.float64), numbers(packed, scale, overall))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_times_scales_are_bfloat16(layout: BLayout) -> None:
    """What makes wide1 exact: a product has six significant bits."""
    packed, scale, _ = drawn(1, 128, 256)
    found = quantize.prepack_nvfp4(packed, scale, torch.ones(1), layout=layout).weights()

    assert torch.equal(found.bfloat16().float(), found)


def test_a_byte_of_scales_is_where_the_table_says() -> None:
    packed, scale, overall = drawn(1, 64, 128)
    block = quantize.prepack_nvfp4(packed, scale, overall).values[0, 0, 0]
    row = 37
    start = blocks.VALUE_WORDS + 2 * row
    stored = block[start : start + 2].contiguous().view(torch.uint8).to(torch.int16) << 7

    assert torch.equal(stored.view(torch.float16).float(), scale[0, row].float())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scales_that_are_no_numbers_zero_or_negative(layout: BLayout) -> None:
    packed, scale, overall = drawn(1, 64, 128)
    scale[0, 5, 1] = math.nan
    scale[0, 6, 2] = 0
    scale[0, 7, 3] = -1.5
    found = quantize.prepack_nvfp4(packed, scale, overall, layout=layout).weights(torch.float64)
    wanted = numbers(packed, scale, overall)

    assert found[0, 5, 16:32].isnan().all()
    assert int(found.isnan().sum()) == 16
    assert torch.equal(found.nan_to_num(), wanted.nan_to_num())


def test_one_global_scale_is_that_of_all_groups(tmp_path: Path) -> None:
    packed, scale, _ = drawn(2, 72, 48)
    one = quantize.prepack_nvfp4(packed, scale, torch.tensor([0.25]))
    both = quantize.prepack_nvfp4(packed, scale, torch.tensor([0.25, 0.25]))
    quantize.save_prepacked({"a": one}, tmp_path / "weights.safetensors")
    loaded = quantize.load_prepacked(tmp_path / "weights.safetensors")["a"]

    assert torch.equal(one.factor, both.factor)
    assert loaded.kind == one.kind
    assert torch.equal(loaded.weights(), one.weights())


def test_quantised_here_is_what_is_multiplied() -> None:
    """The quantiser's atoms, row by row, are what prepacking takes."""
    w = torch.randn(2, 64, 96, generator=torch.Generator().manual_seed(0))
    packed, atoms, overall = quantize.nvfp4(w)
    scale = quantize.from_atoms(atoms, 64, 6)
    found = quantize.prepack_nvfp4(packed, scale, overall, layout="wide1").weights()

    assert float((found - w).norm() / w.norm()) < 0.1
    assert jitgen.quantize.PrepackedWeights is type(
        quantize.prepack_nvfp4(packed.view(torch.float4_e2m1fn_x2), scale, overall)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"packed": torch.zeros(1, 64, 64)}, "packed: must be uint8 or float4_e2m1fn_x2"),
        ({"packed": torch.zeros(0, 64, 64, dtype=torch.uint8)}, "packed: must have at least one"),
        ({"packed": torch.zeros(1, 60, 64, dtype=torch.uint8)}, "n: N must be a multiple of 8"),
        ({"packed": torch.zeros(1, 64, 60, dtype=torch.uint8)}, "k: K must be a multiple of 16"),
        ({"scale": torch.ones(1, 64, 8)}, "scale: must be torch.float8_e4m3fn of shape"),
        ({"global_scale": torch.ones(2)}, r"global_scale: must be torch.float32 of shape \(1,\)"),
        ({"global_scale": 1.0}, "global_scale: must be torch.float32"),
        ({"layout": "folded1"}, "layout: must be one of exact1, wide1"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    packed, scale, overall = drawn(1, 64, 128)
    given = {"packed": packed, "scale": scale, "global_scale": overall, **change}

    with pytest.raises(InputError, match=message):
        quantize.prepack_nvfp4(**given)  # type: ignore[arg-type]
