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


_LAYER = {"activation": "swiglu_oai", "swiglu_limit": 7.0, "swiglu_alpha": 1.702}
_FORMAT = {"activation_format": "none"}

CALLS: dict[str, dict[str, Any]] = {
    "route": {
        "logits": _numbers(5, 8),
        "top_k": 2,
        "scoring": "sigmoid",
        "correction_bias": _numbers(8),
        "routed_scaling_factor": 2.5,
    },
    "activation_quantize": {
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
    "moe": {
        "x": _numbers(4, 16).bfloat16(),
        "w13": _numbers(2, 32, 16).bfloat16(),
        "w2": _numbers(2, 16, 16).bfloat16(),
        "topk_weights": torch.ones(4, 1),
        "topk_ids": torch.zeros(4, 1, dtype=torch.int32),
        **_LAYER,
        **_FORMAT,
    },
    "moe_experts": {
        "x": _numbers(2, 4, 16).bfloat16(),
        "masked_m": torch.tensor([4, 4], dtype=torch.int32),
        "w13": _numbers(2, 32, 16).bfloat16(),
        "w2": _numbers(2, 16, 16).bfloat16(),
        **_LAYER,
        **_FORMAT,
    },
    "from_checkpoint": {
        "source": {
            f"m.experts.{expert}.{name}.weight": _numbers(*shape).bfloat16()
            for expert in range(2)
            for name, shape in (("w1", (32, 16)), ("w2", (16, 32)), ("w3", (32, 16)))
        },
        "prefix": "m",
        "top_k": 1,
        **_LAYER,
        **_FORMAT,
    },
    "MoEConfig": {"hidden": 16, "intermediate": 16, "experts": 2, "top_k": 1, **_LAYER},
    "Workspace": {
        "hidden": 16,
        "intermediate": 16,
        "top_k": 1,
        "max_tokens": 4,
        "a_dtype": torch.bfloat16,
        "device": "cpu",
    },
    "of": {
        "config": jitgen.MoEConfig(hidden=16, intermediate=16, experts=2, top_k=1),
        "weights": jitgen.ExpertWeights(
            w13=_numbers(2, 32, 16).bfloat16(), w2=_numbers(2, 16, 16).bfloat16()
        ),
        "max_tokens": 4,
    },
    "ExpertWeights": {
        "w13": _numbers(2, 32, 16).bfloat16(),
        "w2": _numbers(2, 16, 16).bfloat16(),
        **_FORMAT,
    },
}
"""Of each call arguments, those among them that have an old name."""

OF: dict[str, Any] = {"from_checkpoint": jitgen.MoELayer, "of": jitgen.Workspace}
"""What has a call; of others jitgen."""

OLD = [(call, old) for call in ARGUMENTS for old in ARGUMENTS[call]]


def test_every_call_with_old_names_is_here() -> None:
    assert {(call, new) for call, names in ARGUMENTS.items() for new in names.values()} <= {
        (call, name) for call, given in CALLS.items() for name in given
    }


@pytest.mark.parametrize(
    ("of", "call", "old"),
    [
        (of, call, old)
        for call, old in OLD
        for of in (OF.get(call, jitgen), jitgen.reference)
        if hasattr(of, call)
    ],
)
def test_an_old_name_is_taken_and_warns(of: Any, call: str, old: str) -> None:
    function, given = getattr(of, call), {**CALLS[call]}
    expected = function(**given)
    given[old] = given.pop(ARGUMENTS[call][old])
    text = f"^{old}= of {call} is now {ARGUMENTS[call][old]}=; jitgen {DROPPED_IN} drops the old"
    with pytest.warns(DeprecationWarning, match=text) as warned:
        found = function(**given)

    assert [each.filename for each in warned] == [__file__]
    if isinstance(found, jitgen.Workspace):
        assert found.__reduce__() == expected.__reduce__()
    else:
        assert str(found) == str(expected)


@pytest.mark.parametrize("call", ARGUMENTS)
def test_no_other_name_is_taken(call: str) -> None:
    function = getattr(OF.get(call, jitgen), call)
    given = CALLS[call]
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'nothing'"):
        function(**given, nothing=1)
    old, new = next(iter(ARGUMENTS[call].items()))
    with pytest.raises(TypeError, match=f"got '{new}' twice, once by its old name '{old}'"):
        function(**given, **{old: given[new]})


@pytest.mark.parametrize(
    ("call", "old"),
    [(call, old) for call, old in OLD if isinstance(getattr(jitgen, call, 0), type)],
)
def test_a_field_is_read_by_its_old_name(call: str, old: str) -> None:
    made, new = getattr(jitgen, call)(**CALLS[call]), ARGUMENTS[call][old]
    with pytest.warns(DeprecationWarning, match=f"{call}.{old} is now {new}; jitgen {DROPPED_IN}"):
        found = getattr(made, old)

    assert found is getattr(made, new)
    with pytest.raises(AttributeError, match=f"'{call}' object has no attribute 'nothing'"):
        made.nothing  # noqa: B018
