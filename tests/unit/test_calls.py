# SPDX-License-Identifier: Apache-2.0
"""What a public call is: its arguments are said once, and everything else has them from there."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from docs.site import arguments, docstrings
from jitgen.config import Config
from jitgen.errors import InputError
from jitgen.layer.gradients import operation as layer_operation
from jitgen.ops.call import Call
from jitgen.ops.every import CALLS
from jitgen.ops.grouped_gemm.prepacked_call import CALL as PREPACKED
from jitgen.ops.permute_quantize.sorting import SORTED
from jitgen.ops.tracing.library import traced
from jitgen.runtime.session import Session
from jitgen.support.moved import MISSING
from jitgen.verify.verification import samples_of
from tests.cases import SIZES

every = pytest.mark.parametrize("call", [*CALLS, SORTED], ids=lambda call: call.name)
PUBLIC = [each for each in (*CALLS, SORTED) if each is not PREPACKED]
"""Those with a function of their own: prepacked weights are given to `grouped_gemm`."""

SCHEMAS = Path(__file__).parents[1] / "torch_schemas.txt"
"""Graphs that were saved hold arguments in this order: a new one comes last, with a default."""


def test_schemas_are_those_of_saved_graphs() -> None:
    found = {str(op._schema) for each in CALLS for op in _operations(each)}
    found.add(str(layer_operation()._schema))

    assert found == set(SCHEMAS.read_text().splitlines())


def _operations(call: Call[Any, Any, Any]) -> tuple[Any, ...]:
    return (*traced(call).operations.values(),)


@pytest.mark.parametrize("call", PUBLIC, ids=lambda call: call.name)
def test_the_public_function_takes_the_described_arguments(call: Call[Any, Any, Any]) -> None:
    if call.name == "quantize":
        return  # a function for each format
    parameters = inspect.signature(call.public).parameters.values()
    defaults = {
        each.name: each.empty if each.default is MISSING else each.default
        for each in parameters
        if each.kind is not each.VAR_KEYWORD  # old names
    }
    described = dict.fromkeys(call.arguments._fields, inspect.Parameter.empty)

    assert defaults == described | call.arguments._field_defaults


@pytest.mark.parametrize("call", PUBLIC, ids=lambda call: call.name)
def test_every_argument_arrives_under_its_name(
    call: Call[Any, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hands them over by their places: two that were exchanged would be taken for each other."""
    found: list[Any] = []
    name = "launched" if call is SORTED else "run"
    monkeypatch.setattr(type(call), name, lambda _, given, *__: found.append(given))
    named: dict[str, Any] = {field: torch.zeros(2, 2) for field in call.arguments._fields}
    if "out" in named:
        named["out"] = (torch.zeros(2, 2), None)
    if call.name == "quantize":
        named["format"] = "mxfp8"
    call.public(**named)

    ((given),) = found
    assert all(mine is named[field] for field, mine in given._asdict().items() if field != "format")


def test_the_page_of_arguments_is_what_is_described() -> None:
    page = (Path(__file__).parents[2] / "docs" / "arguments.md").read_text(encoding="utf-8")

    assert page == arguments.page(), "python -m docs.site arguments"


GEMM = "grouped_gemm_ragged_{}_t16x128x128_c1x1_acc1_{}cpu"
KERNELS = (
    "activation_backward_masked_swiglu_cpu",
    "add_lora_bf16_cpu",
    GEMM.format("e4m3_e4m3_block128_bf16", ""),
    GEMM.format("e2m1_e2m1_nv16_f32", "bias_"),
    "grouped_gemm_wgrad_masked_f16_f16_t64x128x128_c1x1_cpu",
    "moe_fc2_dense_e4m3_e4m3_block128_bf16_t8x128x128_c1x1_acc1_cpu",
    "activation_quantize_contiguous_tensor_swiglu_cpu",
    "route_sigmoid_f32_e256_bias_grouped_cpu",
    "route_given_e32_cpu",
    "permute_quantize_masked_tensor_gather_cpu",
    "combine_bf16_shared_cpu",
)
"""Kernels whose calls have between them every tensor that is not quantised on its own."""


@pytest.mark.parametrize("name", KERNELS)
def test_every_tensor_is_a_dense_one(name: str) -> None:
    config, _ = Config.parse(name)
    samples = samples_of(config)
    sizes = samples.Sizes.parse(SIZES[config.op], config)
    given = samples.make(config, sizes, is_exact=True).arguments
    (call,) = (
        each
        for each in PUBLIC
        if each.config is type(config) and given.keys() <= {*each.arguments._fields}
    )
    for tensor, value in given.items():
        if not isinstance(value, torch.Tensor):
            continue
        for wrong, what in (
            ([1.0], r"a torch tensor \(got list\)"),
            (torch.ones(value.shape).to_sparse(), "a dense tensor"),
        ):
            with pytest.raises(InputError, match=rf"^{tensor}: must be {what}"):
                call.validate(call.arguments(**given | {tensor: wrong}), Session())


@every
def test_results_go_through_a_graph_and_back(call: Call[Any, Any, Any]) -> None:
    """What `out` holds is called as the schema calls it."""
    for names in (call.outputs, call.outputs + call.more_outputs):
        tensors = tuple(torch.zeros(1) for _ in names)
        overload, parts = call.written(call.out_of(tensors))

        assert all(mine is other for mine, other in zip(parts, tensors, strict=True))
        assert traced(call).operations[overload]._schema.arguments[len(names) - 1].name == names[-1]


OF_SEVERAL = [each for each in PUBLIC if len(each.outputs + each.more_outputs) > 1]


@pytest.mark.parametrize("call", OF_SEVERAL, ids=lambda call: call.name)
def test_several_results_go_to_a_tuple_in_the_order_of_the_results(
    call: Call[Any, Any, Any],
) -> None:
    """Each call says so in the same words."""
    text = docstrings.entries(call.public.__doc__, "Args")
    text |= docstrings.entries(call.arguments.__doc__, "Attributes")

    assert text["out"].startswith("Where results go, a tuple in the order in which they are return")
