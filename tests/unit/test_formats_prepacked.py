# SPDX-License-Identifier: Apache-2.0
"""Weights prepacked for Hopper: bits, scales, the way back, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from jitgen.config import BLayout, DType
from jitgen.errors import InputError
from jitgen.formats import e2m1
from jitgen.formats import prepacked_blocks as blocks
from jitgen.formats.prepacked import (
    PrepackedWeights,
    prepack_mxfp4,
    prepack_mxfp4_from,
    spread,
)
from jitgen.formats.split import joined, split_bf16

LAYOUTS = [layout for layout in BLayout if layout.is_prepacked]
SIZES = [(2, 72, 96), (1, 128, 256), (1, 200, 416)]


def drawn(groups: int, n: int, k: int, least: int = 110, most: int = 121) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(n + k)
    packed = torch.randint(0, 256, (groups, n, k // 2), dtype=torch.uint8, generator=chance)
    scale = torch.randint(least, most + 1, (groups, n, k // 32), generator=chance)
    return packed, scale.to(torch.uint8)


def numbers(packed: Tensor, scale: Tensor) -> Tensor:
    """Return what codes and scales stand for, computed plainly."""
    factor = torch.exp2(scale.double() - 127).masked_fill(scale == 255, math.nan)
    return e2m1.unpack(packed, torch.float64) * factor.repeat_interleave(32, -1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", SIZES)
def test_unpack_is_the_inverse(sizes: tuple[int, int, int], layout: BLayout) -> None:
    packed, scale = drawn(*sizes)
    found = prepack_mxfp4(packed, scale, layout=layout)

    assert all(map(torch.equal, found.unpack(), (packed, scale)))
    assert torch.equal(found.weights(torch.float64), numbers(packed, scale))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_thread_finds_its_codes_where_the_table_says(layout: BLayout) -> None:
    """Worked out anew for one thread: the places of its rows and of its neighbours along K."""
    packed, scale = drawn(1, 64, 128)
    codes = e2m1.single(packed)[0]
    words = prepack_mxfp4(packed, scale, layout=layout).values[0, 0, 0]
    warp, lane, half, quarter = 2, 13, 1, 3
    row = 16 * warp + 2 * (lane // 4) + half
    step = blocks.BITS[DType.E2M1, layout].neighbours
    starts = range(32 * quarter + step * (lane % 4), 32 * (quarter + 1), 4 * step)
    wanted = [int(codes[row, start + i]) for start in starts for i in range(step)]
    place = 512 * (quarter // 2) + 4 * (32 * warp + lane) + 2 * (quarter % 2) + half
    word = int(words[place]) & 0xFFFFFFFF

    found = [
        sum((word >> bit & 1) << 3 - i for i, bit in enumerate(places))
        for places in blocks.BITS[DType.E2M1, layout].places
    ]
    assert found == wanted


def test_values_are_decoded_as_kernels_do() -> None:
    """The masks and shifts of the exact and the wide layout give values, but for a power of two."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(64, 8)
    wanted = e2m1.unpack(e2m1.paired(codes))[0, :4]

    word = blocks.joined(codes, BLayout.EXACT1)[0, 0, 0]  # of thread 0: 0 to 3, and 0 to 3 again
    first, second = (
        word & 0x9C9C9C9C - 2**32,
        word << 2 & 0x8C8C8C8C - 2**32 | word >> 2 & 0x10101010,
    )
    for each in (first, second):
        values = each.reshape(1).view(torch.float8_e4m3fn).float()
        assert torch.equal(values * 64, wanted)
    word = blocks.joined(codes, BLayout.WIDE1)[0, 0, 0]
    for i in range(3):
        pair = (word << 3 * i & 0x81C081C0 - 2**32).reshape(1).view(torch.bfloat16)
        assert torch.equal(
            pair.double() * 2.0**126, e2m1.unpack(e2m1.paired(codes))[0, 8 * i % 16 :][:2]
        )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_nan_is_infinity_times_zero(layout: BLayout) -> None:
    """Its byte stays 255, its values are zeros, and no other scale changes."""
    packed, scale = drawn(1, 64, 256)
    clean = prepack_mxfp4(packed, scale, layout=layout)
    scale[0, 5, 6] = 255
    found = prepack_mxfp4(packed, scale, layout=layout)

    word = found.values[0, 0, 1, blocks.VALUE_WORDS + 5].reshape(1).view(torch.uint8)
    assert word[3 if layout is BLayout.FOLDED1 else 2] == 255
    is_nan = found.weights().isnan()
    spoilt = slice(128, 256) if layout is BLayout.FOLDED1 else slice(192, 224)
    assert is_nan[0, 5, spoilt].all()
    assert int(is_nan.sum()) == is_nan[0, 5, spoilt].numel()
    assert torch.equal(found.weights()[~is_nan], clean.weights()[~is_nan])
    assert (e2m1.unpack(found.unpack()[0])[0, 5, spoilt] == 0).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scales_of_zeros_do_not_count(layout: BLayout) -> None:
    """Neither for a group's largest, nor within 128 of K."""
    packed, scale = drawn(1, 64, 128)
    packed[0, :, :16] &= 0x88
    scale[0, :, 0] = 250
    found = prepack_mxfp4(packed, scale, layout=layout)

    assert torch.equal(found.weights(torch.float64), numbers(packed, scale))
    assert found.factor <= 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("least", "most"), [(0, 3), (251, 254)])
