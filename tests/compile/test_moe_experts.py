# SPDX-License-Identifier: Apache-2.0
"""`jitgen.moe_experts`: a matrix of tokens for each expert, as a low-latency dispatch leaves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen import plans
from jitgen.errors import InputError
from jitgen.layer import reference
from jitgen.runtime.session import current
from jitgen.verify import device
from tests import needs
from tests.moe_cases import EXPERTS, HIDDEN, SOME_FORMATS, Case, make

pytestmark = [needs.compiler, pytest.mark.usefixtures("shared_cache")]

ROWS = 20
COUNTS = (7, 0, ROWS, 1, 16, 3)
"""Rows of each expert that are tokens: none, one, all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A layer with its matrices of tokens; rows that are none hold what must not be read."""

    case: Case
    layer: jitgen.MoELayer
    x: Tensor
    masked_m: Tensor

    def error(self, found: Tensor) -> float:
        case = self.case
        expected = reference.moe_experts(self.x, case.weights, self.masked_m, case.config)
        return reference.relative_error(self.tokens(found), self.tokens(expected))

    def tokens(self, found: Tensor) -> Tensor:
        return torch.cat([found[g, :m] for g, m in enumerate(COUNTS)])


def given(form: str, rows: int = ROWS, max_tokens: int | None = None) -> Given:
    case = make(form)
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(EXPERTS, rows, HIDDEN, generator=generator).bfloat16()
    for group, count in enumerate(COUNTS):
        x[group, count:] = torch.nan
    return Given(
        case=case,
        layer=jitgen.MoELayer(case.config, case.weights, max_tokens=max_tokens),
        x=x,
        masked_m=torch.tensor(COUNTS, dtype=torch.int32),
    )


@pytest.mark.parametrize("form", SOME_FORMATS)
class TestEveryFormat:
    def test_right(self, form: str) -> None:
        """Within what its formats round; nothing is read or written behind an expert's tokens."""
        each = given(form)
        out = torch.full_like(each.x, 77.0)
        found = each.layer.experts(each.x, each.masked_m, out=out, expected_m=4)

        assert found is out
        assert each.error(out) < each.case.tolerance
        for group, count in enumerate(COUNTS):
            assert (out[group, count:] == 77.0).all()

    def test_the_function_and_memory_change_no_bit(self, form: str) -> None:
        """A call without a module; a workspace, twice; and the result in the place of tokens."""
        each = given(form)
        weights, config = each.case.weights, each.case.config
        expected = each.tokens(each.layer.experts(each.x, each.masked_m))
        workspace = jitgen.Workspace.of(config, weights, 1, masked=ROWS)
        for _ in range(2):
            found = jitgen.moe_experts(
                each.x, each.masked_m, **each.case.named, **config.gate, workspace=workspace
            )
            assert torch.equal(each.tokens(found), expected)
        kept = jitgen.MoELayer(config, weights, workspace=workspace)
        x = each.x.clone()
        assert torch.equal(each.tokens(kept.experts(x, each.masked_m, out=x)), expected)


@pytest.mark.parametrize("form", ["block128", pytest.param("row", marks=pytest.mark.nightly)])
def test_tokens_in_float8_are_taken_as_they_are(form: str) -> None:
    """The same bits as of tokens that are quantised here, in any order of the scales."""
    each = given(form)
    quantise = jitgen.quantize.per_token_group if form == "block128" else jitgen.quantize.per_row
    x, scale = quantise(each.x.nan_to_num())
    expected = each.tokens(each.layer.experts(each.x, each.masked_m))

    for x_scale in (scale, scale.contiguous()):
        found = each.layer.experts(x, each.masked_m, x_scale=x_scale)
        assert torch.equal(each.tokens(found), expected)


class TestThePlan:
    @pytest.mark.parametrize("form", SOME_FORMATS)
    def test_it_is_what_calls_load(self, form: str, tmp_path: Path) -> None:
        """And only where it is asked for; it can be written and read."""
        each = given(form, rows=40)
        usual = set(each.layer.configs("cpu", 1))
        planned = set(each.layer.configs("cpu", 1, masked=40)) - usual
        for rows in (1, 2, 9, 20, 33, 40):
            x = each.x[:, :rows].nan_to_num().contiguous()
            counts = each.masked_m.clamp(max=rows)
            each.layer.experts(x, counts)
            each.layer.experts(x, counts, expected_m=1)
        loaded = {kernel.name for kernel in current.get().loader.loaded()}
        path = tmp_path / "masked.toml"
        plan = each.layer.plan(1, name="masked", masked=40)
        path.write_text(plans.text(plan), encoding="utf-8")

        assert loaded == {config.name("cpu") for config in planned}
        assert plans.load(path) == plan

    @pytest.mark.parametrize("form", SOME_FORMATS)
    def test_hopper_has_its_kernels(self, form: str) -> None:
        layer = given(form).layer
        added = set(layer.configs("sm_90a", 1, masked=40)) - set(layer.configs("sm_90a", 1))
        quantises = {"permute_quantize"} if layer.weights.a_dtype is torch.float8_e4m3fn else set()
        masked = {config.op for config in added if "_masked_" in config.name("sm_90a")}

        assert masked == {"grouped_gemm", "activation_quantize"} | quantises
        assert {config.op for config in added} - masked <= {"unpack_weights"}

    def test_rows_are_a_number(self) -> None:
        with pytest.raises(InputError, match="masked: must be an integer"):
            given("bf16").layer.plan(masked=0)


