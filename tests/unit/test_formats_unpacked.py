# SPDX-License-Identifier: Apache-2.0
"""Prepacked weights as FP8 ones: the numbers that were prepacked, and when they are just that."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from jitgen import quantize
from jitgen.config import BLayout
from jitgen.errors import InputError
from jitgen.formats import prepacked_files
from jitgen.formats.prepacked import PrepackedWeights, spread_of_rows
from jitgen.formats.unpacked import LAYOUTS, REACH, least, shift, unpacked

GROUPS, N, K = 2, 72, 416  # 3 k-blocks and a quarter


def weights_of(spread: int, layout: str, *, base: int = 120) -> PrepackedWeights:
    """Return weights of which some row's exponents differ by `spread`, others' by less."""
    chance = torch.Generator().manual_seed(spread)
    packed = torch.randint(256, (GROUPS, N, K // 2), dtype=torch.uint8, generator=chance)
    of_row = torch.randint(spread + 1, (GROUPS, N, 1), generator=chance)
    of_row[0, 0] = spread
    scale = base + (torch.rand((GROUPS, N, K // 32), generator=chance) * (of_row + 1)).int()
    if layout == "folded1":  # which rounds beyond 11 within 128 of K, before anything is unpacked
        scale = scale[..., ::4].repeat_interleave(4, -1)[..., : K // 32]
    scale[0, 0, :4], scale[0, 0, 4:8] = base, base + spread
    packed[0, 0] |= 0x22  # no block of zeros, which would not count
    packed[1, 6], scale[1, 7, 2], scale[1, 8] = 0, 255, 255
    return quantize.prepack_mxfp4(packed, scale.to(torch.uint8), layout=layout)  # type: ignore[arg-type]


def values_of(b: Tensor, b_scale: Tensor) -> Tensor:
    return b.double() * b_scale.double().unsqueeze(-1)


def same(found: Tensor, expected: Tensor) -> bool:
    """Say whether two are equal, NaNs too."""
    return torch.equal(found.isnan(), expected.isnan()) and torch.equal(
        found.nan_to_num(), expected.nan_to_num()
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("spread", range(21))
def test_exact_up_to_a_spread_of_14_in_a_row(spread: int, layout: BLayout) -> None:
    """Beyond that each value is off by half of e4m3's smallest step at most, and says so."""
    weights = weights_of(spread, layout)
    b, b_scale = unpacked(weights)
    found, expected = values_of(b, b_scale), weights.weights(torch.float64)

    assert weights.row_spread == spread
    assert weights.has_near_rows == (spread <= REACH)
    assert same(found, expected) == (spread <= REACH)
    off = (found - expected).abs().nan_to_num()
    assert (off <= 2.0**-10 * b_scale.double().unsqueeze(-1)).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("base", [0, 3, 100, 240])
def test_any_range_of_exponents(base: int, layout: BLayout) -> None:
    """Near both ends of UE8M0, where scales are large or subnormal numbers."""
    weights = weights_of(14, layout, base=base)

    assert same(values_of(*unpacked(weights)), weights.weights(torch.float64))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_zeros_and_of_nans(layout: BLayout) -> None:
    b, b_scale = unpacked(weights_of(3, layout))

    assert b_scale.isfinite().all()
    assert (b_scale > 0).all()
    assert not b[1, 6].float().any()
    assert b[1, 8].float().isnan().all()
    assert b[1, 7, 64:96].float().isnan().all()
    assert not b[1, 7, 128:].float().isnan().any()


def test_scales_are_what_the_layouts_say() -> None:
    """As kernels have them, in numbers of their own."""
    assert [shift(layout) for layout in LAYOUTS] == [139, 127]
    assert [least(layout) for layout in LAYOUTS] == [13, 1]


@pytest.mark.parametrize("layout", [*LAYOUTS, BLayout.WIDE1])
def test_the_spread_is_found_again(layout: BLayout) -> None:
    """By who has the prepacked weights alone; wide ones never count as near."""
    weights = weights_of(9, layout)
    bare = PrepackedWeights(
        values=weights.values, factor=weights.factor, n=N, k=K, layout=weights.layout
    )

    assert spread_of_rows(weights.values, layout) == 9
    assert bare.row_spread is None
    assert not bare.has_near_rows
    assert bare.with_row_spread().row_spread == 9
    assert weights.with_row_spread() is weights
    assert weights.has_near_rows == (layout is not BLayout.WIDE1)
    assert (bare.kind == weights.kind) == (layout is BLayout.WIDE1)


def test_parts_and_copies_keep_the_spread() -> None:
    weights = weights_of(9, "exact1")

    assert weights.part(slice(1, 2)).row_spread == 9
    assert weights.to("cpu").row_spread == 9


def test_wide_weights_are_refused() -> None:
    with pytest.raises(InputError, match=r"must be prepacked as exact1 or folded1 \(got wide1"):
        unpacked(weights_of(3, "wide1"))
    with pytest.raises(InputError, match=r"must be PrepackedWeights \(got Tensor"):
        unpacked(torch.ones(2))  # type: ignore[arg-type]


@pytest.mark.parametrize("spread", [-1, 255, "many"])
def test_a_spread_that_is_none(spread: object) -> None:
    weights = weights_of(3, "exact1")
    with pytest.raises(InputError, match="row_spread: must be None or from 0 to 254"):
        PrepackedWeights(
            values=weights.values,
            factor=weights.factor,
            n=N,
            k=K,
            layout=BLayout.EXACT1,
            row_spread=spread,  # type: ignore[arg-type]
        )


def test_files_keep_the_spread_and_old_ones_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("safetensors")
    path = tmp_path / "weights.safetensors"
    bare = PrepackedWeights(
        **{name: getattr(weights_of(5, "exact1"), name) for name in ("values", "factor", "layout")},
        n=N,
        k=K,
    )
    quantize.save_prepacked({"old": bare, "new": weights_of(7, "folded1")}, path)
    found = quantize.load_prepacked(path)
    assert {name: each.row_spread for name, each in found.items()} == {"old": 5, "new": 7}

    def refuse(*_: object) -> int:
        raise AssertionError("looked for what the file says")

    quantize.save_prepacked(found, path)
    monkeypatch.setattr("jitgen.formats.prepacked.spread_of_rows", refuse)
    assert quantize.load_prepacked(path)["old"].row_spread == 5
    assert prepacked_files._SPREAD == "row_spread"
