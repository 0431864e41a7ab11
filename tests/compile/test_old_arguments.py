# SPDX-License-Identifier: Apache-2.0
"""Arguments by their old names: the same result, and a warning that says the new name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitgen
from jitgen.support.moved import ARGUMENTS, DROPPED_IN

pytestmark = pytest.mark.usefixtures("shared_cache")


def _numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


CALLS: dict[str, dict[str, Any]] = {
    "route": {
        "logits": _numbers(5, 8),
        "top_k": 2,
        "scoring": "sigmoid",
        "correction_bias": _numbers(8),
        "routed_scaling_factor": 2.5,
    },
    "silu_mul_quantize": {
        "x": _numbers(4, 32).bfloat16(),
        "offs": torch.tensor([4], dtype=torch.int32),
        "format": "tensor",
        "global_scale": torch.ones(1),
        "activation": "swiglu_oai",
        "swiglu_limit": 7.0,
        "swiglu_alpha": 1.702,
    },
    "moe_fc2_dense": {
        "a": torch.ones(2, 1, 16).to(torch.float8_e4m3fn),
        "b": torch.ones(1, 8, 16).to(torch.float8_e4m3fn),
        "a_scale": torch.ones(1, 2, 1),
        "b_scale": torch.ones(1, 1, 1),
        "router_weights": _numbers(2, 1),
    },
    "permute_quantize": {
        "x": _numbers(4, 32).bfloat16(),
        "permutation": torch.arange(4, dtype=torch.int32),
        "top_k": 1,
        "offs": torch.tensor([4], dtype=torch.int32),
        "format": "tensor",
        "global_scale": torch.ones(1),
    },
}
"""Of each call arguments, those among them that have an old name."""

OLD = [(call, old) for call in ARGUMENTS for old in ARGUMENTS[call]]


def test_every_call_with_old_names_is_here() -> None:
    assert {(call, new) for call, names in ARGUMENTS.items() for new in names.values()} <= {
        (call, name) for call, given in CALLS.items() for name in given
    }


@pytest.mark.parametrize(("call", "old"), OLD)
@pytest.mark.parametrize("of", [jitgen, jitgen.reference], ids=["call", "reference"])
def test_an_old_name_is_taken_and_warns(of: Any, call: str, old: str) -> None:
    function, given = getattr(of, call, None), {**CALLS[call]}
    if function is None:
        pytest.skip("no reference")
    expected = function(**given)
    given[old] = given.pop(ARGUMENTS[call][old])
    text = f"^{old}= of {call} is now {ARGUMENTS[call][old]}=; jitgen {DROPPED_IN} drops the old"
    with pytest.warns(DeprecationWarning, match=text) as warned:
        found = function(**given)

    assert [each.filename for each in warned] == [__file__]
    assert str(found) == str(expected)


@pytest.mark.parametrize("call", ARGUMENTS)
def test_no_other_name_is_taken(call: str) -> None:
    function, given = getattr(jitgen, call), CALLS[call]
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'nothing'"):
        function(**given, nothing=1)
    old, new = next(iter(ARGUMENTS[call].items()))
    with pytest.raises(TypeError, match=f"got '{new}' twice, once by its old name '{old}'"):
        function(**given, **{old: given[new]})
