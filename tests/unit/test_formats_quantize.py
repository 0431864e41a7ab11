# SPDX-License-Identifier: Apache-2.0
"""MXFP8, MXFP4 and NVFP4: the rounding of values and of scales, and where scales lie."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from jitgen import quantize
from jitgen.errors import InputError
from jitgen.formats import e2m1, find_format
from jitgen.formats.protocol import Rows

OFFS = torch.tensor([0, 5, 135, 135, 290], dtype=torch.int32)
MOST = {"mxfp8": (448.0, 8), "mxfp4": (6.0, 2)}


def test_every_code_comes_back() -> None:
    codes = torch.arange(256, dtype=torch.uint8)[None]
    values = e2m1.unpack(codes)

    assert torch.equal(e2m1.pack(values), codes)
    assert values[0, 2 * 0x4F : 2 * 0x4F + 2].tolist() == [-6, 2]  # the low half is the first
    assert torch.equal(e2m1.unpack(codes.view(torch.float4_e2m1fn_x2)), values)


def test_values_are_rounded_to_the_nearest_code_and_ties_to_even() -> None:
    """The last bit of an even code is 0: 0, 1, 2 and 4."""
    ties = {0.25: 0.0, 0.75: 1.0, 1.25: 1.0, 1.75: 2.0, 2.5: 2.0, 3.5: 4.0, 5.0: 4.0}
    for tie, want in ties.items():
        below, above = (math.nextafter(tie, way) for way in (0, 9))
        x = torch.tensor([tie, -tie, below, above], dtype=torch.float64)
        near = torch.tensor([tie * (1 - 2**-24), tie * (1 + 2**-23)])
        found = e2m1.unpack(e2m1.pack(x.float()))
        lower, upper = e2m1.unpack(e2m1.pack(near)).tolist()

        assert found[:2].tolist() == [want, -want]
        assert lower < upper
        assert want in {lower, upper}
    big = torch.tensor([7.0, -1e30, math.inf, math.nan])
    assert e2m1.unpack(e2m1.pack(big)).tolist() == [6, -6, 6, 0]


def dequantised(name: str, q: Tensor, scale: Tensor, rows: Rows, k: int) -> Tensor:
    form = find_format("nv16" if name == "nvfp4" else "mx32")  # type: ignore[arg-type]
    return e2m1.values_of(q) * form.repeated_a(scale, rows, k)


@pytest.mark.parametrize("rounding", ["up", "floor"])
@pytest.mark.parametrize("name", MOST)
def test_scales_are_the_powers_of_two_that_were_asked_for(name: str, rounding: str) -> None:
    """Against the definitions, at the edges: powers of two, the largest value, one step beyond."""
    most, emax = MOST[name]
    sizes = [2.0**e * x for e in (-140, -100, -3, 0, 5, 100) for x in (1, 1.5, 1.75, 1.9)]
    sizes += [math.nextafter(2.0**e * most, way) for e in (-3, 0) for way in (0, 1e9)]
    x = torch.zeros(len(sizes), 64)
    x[:, 3] = torch.tensor(sizes)
    _, scale = getattr(quantize, name)(x, rounding=rounding)
    found = quantize.from_atoms(scale, len(sizes), 2).view(torch.uint8).tolist()
    for (first, second), size in zip(found, x[:, 3].double().tolist(), strict=True):
        exponent = math.frexp(size)[1] - 1 - emax
        if rounding == "up":
            exponent = math.ceil(math.log2(size / most))
            exponent += size > most * 2.0**exponent  # where the logarithm was rounded
        assert (first, second) == (max(0, exponent + 127), 0)


@pytest.mark.parametrize("name", MOST)
def test_values_are_divided_without_rounding(name: str) -> None:
    """Even by the smallest scale: a value that the scale is exact for comes back."""
    most, _ = MOST[name]
    x = torch.tensor([[most, -most / 2, 0.5, 0] * 8], dtype=torch.float32)
    for exponent in (-118, -60, 0, 60, 118):
        wide = x * 2.0**exponent
        q, scale = getattr(quantize, name)(wide)
        assert torch.equal(dequantised(name, q, scale, Rows((1,)), 32), wide)


@pytest.mark.parametrize("layout", ["ragged", "contiguous", "masked"])
@pytest.mark.parametrize(("name", "error"), [("mxfp8", 2**-4), ("mxfp4", 2**-2), ("nvfp4", 0.2)])
def test_what_comes_back_is_near(name: str, error: float, layout: str) -> None:
    """Half a step of a value that is not subnormal, or of the smallest ones, for each block."""
    chance = torch.Generator().manual_seed(0)
    shape, offs = ((3, 130), None) if layout == "masked" else ((293,), None)
    if layout == "ragged":
        offs = OFFS
    x = torch.randn(*shape, 200, generator=chance).bfloat16()
    q, scale, *overall = getattr(quantize, name)(x, offs=offs)
    k = q.shape[-1] * (1 if name == "mxfp8" else 2)
    found = dequantised(name, q, scale, Rows(shape, 0 if offs is None else 5, offs), k)
    if overall:
        assert overall[0].shape == ((3,) if layout == "masked" else (1,))
        found = found * overall[0].view(-1, *[1] * (x.dim() - 1))
    owned = found[:290] if layout == "ragged" else found
    want = x[:290].float() if layout == "ragged" else x.float()
    blocks = torch.nn.functional.pad(want, (0, 24)).unflatten(-1, (-1, 32)).abs().amax(-1)  # type: ignore[no-untyped-call]
    near = blocks.repeat_interleave(32, -1)[..., :200] / 8

    assert k == 200
    assert ((owned - want).abs() <= error * torch.maximum(want.abs(), near * 4)).all()


@pytest.mark.parametrize("of", [quantize.mxfp8, quantize.mxfp4, quantize.nvfp4])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_makes_its_block_nan(of: Callable[..., Any], bad: float) -> None:
    x = torch.ones(2, 64)
    x[1, 40] = bad
    given = {"global_scale": torch.ones(1) / 64} if of is quantize.nvfp4 else {}
    _, scale, *_ = of(x, **given)
    size = 4 if given else 2
    is_nan = quantize.from_atoms(scale, 2, size).float().isnan()

    assert is_nan.nonzero().tolist() == [[1, 40 * size // 64]]


def test_zeros_stay_zeros() -> None:
    for of in (quantize.mxfp8, quantize.mxfp4, quantize.nvfp4):
        q, scale, *_ = of(torch.zeros(3, 64))
        assert not e2m1.values_of(q).any()
        assert not scale.view(torch.uint8).any()
    q, scale, overall = quantize.nvfp4(torch.empty(0, 64))
    assert (q.shape, scale.shape, overall.tolist()) == ((0, 32), (0, 1, 512), [1.0])


def test_nvfp4_has_two_levels() -> None:
    """The largest block's scale is 448, and the product of all three is the largest value."""
    x = torch.tensor([[1.0, 0.5, 0.25, 0] * 4 + [6.0 * 448, 0, 0, 0] * 4])
    q, scale, overall = quantize.nvfp4(x)

    assert overall.tolist() == [1.0]
    first, second = quantize.from_atoms(scale, 1, 2).float()[0].tolist()
    assert second == 448
    assert first == 0.171875  # 1 / 6, as e4m3 has it
    assert e2m1.unpack(q)[0, [0, 1, 2, 3, 16]].tolist() == [6, 3, 1.5, 0, 6]


