# SPDX-License-Identifier: Apache-2.0
"""MXFP8 weights prepacked for Hopper: places of values, scales, the way back, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from jitgen import quantize
from jitgen.config import BLayout
from jitgen.errors import InputError
from jitgen.formats import mxfp8

LAYOUTS = [BLayout.EXACT1, BLayout.WIDE1]
SIZES = [(2, 72, 96), (1, 128, 256), (1, 200, 416)]


def drawn(groups: int, n: int, k: int, least: int = 110, most: int = 121) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(n + k)
    bits = torch.randint(0, 256, (groups, n, k), dtype=torch.uint8, generator=chance)
    bits -= ((bits & 127) == 127).to(torch.uint8)  # no NaN
    scale = torch.randint(least, most + 1, (groups, n, k // 32), generator=chance)
    return bits.view(torch.float8_e4m3fn), scale.to(torch.uint8)


def numbers(b: Tensor, scale: Tensor) -> Tensor:
    return b.double() * torch.exp2(scale.double() - 127).repeat_interleave(32, -1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", SIZES)
def test_unpack_is_the_inverse(sizes: tuple[int, int, int], layout: BLayout) -> None:
    b, scale = drawn(*sizes)
    found = quantize.prepack_mxfp8(b, scale.view(torch.float8_e8m0fnu), layout=layout)

    assert found.format == "mxfp8"
    assert torch.equal(found.unpack()[0].view(torch.uint8), b.view(torch.uint8))
    assert torch.equal(found.unpack()[1], scale)
    assert torch.equal(found.weights(torch.float64), numbers(b, scale))


def test_a_thread_finds_its_values_where_wgmma_takes_them() -> None:
    """Worked out anew for one thread, as both layouts have them."""
    values = drawn(1, 64, 128)[0].view(torch.uint8)[0]
    warp, lane, half, plane, part = 2, 13, 1, 3, 1
    row, thread = 16 * warp + 2 * (lane // 4) + half, lane % 4
    place = 512 * plane + 4 * (32 * warp + lane) + 2 * part + half
    words = mxfp8.joined(values, BLayout.EXACT1)[0, 0]
    start = 32 * plane + 16 * part + 4 * thread
    found = words[place].reshape(1).view(torch.uint8)
    assert found.tolist() == values[row, start : start + 4].tolist()

    word = int(mxfp8.joined(values, BLayout.WIDE1)[0, 0, place]) & 0xFFFFFFFF
    start = 32 * plane + 16 * part + 2 * thread
    first = word & 0x87F087F0
    second = word << 1 & 0x80008000 | word >> 3 & 0x07000700 | word << 4 & 0x00F000F0
    for pair, at in ((first, start), (second, start + 8)):
        halves = torch.tensor([pair & 0xFFFF, pair >> 16]).to(torch.int32).to(torch.int16)
        wide = halves.view(torch.bfloat16).double() * 2.0**120
        assert torch.equal(wide, values[row, at : at + 2].view(torch.float8_e4m3fn).double())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("least", "most"), [(0, 3), (20, 23), (251, 254)])
def test_any_exponent_is_kept(layout: BLayout, least: int, most: int) -> None:
    b, scale = drawn(1, 64, 128, least, most)
    found = quantize.prepack_mxfp8(b, scale, layout=layout)

    assert torch.equal(found.weights(torch.float64), numbers(b, scale))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nans_of_scales_and_of_values(layout: BLayout) -> None:
    """Either makes the 32 that share a scale NaN, and no others."""
    b, scale = drawn(1, 64, 256)
    clean = quantize.prepack_mxfp8(b, scale, layout=layout).weights()
    scale[0, 5, 6] = 255
    b.view(torch.uint8)[0, 6, 40] = 0x7F
    found = quantize.prepack_mxfp8(b, scale, layout=layout).weights()
    is_nan = found.isnan()

    assert is_nan[0, 5, 192:224].all()
    assert is_nan[0, 6, 32:64].all()
    assert int(is_nan.sum()) == 64
    assert torch.equal(found[~is_nan], clean[~is_nan])


def test_scales_of_squares_are_those_of_their_rows(tmp_path: Path) -> None:
    b, _ = drawn(2, 64, 96)
    square = torch.randint(110, 121, (2, 2, 3)).to(torch.uint8)
    found = quantize.prepack_mxfp8(b, square)
    rows = quantize.prepack_mxfp8(b, square.repeat_interleave(32, 1))
    quantize.save_prepacked({"a": found}, tmp_path / "weights.safetensors")
    loaded = quantize.load_prepacked(tmp_path / "weights.safetensors")["a"]

    for each in (rows, loaded):
        assert torch.equal(found.values, each.values)
        assert torch.equal(found.factor, each.factor)
        assert each.kind == found.kind


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b": torch.zeros(1, 64, 128)}, r"b: must be float8_e4m3fn, \(G, N, K\)"),
        ({"b": torch.zeros(0, 64, 128).to(torch.float8_e4m3fn)}, "b: must have at least one"),
        ({"b": torch.zeros(1, 60, 128).to(torch.float8_e4m3fn)}, "n: N must be a multiple of 8"),
        ({"b": torch.zeros(1, 64, 120).to(torch.float8_e4m3fn)}, "k: K must be a multiple of 16"),
        ({"scale": torch.ones(1, 64, 4)}, "scale: must be uint8 or float8_e8m0fnu of shape"),
        ({"scale": torch.ones(1, 64, 3, dtype=torch.uint8)}, r"\(1, 64, 4\) or \(1, 2, 4\)"),
        ({"layout": "folded1"}, "layout: must be one of exact1, wide1"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    b, scale = drawn(1, 64, 128)

    with pytest.raises(InputError, match=message):
        quantize.prepack_mxfp8(**{"b": b, "scale": scale, **change})  # type: ignore[arg-type]
