# SPDX-License-Identifier: Apache-2.0
"""The plan of a layer is what the layer asks for, no more and no less."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import jitgen
from jitgen import plans
from jitgen.errors import KernelMiss
from jitgen.runtime.session import current
from tests import needs
from tests.moe_cases import FORMATS, SOME_FORMATS, make

pytestmark = needs.compiler
ONE_FORMAT = (
    "block128",
    *(pytest.param(form, marks=pytest.mark.nightly) for form in FORMATS if form != "block128"),
)
OPERATIONS = {"route", "permute_quantize", "grouped_gemm", "activation_quantize", "combine"}


class TestAPlan:
    @pytest.mark.usefixtures("shared_cache")
    @pytest.mark.parametrize("form", ONE_FORMAT)
    def test_it_is_what_calls_load(self, form: str) -> None:
        """For all numbers of tokens; a process with only these kernels misses none."""
        case = make(form, tokens=300)
        layer = jitgen.MoELayer(case.config, case.weights, max_tokens=300)
        planned = {config.name("cpu") for config in layer.configs("cpu")}
        for tokens in (1, 2, 5, 24, 25, 60, 150, 300):
            given = [each[:tokens] for each in case.given]
            layer(*given)
            layer(*given, shared=given[0])
            layer(*given, shared=given[0], shared_weights=torch.ones(tokens))
        loaded = {kernel.name for kernel in current.get().loader.loaded()}

        assert loaded == planned

    @pytest.mark.parametrize("form", SOME_FORMATS)
    def test_it_is_written_and_read(self, form: str, tmp_path: Path) -> None:
        case = make(form)
        plan = jitgen.MoELayer(case.config, case.weights, max_tokens=64).plan(name="mine")
        assert {sweep.problem.op for sweep in plan.sweeps} == OPERATIONS
        path = tmp_path / "mine.toml"
        path.write_text(plans.text(plan), encoding="utf-8")

        assert plans.load(path) == plan

    @pytest.mark.parametrize("form", SOME_FORMATS)
    def test_hopper_has_its_kernels(self, form: str) -> None:
        """Each launch of the chain has some; of e4m3 rows prefill unpacks prepacked weights."""
        case = make(form)
        configs = jitgen.MoELayer(case.config, case.weights).configs("sm_90a")
        unpacks = {"unpack_weights"} if form in ("exact1_row", "nvfp4_exact1_row") else set()

        assert {config.op for config in configs} == OPERATIONS | unpacks


@pytest.mark.nightly
def test_prewarmed_and_frozen() -> None:
    """Nothing is compiled any more, and what was not planned for is a miss."""
    case = make("bf16")
    layer = jitgen.MoELayer(case.config, case.weights, max_tokens=19)
    report = layer.prewarm("cpu", jobs=1)
    assert report.ok
    assert report.rows
    with jitgen.Session(on_miss="error"):
        assert case.error(layer(*case.given)) < case.tolerance
        other = make("block128")
        with pytest.raises(KernelMiss):
            jitgen.MoELayer(other.config, other.weights)(*other.given)


@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-hopper", "glue", "swiglu", "route"])
def test_shipped_plans_are_written_and_read(name: str, tmp_path: Path) -> None:
    plan = plans.load(name)
    path = tmp_path / f"{name}.toml"
    path.write_text(plans.text(plan), encoding="utf-8")

    assert plans.load(path) == plan