def test_a_global_scale_may_be_given() -> None:
    x = torch.randn(2, 20, 32, generator=torch.Generator().manual_seed(1))
    _, _, found = quantize.nvfp4(x)
    assert torch.equal(found, x.abs().amax((1, 2)) / 6 / 448)
    for given in (found, torch.tensor([0.01])):
        q, scale, same = quantize.nvfp4(x, global_scale=given)
        assert same.tolist() == given.expand(2).tolist()
        one = quantize.nvfp4(x[1], global_scale=given[-1:])
        assert torch.equal(q[1], one[0])
        assert torch.equal(scale[1].view(torch.uint8), one[1].view(torch.uint8))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quantize.mxfp8(torch.ones(4)), r"x: must have 2 or 3 dimensions"),
        (lambda: quantize.mxfp8(torch.ones(2, 3, 4), offs=OFFS), r"x: must have 2 dimensions"),
        (lambda: quantize.mxfp8(torch.ones(2, 3), rounding="down"), r"rounding: must be up or fl"),
        (lambda: quantize.mxfp4(torch.ones(2, 3)), r"x: must have an even K: e2m1 has two values"),
        (lambda: quantize.nvfp4(torch.ones(2, 3)), r"x: must have an even K"),
        (
            lambda: quantize.nvfp4(torch.ones(2, 4), global_scale=torch.ones(2)),
            r"global_scale: must have shape \(1,\) \(got \(2,\)\)",
        ),
        (
            lambda: quantize.nvfp4(torch.ones(3, 2, 4), global_scale=torch.ones(2)),
            r"global_scale: must have shape \(1,\) or \(3,\)",
        ),
        (
            lambda: quantize.nvfp4(torch.ones(2, 4), global_scale=torch.ones(1).half()),
            r"global_scale: must be a float32 tensor",
        ),
        (
            lambda: quantize.nvfp4(torch.ones(2, 4), global_scale=torch.ones(1, device="meta")),
            r"global_scale: must be on cpu, as x is \(got meta\)",
        ),
    ],
)
def test_mistakes(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
