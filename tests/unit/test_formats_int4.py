# SPDX-License-Identifier: Apache-2.0
"""INT4 weights prepacked for Hopper: codes, scales, the way back, and the orders of others."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from jitgen import quantize
from jitgen.config import BLayout, DType
from jitgen.config.prepacked import PrepackedFormat
from jitgen.errors import InputError
from jitgen.formats import int4
from jitgen.formats import prepacked_blocks as blocks

LAYOUTS = [BLayout.EXACT1, BLayout.WIDE1]
SIZES = [(2, 72, 96, 32), (1, 128, 256, 32), (1, 200, 384, 128)]
SCALES = [torch.bfloat16, torch.float16]


def drawn(
    groups: int, n: int, k: int, size: int, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(n + k)
    values = torch.randint(-8, 8, (groups, n, k), generator=chance)
    scale = torch.rand((groups, n, k // size), generator=chance) / 10 + 0.001
    return values, scale.to(dtype)


def packed(values: Tensor) -> Tensor:
    """Return words of eight values plus 8, packed plainly."""
    codes = values.long().add(8).view(*values.shape[:-1], -1, 8)
    words = sum(codes[..., i] << 4 * i for i in range(8))
    return torch.where(words >= 2**31, words - 2**32, words).int()


def numbers(values: Tensor, scale: Tensor) -> Tensor:
    size = values.shape[-1] // scale.shape[-1]
    return values.double() * scale.double().repeat_interleave(size, -1)


@pytest.mark.parametrize("dtype", SCALES)
@pytest.mark.parametrize("sizes", SIZES)
def test_exact_weights_are_what_they_were(
    sizes: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    values, scale = drawn(*sizes, dtype)
    found = quantize.prepack_int4(packed(values), scale)

    assert found.format == f"int4_{sizes[-1]}"
    assert all(map(torch.equal, found.unpack(), (packed(values), scale.float())))
    assert torch.equal(found.weights(torch.float64), numbers(values, scale))


@pytest.mark.parametrize("sizes", SIZES)
def test_wide_weights_are_rounded_once(sizes: tuple[int, int, int, int]) -> None:
    """As checkpoints' own bfloat16 is; a float16 scale is rounded before, too."""
    values, scale = drawn(*sizes)
    found = quantize.prepack_int4(packed(values), scale, layout="wide1")
    half = quantize.prepack_int4(packed(values), scale.half(), layout="wide1")

    assert torch.equal(found.unpack()[0], packed(values))
    assert torch.equal(found.weights(), numbers(values, scale).float().bfloat16().float())
    rounded = numbers(values, scale.half().bfloat16()).float().bfloat16().float()
    assert torch.equal(half.weights(), rounded)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_thread_finds_its_codes_where_the_table_says(layout: BLayout) -> None:
    """Worked out anew for one thread: the places of its rows, neighbours along K and scales."""
    values, scale = drawn(1, 64, 128, 32)
    block = quantize.prepack_int4(packed(values), scale, layout=layout).values[0, 0, 0]
    warp, lane, half, quarter = 2, 13, 1, 3
    row = 16 * warp + 2 * (lane // 4) + half
    step = blocks.BITS[DType.INT4, layout].neighbours
    starts = range(32 * quarter + step * (lane % 4), 32 * (quarter + 1), 4 * step)
    wanted = [int(values[0, row, start + i]) for start in starts for i in range(step)]
    place = 512 * (quarter // 2) + 4 * (32 * warp + lane) + 2 * (quarter % 2) + half
    word = int(block[place]) & 0xFFFFFFFF
    codes = [
        sum((word >> bit & 1) << 3 - i for i, bit in enumerate(places))
        for places in blocks.BITS[DType.INT4, layout].places
    ]

    assert int4.from_codes(torch.tensor(codes), layout).tolist() == wanted
    words = block[blocks.VALUE_WORDS + 2 * row : blocks.VALUE_WORDS + 2 * row + 2]
    stored = words.contiguous().view(torch.float16 if layout is BLayout.EXACT1 else torch.bfloat16)
    ratio = stored.double() / scale[0, row].double()
    assert torch.equal(ratio, ratio[:1].expand(4))


def test_values_are_decoded_as_kernels_do() -> None:
    """A few operations leave e4m3 of v * 2**-9, and bfloat16 of (v + 8) * 2**-133."""
    values = torch.arange(-8, 8).repeat(64, 8)
    codes = int4.codes_of(values, BLayout.EXACT1)
    words = blocks.joined(codes, BLayout.EXACT1, DType.INT4)[0, 0]
    word = words[:4][0].long() & 0xFFFFFFFF  # of thread 0: 0 to 3, and 16 to 19, which are the same
    signs = word >> 3 & 0x11111111
    magnitudes = word - 7 * signs
    for shift, sign in ((0, 7), (4, 3)):
        bits = magnitudes >> shift & 0x0F0F0F0F | signs << sign & 0x80808080
        found = torch.stack([bits >> 8 * i & 255 for i in range(4)]).to(torch.uint8)
        assert torch.equal(found.view(torch.float8_e4m3fn).float() * 512, values[0, :4].float())
    codes = int4.codes_of(values, BLayout.WIDE1)
    word = blocks.joined(codes, BLayout.WIDE1, DType.INT4)[0, 0, 0].long() & 0xFFFFFFFF
    for pair in range(4):
        halves = torch.stack([word >> 4 * pair & 15, word >> 4 * pair + 16 & 15]).to(torch.int16)
        found = halves.view(torch.bfloat16).double() * 2.0**133
        start = 8 * pair % 16
        assert torch.equal(found, values[0, start : start + 2].double() + 8)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [32, 128])
def test_a_scale_that_is_no_number_spoils_its_values_alone(layout: BLayout, size: int) -> None:
    values, scale = drawn(1, 64, 256, size)
    clean = quantize.prepack_int4(packed(values), scale, layout=layout).weights()
    scale[0, 5, 1], scale[0, 6, 0] = math.nan, math.inf
    found = quantize.prepack_int4(packed(values), scale, layout=layout).weights()
    is_spoilt = torch.zeros_like(found, dtype=torch.bool)
    is_spoilt[0, 5, size : 2 * size] = is_spoilt[0, 6, :size] = True

    assert not found[is_spoilt].isfinite().any()
    assert torch.equal(found[~is_spoilt], clean[~is_spoilt])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scales_far_below_the_largest(layout: BLayout) -> None:
    """Exact to 2**-28 of the largest of a group; of exact1 then near, to 2**-39 of it."""
    values, scale = drawn(1, 64, 128, 32)
    scale = torch.exp2(-torch.arange(256).view(1, 64, 4) / 5.5).bfloat16()
    found = quantize.prepack_int4(packed(values), scale, layout=layout)
    wanted = numbers(values, scale)
    if layout is BLayout.WIDE1:
        wanted = wanted.float().bfloat16().double()
    is_near = (scale.double() >= 2.0**-28).repeat_interleave(32, -1)

    assert torch.equal(found.weights(torch.float64)[is_near], wanted[is_near])
    assert (found.weights(torch.float64) - wanted).abs().max() <= 8 * 2.0**-39


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("power", [-126, 0, 63])
def test_any_scale_below_the_limit_is_kept(layout: BLayout, power: int) -> None:
    values, _ = drawn(1, 64, 128, 32)
    scale = torch.full((1, 64, 4), 2.0**power).bfloat16()
    weights = quantize.prepack_int4(packed(values), scale, layout=layout)

    if power == -126:  # of float32 numbers such products are subnormal
        assert weights.factor.isfinite().all()
    else:
        assert torch.equal(weights.weights(torch.float64), numbers(values, scale))
    with pytest.raises(InputError, match=r"scale: must be below 2\*\*64"):
        quantize.prepack_int4(packed(values), scale.fill_(2.0**64), layout=layout)


def test_zeros_alone() -> None:
    values, scale = drawn(1, 64, 128, 128)
    for layout in LAYOUTS:
        found = quantize.prepack_int4(packed(values), scale * 0, layout=layout)
        assert not found.weights().any()


def test_parts_copies_and_files(tmp_path: Path) -> None:
    values, scale = drawn(3, 64, 128, 128)
    whole = quantize.prepack_int4(packed(values), scale)
    part = whole.part(slice(1, 3)).to("cpu")
    quantize.save_prepacked({"a": whole}, tmp_path / "weights.safetensors")
    loaded = quantize.load_prepacked(tmp_path / "weights.safetensors")["a"]

    assert torch.equal(part.weights(), whole.weights()[1:])
    for each in (loaded, copy.copy(whole)):
        assert each.format is PrepackedFormat.INT4_128
        assert each.kind == whole.kind
        assert torch.equal(each.weights(), whole.weights())
    assert whole.with_row_spread() is whole
    assert not whole.has_near_rows


def test_they_are_never_unpacked_to_fp8() -> None:
    values, scale = drawn(1, 64, 128, 32)

    with pytest.raises(InputError, match="must be mxfp4, whose scales are powers of two"):
        quantize.unpack_mxfp4(quantize.prepack_int4(packed(values), scale))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"packed": torch.zeros(1, 64, 16)}, "packed: must be int32"),
        ({"packed": torch.zeros(0, 64, 16, dtype=torch.int32)}, "packed: must have groups"),
        ({"scale": torch.ones(1, 64, 4)}, "scale: must be bfloat16 or float16"),
        ({"scale": torch.ones(1, 64, 2).half()}, r"scale: must have shape .* or \(1, 64, 4\)"),
        (
            {"packed": torch.zeros(1, 60, 16, dtype=torch.int32)},
            r"shape .* or \(1, 60, 4\)",
        ),
        ({"layout": "folded1"}, "layout: must be one of exact1, wide1"),
        ({"layout": "auto"}, "layout: must be one of exact1, wide1"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    values, scale = drawn(1, 64, 128, 32)
    given = {"packed": packed(values), "scale": scale, **change}

    with pytest.raises(InputError, match=message):
        quantize.prepack_int4(**given)  # type: ignore[arg-type]


def test_sizes_are_multiples() -> None:
    values, scale = drawn(1, 60, 128, 32)
    with pytest.raises(InputError, match="n: N must be a multiple of 8"):
        quantize.prepack_int4(packed(values), scale)


def by_column(values: Tensor, order: tuple[int, ...]) -> Tensor:
    """Return words along the last dimension, in which eight values lie in an order."""
    codes = values.long().add(8).unflatten(-1, (-1, 8))
    words = sum(codes[..., value] << 4 * i for i, value in enumerate(order))
    return torch.where(words >= 2**31, words - 2**32, words).int()


def test_the_orders_of_others() -> None:
    """GPTQ packs along K, AWQ along N in the order 0, 2, 4, 6, 1, 3, 5, 7."""
    values, scale = drawn(2, 64, 128, 32, torch.float16)
    eights = torch.zeros(2, 4, 64)
    gptq = packed(values).mT
    awq = by_column(values.mT, (0, 2, 4, 6, 1, 3, 5, 7))
    of_gptq = quantize.int4_from_gptq(gptq, scale.mT, packed(eights - 1))
    of_gptq2 = quantize.int4_from_gptq(gptq, scale.mT, packed(eights), is_v2=True)
    of_awq = quantize.int4_from_awq(awq, scale.mT, packed(eights))

    for words, scales in (of_gptq, of_gptq2, of_awq):
        assert torch.equal(words, packed(values))
        assert torch.equal(scales, scale)
    for call in (
        lambda: quantize.int4_from_gptq(gptq, scale.mT, packed(eights)),
        lambda: quantize.int4_from_awq(awq, scale.mT, packed(eights - 1)),
    ):
        with pytest.raises(InputError, match=r"qzeros: must be .* in every place"):
            call()
    with pytest.raises(InputError, match=r"qweight: must be int32, \(G, K, N / 8\)"):
        quantize.int4_from_awq(values, scale.mT)
