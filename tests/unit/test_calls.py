# SPDX-License-Identifier: Apache-2.0
"""What a public call is: its arguments are said once, and everything else has them from there."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from jitgen.ops.call import Call
from jitgen.ops.every import CALLS
from jitgen.ops.grouped_gemm.prepacked_call import CALL as PREPACKED
from jitgen.ops.permute_quantize.sorting import SORTED
from jitgen.ops.tracing.library import traced
from jitgen.support.moved import MISSING

every = pytest.mark.parametrize("call", [*CALLS, SORTED], ids=lambda call: call.name)
PUBLIC = [each for each in (*CALLS, SORTED) if each is not PREPACKED]
"""Those with a function of their own: prepacked weights are given to `grouped_gemm`."""

SCHEMAS = Path(__file__).parents[1] / "torch_schemas.txt"
"""Graphs that were saved hold arguments in this order: a new one comes last, with a default."""


def test_schemas_are_those_of_saved_graphs() -> None:
    found = {str(op._schema) for each in CALLS for op in _operations(each)}

    assert found == set(SCHEMAS.read_text().splitlines())


def _operations(call: Call[Any, Any, Any]) -> tuple[Any, Any]:
    return traced(call).operation, traced(call).operation_out


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
    named = {field: torch.zeros(2, 2) for field in call.arguments._fields}
    if call.name == "quantize":
        named["format"] = "mxfp8"  # type: ignore[assignment]
    call.public(**named)

    ((given),) = found
    assert all(mine is named[field] for field, mine in given._asdict().items() if field != "format")


@every
def test_results_go_through_a_graph_and_back(call: Call[Any, Any, Any]) -> None:
    """What `out` holds is called as the schema calls it."""
    tensors = tuple(torch.zeros(1) for _ in call.outputs)
    parts = call.parts_of(call.out_of(tensors))

    assert all(mine is other for mine, other in zip(parts, tensors, strict=True))