@pytest.mark.parametrize("form", ["bf16", pytest.param("block128", marks=pytest.mark.nightly)])
def test_torch_compile_sees_one_graph(form: str) -> None:
    """For every number of rows, where a call outside has memory of its own."""
    each = given(form, max_tokens=64)
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(each.layer.experts, fullgraph=True, dynamic=True, backend=backend)
    for rows in (5, 7, 20):
        x = each.x[:, :rows].nan_to_num().contiguous()
        counts = each.masked_m.clamp(max=rows)
        found, expected = (call(x, counts) for call in (compiled, each.layer.experts))
        for group, count in enumerate(counts.tolist()):
            assert torch.equal(found[group, :count], expected[group, :count])
    assert len(graphs) == 1


@pytest.mark.nightly
def test_torch_export_has_any_number_of_rows() -> None:
    """Tokens are quantised in the program, too; torch tells strides of two blocks apart."""
    (w13, s13), (w2, s2) = (
        jitgen.quantize.per_block(torch.randn(EXPERTS, n, HIDDEN) / 16) for n in (512, HIDDEN)
    )
    config = jitgen.MoEConfig(hidden=HIDDEN, intermediate=HIDDEN, experts=EXPERTS, top_k=1)
    weights = jitgen.ExpertWeights(w13=w13, w2=w2, w13_scale=s13, w2_scale=s2)
    layer = jitgen.MoELayer(config, weights, max_tokens=64)

    class Experts(torch.nn.Module):
        def forward(self, x: Tensor, masked_m: Tensor) -> Tensor:
            return layer.experts(x, masked_m, expected_m=4)

    masked_m = torch.tensor(COUNTS, dtype=torch.int32)
    x = torch.randn(EXPERTS, 33, HIDDEN).bfloat16()
    rows = torch.export.Dim("rows", min=2, max=1024)
    program = torch.export.export(
        Experts(), (x[:, :25].contiguous(), masked_m), dynamic_shapes=({1: rows}, {})
    )
    found, expected = program.module()(x, masked_m), layer.experts(x, masked_m, expected_m=4)
    for group, count in enumerate(COUNTS):
        assert torch.equal(found[group, :count], expected[group, :count])


@needs.linker
@pytest.mark.nightly
@pytest.mark.parametrize("form", ["block128", "bf16"])
def test_on_an_emulated_gpu(form: str) -> None:
    """Each launch is clean, and none loads anything before the dispatch has ended."""
    each = given(form)
    config = each.case.config
    workspace = jitgen.Workspace.of(config, each.case.weights, 1, masked=ROWS)
    with device("sm_90a") as reports:
        found = jitgen.moe_experts(
            each.x, each.masked_m, **each.case.named, expected_m=8, workspace=workspace
        )

    assert each.error(found) < each.case.tolerance
    assert len(reports) == (3 if form == "bf16" else 4)
    assert not any("_earlyb_" in report.name for report in reports)
    assert all(report.is_clean and "_masked_" in report.name for report in reports)


def test_no_rows() -> None:
    each = given("block128")

    assert each.layer.experts(each.x[:, :0], each.masked_m).shape == (EXPERTS, 0, HIDDEN)


FLOAT8 = torch.zeros(EXPERTS, ROWS, HIDDEN).to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("form", "changes", "argument"),
    [
        ("bf16", {"x": torch.zeros(EXPERTS, ROWS, HIDDEN)}, "x"),
        ("bf16", {"x": FLOAT8}, "x"),
        ("bf16", {"x": torch.zeros(EXPERTS, HIDDEN).bfloat16()}, "x"),
        ("bf16", {"x": torch.zeros(EXPERTS - 1, ROWS, HIDDEN).bfloat16()}, "x"),
        ("block128", {"x": torch.zeros(EXPERTS, HIDDEN, ROWS).bfloat16().mT}, "x"),
        ("block128", {"x": torch.zeros(EXPERTS, 2 * ROWS, HIDDEN).bfloat16()[:, :ROWS]}, "x"),
        ("block128", {"x": FLOAT8}, "x_scale"),
        ("block128", {"x_scale": torch.ones(EXPERTS, ROWS, 2)}, "x_scale"),
        ("block128", {"x": FLOAT8, "x_scale": torch.ones(EXPERTS, ROWS)}, "x_scale"),
        ("bf16", {"masked_m": torch.zeros(EXPERTS)}, "masked_m"),
        ("bf16", {"masked_m": torch.zeros(2, dtype=torch.int32)}, "masked_m"),
        ("bf16", {"expected_m": 0}, "expected_m"),
        ("bf16", {"out": torch.zeros(EXPERTS, ROWS, HIDDEN)}, "out"),
        ("bf16", {"x": torch.zeros(EXPERTS, ROWS, HIDDEN).bfloat16().requires_grad_()}, "x"),
    ],
)
def test_one_error_names_the_argument(form: str, changes: dict[str, Tensor], argument: str) -> None:
    each = given(form)

    with pytest.raises(InputError) as caught:
        each.layer.experts(**{"x": each.x, "masked_m": each.masked_m} | changes)
    assert caught.value.argument == argument


def test_a_workspace_has_room() -> None:
    """One that is too small, or another layer's, is refused."""
    each, other = given("bf16"), given("block128")
    for owner, rows in ((each, ROWS - 1), (other, ROWS)):
        small = jitgen.Workspace.of(owner.case.config, owner.case.weights, 1, masked=rows)
        with pytest.raises(InputError, match="workspace"):
            jitgen.moe_experts(each.x, each.masked_m, **each.case.named, workspace=small)
