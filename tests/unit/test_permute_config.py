# SPDX-License-Identifier: Apache-2.0
"""`permute_quantize` and `combine` before they are compiled: names, rules, choices, samples."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

import jitgen
from jitgen.config import Config, Layout
from jitgen.config.combine import CombineConfig, CombineProblem
from jitgen.config.combine import Tiling as CombineTiling
from jitgen.config.format import Format
from jitgen.config.permute_quantize import (
    PermuteQuantizeConfig,
    PermuteQuantizeProblem,
    Tiling,
    Walk,
)
from jitgen.errors import ConfigError, UnsupportedConfig
from jitgen.ops.combine import samples as combining
from jitgen.ops.permute_quantize import samples as permuting
from jitgen.ops.solved import bits_of
from jitgen.targets.legality import check
from tests.refusals import assert_refused

BLOCKS = PermuteQuantizeConfig(layout=Layout.RAGGED)
SUMS = CombineConfig()


@pytest.mark.parametrize(
    "name",
    [
        "permute_quantize_ragged_block128_gather_r1_sm_90a",
        "permute_quantize_ragged_block128_sm_90a",
        "combine_bf16_l4_sm_90a",
        "combine_sm_90a",
    ],
)
def test_a_default_that_shows_is_no_name(name: str) -> None:
    """Each kernel has one name."""
    with pytest.raises(ConfigError, match="no kernel name"):
        Config.parse(name)


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (replace(BLOCKS, format=Format.NONE, power_of_two=True), "E_POWER_OF_TWO"),
        (replace(BLOCKS, rounding="floor"), "E_ROUNDING"),
        (replace(BLOCKS, format=Format.MXFP8, walk=Walk.SCATTER), "E_WALK"),
        (replace(BLOCKS, layout=Layout.MASKED, walk=Walk.SCATTER), "E_WALK"),
        (replace(BLOCKS, layout=Layout.CONTIGUOUS, format=Format.NVFP4), "E_LAYOUT"),
        (replace(BLOCKS, layout=Layout.MASKED, walk=Walk.SORT), "E_WALK"),
        (replace(BLOCKS, walk=Walk.SORT, tiling=Tiling(rows=2)), "E_SORT"),
        (replace(BLOCKS, walk=Walk.SORT, tiling=Tiling(is_eager=True)), "E_EAGER"),
        (replace(BLOCKS, format=Format.TENSOR, walk=Walk.COPY), "E_COPY"),
        (replace(BLOCKS, walk=Walk.COPY, power_of_two=True), "E_COPY"),
        (replace(BLOCKS, walk=Walk.COPY), "E_COPY"),
        (replace(BLOCKS, walk=Walk.COPY, tiling=Tiling(vector=16, rows=2)), "E_COPY"),
        (replace(BLOCKS, walk=Walk.COPY, tiling=Tiling(vector=16, is_persistent=True)), "E_COPY"),
        (
            PermuteQuantizeConfig(
                layout="ragged",
                format="row",
                walk="copy",
                tiling=Tiling(vector=16, is_relayed=True),
            ),
            "E_RELAYED",
        ),
        (replace(BLOCKS, tiling=Tiling(rows=3)), "E_ROWS"),
        (replace(BLOCKS, tiling=Tiling(threads=96)), "E_THREADS"),
        (replace(BLOCKS, tiling=Tiling(held=2)), "E_HELD"),
        (replace(BLOCKS, tiling=Tiling(is_eager=True)), "E_EAGER"),
        (replace(BLOCKS, tiling=Tiling(is_relayed=True)), "E_RELAYED"),
        (
            replace(BLOCKS, format=Format.ROW, walk="scatter", tiling=Tiling(is_relayed=True)),
            "E_RELAYED",
        ),
        (replace(BLOCKS, tiling=Tiling(threads=256, ctas_per_sm=9)), "E_CTAS"),
        (replace(BLOCKS, tiling=Tiling(rows=4, vector=16)), "E_REGS"),
        (
            replace(BLOCKS, format=Format.ROW, tiling=Tiling(rows=4, vector=16, held=4)),
            "E_SPILLS",
        ),
        (CombineConfig(tiling=CombineTiling(loads=3)), "E_LOADS"),
        (CombineConfig(tiling=CombineTiling(loads=16)), "E_REGS"),
        (CombineConfig(tiling=CombineTiling(threads=256, ctas_per_sm=9)), "E_CTAS"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rules_of_sm_90a(config: Config, code: str) -> None:
    assert_refused(config, "sm_90a", code)


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (replace(BLOCKS, tiling=Tiling(rows=2)), "E_TILING"),
        (replace(BLOCKS, format=Format.MXFP8), "E_FORMAT"),
        (replace(BLOCKS, walk=Walk.SCATTER), "E_WALK"),
        (CombineConfig(tiling=CombineTiling(loads=8)), "E_TILING"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rules_of_a_cpu(config: Config, code: str) -> None:
    verdict = check(config, "cpu")

    assert verdict.code == code
    assert verdict.proposal in (BLOCKS, SUMS)


@pytest.mark.parametrize(
    ("tokens", "words"), [(4096, "v16_relayed"), (64, "t64_c16_eager"), (1, "t64_c16_eager")]
)
def test_few_tokens_are_loaded_at_once_and_scales_of_many_relayed(tokens: int, words: str) -> None:
    problem = PermuteQuantizeProblem(layout=Layout.RAGGED, m=tokens, k=7168, walk=Walk.SCATTER)
    choice = jitgen.select(problem, "sm_90a")

    assert choice.config.to_name() == f"ragged_block128_scatter_{words}"
    assert len(choice.candidates) <= 5


@pytest.mark.parametrize("form", [Format.BLOCK128, Format.ROW])
def test_quantised_tokens_are_copied(form: Format) -> None:
    kind = {"layout": Layout.RAGGED, "format": form, "walk": Walk.COPY}
    problem = PermuteQuantizeProblem(m=1, k=7168, **kind)  # type: ignore[arg-type]
    choice = jitgen.select(problem, "sm_90a")

    assert choice.config.to_name() == f"ragged_{form}_copy_t64_c16_v16_eager"
    many = jitgen.select(replace(problem, m=4096), "sm_90a").config
    assert many.to_name() == f"ragged_{form}_copy_v16{'_relayed' * (form is Format.BLOCK128)}"
    assert jitgen.select(problem, "cpu").config == PermuteQuantizeConfig(**kind)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="walk copy is for block128 and row"):
        replace(problem, format=Format.NONE)


def test_few_pairs_are_sorted_by_a_warp_for_each_part_of_a_token() -> None:
    problem = PermuteQuantizeProblem(layout=Layout.RAGGED, m=1, k=7168, walk=Walk.SORT)

    assert jitgen.select(problem, "sm_90a").config.to_name() == "ragged_block128_sort_t64_c16"
    assert jitgen.select(problem, "cpu").config == replace(BLOCKS, walk=Walk.SORT)
    with pytest.raises(ConfigError, match="must be gather for scales in atoms"):
        replace(problem, format=Format.MXFP8)


def test_samples_of_what_sorts_tell_right_from_wrong() -> None:
    sizes = permuting.Sizes(rows=(3, 0, 2), top_k=3, k=272)
    case = permuting.make(replace(BLOCKS, walk=Walk.SORT), sizes, is_exact=True)
    q, scale, *order = case.outputs
    for each in (q, scale):
        each.write(each.expected)
    assert case.wrong() == sum(each.found.numel() for each in order)
    for each in order:
        each.write(each.expected)
    assert case.wrong() == 0
    assert case.output("offs").expected.tolist() == [3, 3, 5]
    for each in order:
        each.found.flatten()[1] += 1
    assert case.wrong() == 3


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_120a"])
def test_sizes_that_no_vector_covers_are_refused(arch: str) -> None:
    rows = PermuteQuantizeProblem(layout=Layout.RAGGED, m=64, k=1000)
    sums = CombineProblem(m=64, n=1001)
    for problem, multiple in ((rows, 16), (sums, 8)):
        with pytest.raises(UnsupportedConfig, match=f"a multiple of {multiple}"):
            jitgen.select(problem, arch)
    assert jitgen.select(rows, "cpu").config == BLOCKS
    assert jitgen.select(sums, "cpu").config == SUMS


@pytest.mark.parametrize(
    ("layout", "form"),
    [
        (layout, form)
        for layout, form in itertools.product(Layout, Format)
        if layout is not Layout.CONTIGUOUS or not form.has_atoms
    ],
)
def test_samples_tell_right_from_wrong(layout: Layout, form: Format) -> None:
    """The answer itself is right; one step, a scale or a padding row is not."""
    config = replace(BLOCKS, layout=layout, format=form)
    sizes = permuting.Sizes(rows=(3, 0, 2), top_k=3, k=272)

    def solved() -> Any:
        case = permuting.make(config, sizes, is_exact=True)
        assert case.wrong() > 0, "nothing was computed yet"
        for each in case.outputs:
            each.write(each.expected)
        return case

    assert solved().wrong() == 0
    for is_owned in (True, False):
        for number, output in enumerate(solved().outputs):
            case = solved()
            bits = bits_of(case.outputs[number].found)
            place = (output.owned == is_owned).nonzero()[0]
            bits[(*place, *[0] * (bits.ndim - len(place)))] ^= 1
            assert case.wrong() == 1


def test_samples_of_sums_tell_right_from_wrong() -> None:
    case = combining.make(SUMS, combining.Sizes(tokens=5, top_k=3, n=16), is_exact=True)
    assert case.wrong() > 0
    (out,) = case.outputs
    out.write(out.expected)
    assert case.wrong() == 0
    bits_of(out.found)[2, 3] += 1
    assert case.wrong() == 1


@pytest.mark.parametrize(
    ("module", "config", "text"),
    [
        (permuting, BLOCKS, "4:100:7168:8"),
        (combining, SUMS, "16:7168:8"),
    ],
)
def test_sizes_of_a_text(module: Any, config: Config, text: str) -> None:
    assert str(module.Sizes.parse(text, config))
    for wrong in (text + ":1", "x", text.replace("8", "99")):
        with pytest.raises(ConfigError, match="is not"):
            module.Sizes.parse(wrong, config)