def test_any_exponent_is_kept(layout: BLayout, least: int, most: int) -> None:
    packed, scale = drawn(1, 64, 128, least, most)

    assert torch.equal(
        prepack_mxfp4(packed, scale, layout=layout).weights(torch.float64), numbers(packed, scale)
    )


def test_folding_rounds_beyond_its_reach() -> None:
    """As spread tells; by at most 2**-13 of the largest scale of the 128."""
    packed, scale = drawn(1, 64, 256, 104, 121)
    largest = torch.exp2(scale.view(1, 64, 2, 4).amax(-1).double() - 127).repeat_interleave(128, -1)
    wanted = numbers(packed, scale)
    found = prepack_mxfp4(packed, scale, layout="folded1").weights(torch.float64)
    is_near = (spread(packed, scale) <= 11).repeat_interleave(128, -1)

    assert is_near.any()
    assert not is_near.all()
    assert torch.equal(found[is_near], wanted[is_near])
    assert 0 < ((found - wanted).abs() / largest).max() <= 2.0**-13
    assert prepack_mxfp4(packed, scale, layout="auto").layout is BLayout.EXACT1
    assert prepack_mxfp4(packed, scale // 2 + 60, layout="auto").layout is BLayout.FOLDED1


def test_weights_of_a_float_type_are_quantised_first() -> None:
    w = torch.randn(2, 72, 96, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = prepack_mxfp4_from(w).weights()

    assert float((found - w.float()).norm() / w.float().norm()) < 0.15
    assert torch.equal(prepack_mxfp4_from(found, layout="wide1").weights(), found)


def test_parts_of_groups_share_memory() -> None:
    whole = prepack_mxfp4(*drawn(3, 64, 64))
    part = whole.part(slice(1, 3))

    assert part.groups == 2
    assert part.values.data_ptr() == whole.values[1].data_ptr()
    assert torch.equal(part.weights(), whole.weights()[1:])


@pytest.mark.parametrize("layout", ["exact1", "folded1", "wide1"])
def test_the_last_scale_of_a_row_may_be_for_fewer_values(layout: str) -> None:
    chance = torch.Generator().manual_seed(0)
    packed = torch.randint(256, (2, 16, 88), dtype=torch.uint8, generator=chance)
    scale = torch.randint(120, 127, (2, 16, 6), dtype=torch.uint8, generator=chance)

    found = prepack_mxfp4(packed, scale, layout=layout)  # type: ignore[arg-type]

    assert found.k == 176
    assert torch.equal(found.unpack()[0], packed)
    assert torch.equal(found.unpack()[1], scale)
    values = e2m1.unpack(packed).view(2, 16, 11, 16)
    powers = torch.exp2(scale.float() - 127).repeat_interleave(2, -1)[..., :11, None]
    assert torch.equal(found.weights(), (values * powers).flatten(-2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": "exact2"}, "must be one of exact1, folded1, wide1, which this jitgen reads"),
        ({"layout": "plain"}, "must be one of exact1"),
        ({"n": 60}, "N must be a multiple of 8"),
        ({"k": 40}, "K must be a multiple of 16"),
        ({"n": 136}, r"values: must be torch.int32 of shape \(1, 3, 1, 1088\)"),
        ({"factor": torch.ones(1, dtype=torch.float64)}, "factor: must be torch.float32"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    whole = prepack_mxfp4(*drawn(1, 64, 64))
    parts = {name: getattr(whole, name) for name in ("values", "factor", "n", "k", "layout")}

    with pytest.raises(InputError, match=message):
        PrepackedWeights(**{**parts, **change})


@pytest.mark.parametrize(
    ("packed", "scale", "message"),
    [
        ([1], torch.zeros(1), "packed: must be a torch tensor"),
        (torch.zeros(1, 8, 16), torch.zeros(1), "packed: must be uint8 or float4_e2m1fn_x2"),
        (torch.zeros(1, 8, 16, dtype=torch.uint8), torch.zeros(1, 8, 1), "scale: must be uint8"),
        (
            torch.zeros(1, 8, 32, dtype=torch.uint8),
            torch.zeros(1, 8, 1, dtype=torch.uint8),
            r"scale: must have shape \(1, 8, 2\)",
        ),
        (
            torch.zeros(1, 8, 20, dtype=torch.uint8),
            torch.zeros(1, 8, 1, dtype=torch.uint8),
            "K must be a multiple of 16",
        ),
    ],
)
def test_what_is_no_mxfp4_is_refused(packed: object, scale: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepack_mxfp4(packed, scale)  # type: ignore[arg-type]


def test_two_parts_hold_a_bfloat16() -> None:
    """Exactly down to 2**-13 of the largest of a row."""
    x = torch.randn(3, 4, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    x[0, 0] = 0
    x[1, 1] *= torch.exp2(torch.arange(64) - 40.0)
    q, scale = split_bf16(x)

    assert (q.shape, scale.shape) == ((3, 4, 2, 64), (3, 4, 2))
    largest = x.abs().amax(-1, keepdim=True).float()
    is_near = x.abs() >= largest * 2.0**-13
    assert 0.9 < is_near.float().mean() < 1
    assert torch.equal(joined(q, scale)[is_near], x.float()[is_near])
    assert ((joined(q, scale) - x.float()).abs() <= largest * 2.0**-21).all()
    assert joined(*split_bf16(torch.tensor([[1.0, math.inf]]).bfloat16())).isnan().all()


def test_only_bfloat16_is_split() -> None:
    with pytest.raises(InputError, match=r"x: must be bfloat16, which two e4m3 hold \(got torch.f"):
        split_bf16(torch.ones(1, 8))
