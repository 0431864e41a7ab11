# SPDX-License-Identifier: Apache-2.0
"""`quantize` before it is compiled: names, rules, choices, samples."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import jitgen
from jitgen import quantize
from jitgen.config import Arch, Config
from jitgen.config.config import Layout
from jitgen.config.format import IN_ATOMS, Format
from jitgen.config.quantize import QuantizeConfig, QuantizeProblem, Rounding, Tiling
from jitgen.errors import ConfigError, InputError, UnsupportedConfig
from jitgen.ops.quantize.samples import Sizes, make
from jitgen.targets.legality import check
from tests.refusals import assert_refused

MXFP8 = QuantizeConfig(layout=Layout.RAGGED)
NVFP4 = replace(MXFP8, format=Format.NVFP4)
GPUS = [Arch.SM_90A, Arch.parse("sm_100a"), Arch.parse("sm_103a")]


@pytest.mark.parametrize("words", ["ragged_mxfp8_r4", "ragged_mxfp8_up"])
def test_what_is_no_name(words: str) -> None:
    """Each kernel has one name, in which a default does not show."""
    with pytest.raises(ConfigError, match="no kernel name"):
        Config.parse(f"quantize_{words}_sm_90a")


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (replace(NVFP4, rounding=Rounding.FLOOR), "E_ROUNDING"),
        (replace(MXFP8, tiling=Tiling(rows=3)), "E_ROWS"),
        (replace(NVFP4, tiling=Tiling(rows=8, vector=16, ctas_per_sm=2)), "E_ROWS"),
        (replace(MXFP8, tiling=Tiling(threads=96)), "E_THREADS"),
        (replace(MXFP8, tiling=Tiling(vector=4)), "E_VECTOR"),
        (replace(MXFP8, tiling=Tiling(ctas_per_sm=17)), "E_CTAS"),
        (replace(MXFP8, tiling=Tiling(rows=8)), "E_REGS"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rules_of_sm_90a(config: QuantizeConfig, code: str) -> None:
    assert_refused(config, "sm_90a", code)


@pytest.mark.parametrize("arch", GPUS)
@pytest.mark.parametrize("form", IN_ATOMS)
@pytest.mark.parametrize("layout", Layout)
def test_every_kind_has_a_kernel_for_few_rows_and_many(
    arch: Arch, form: Format, layout: Layout
) -> None:
    for m, loads in ((8, 8), (65536, 32 if form is Format.MXFP8 else 64)):
        problem = QuantizeProblem(layout=layout, groups=8, m=m, k=7168, format=form)
        choice = jitgen.select(problem, arch)

        assert choice.config.tiling.rows * choice.config.tiling.vector == loads
        assert all(check(candidate.config, arch) for candidate in choice.candidates)


def test_k_has_whole_vectors() -> None:
    problem = QuantizeProblem(layout=Layout.RAGGED, groups=8, m=64, k=40)
    with pytest.raises(UnsupportedConfig, match="K a multiple of 16 on sm_90a"):
        jitgen.select(problem, "sm_90a")


def test_traffic() -> None:
    """x, q and scales, each once."""
    sizes = {"layout": Layout.CONTIGUOUS, "groups": 1, "m": 10, "k": 64}
    found = [QuantizeProblem(**sizes, format=form).traffic_bytes for form in IN_ATOMS]

    assert found == [10 * (128 + 64 + 2), 10 * (128 + 32 + 2), 10 * (128 + 32 + 4)]


class TestSamples:
    CONFIG = replace(NVFP4, tiling=Tiling(rows=2, ctas_per_sm=8))

    def test_nothing_is_right_before_it_is_computed(self) -> None:
        case = make(self.CONFIG, Sizes(rows=(3, 0, 2), k=64), is_exact=False)

        assert case.wrong() > 5 * 32 * 0.9

    def test_the_right_bytes_are_right_and_one_more_is_not(self) -> None:
        """A padding byte is wrong as soon as it is touched."""
        case = make(self.CONFIG, Sizes(rows=(3, 0, 2), k=64), is_exact=True)
        for each in case.outputs:
            each.write(each.expected)
        assert case.wrong() == 0
        case.output("q").found[-1, 0] += 1

        assert case.wrong() == 1
        assert case.errors()[1] == 1.0

    @pytest.mark.parametrize("text", ["8:64", "0:64:64", "8:64:40", "8:64:64:64"])
    def test_a_problem_that_is_none(self, text: str) -> None:
        with pytest.raises(ConfigError, match="is not G:M:K"):
            Sizes.parse(text, self.CONFIG)

    def test_a_problem_in_words(self) -> None:
        sizes = Sizes.parse("2:8:64", self.CONFIG)

        assert str(sizes) == "rows 2 + 6, K 64, 1 SMs"


def test_a_cpu_takes_masked_rows_and_no_config() -> None:
    x = torch.randn(2, 5, 64).bfloat16()
    counts = torch.tensor([5, 0], dtype=torch.int32)
    q, scale = quantize.mxfp8(x, masked_m=counts)

    assert (q.shape, scale.shape) == ((2, 5, 64), (2, 1, 1, 512))
    with pytest.raises(InputError, match="config: is for bfloat16 on a GPU"):
        quantize.mxfp8(x, config=MXFP8)
    with pytest.raises(InputError, match=r"masked_m: must have shape \(2,\)"):
        quantize.mxfp8(x, masked_m=counts[:1])
    with pytest.raises(InputError, match="masked_m: is for x"):
        quantize.nvfp4(x[0], masked_m=counts)
