# SPDX-License-Identifier: Apache-2.0
"""Every call whose arguments were renamed in one graph of torch.compile, by the names of today."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen.support.moved import ARGUMENTS
from tests import needs
from tests.compile.test_old_arguments import CALLS

pytestmark = [
    needs.compiler,
    needs.linker,
    needs.newer_dynamo,
    pytest.mark.usefixtures("shared_cache"),
    pytest.mark.filterwarnings("error::DeprecationWarning:jitgen"),
]

NAMES = ("route", "activation_quantize", "moe_fc2_dense", "permute_quantize", "moe", "moe_experts")
OUT = torch.zeros(4, 32, dtype=torch.float8_e4m3fn)
MORE: dict[str, dict[str, Any]] = {
    "activation_quantize": {"out": (OUT[:, :16], None), "expected_m": 4},
    "permute_quantize": {"out": (OUT, None), "inverse": None, "expected_m": 4},
}
"""Arguments that are new, or may have another form, besides those with another name."""


def parts(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [part for each in result or () for part in parts(each)]


def test_every_call_is_here() -> None:
    assert {*NAMES} == {name for name in ARGUMENTS if name in jitgen.__all__ and name[0].islower()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_one_graph(name: str, backend: str) -> None:
    given = CALLS[name] | MORE.get(name, {})
    tensors = {each: value for each, value in given.items() if isinstance(value, Tensor)}
    others = {each: value for each, value in given.items() if each not in tensors}

    def call(tensors: dict[str, Tensor]) -> Any:
        return getattr(jitgen, name)(**tensors, **others)

    expected = [part.clone() for part in parts(call(tensors))]
    torch._dynamo.reset()
    found = parts(torch.compile(call, fullgraph=True, backend=backend)(tensors))

    assert expected
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine.float(), theirs.float())
