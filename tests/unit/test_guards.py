# SPDX-License-Identifier: Apache-2.0
"""What a warm call asks of its tensors: torch's guards, and the same in Python."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor

from jitgen.ops import guards


class Subclass(torch.Tensor):
    """A subclass that says nothing to the dispatcher."""


class TestGuards:
    """The same answers from torch's guards and from those in Python."""

    @pytest.fixture(params=["torch", "python"])
    def guard(self, request: pytest.FixtureRequest) -> Any:
        if request.param == "torch":
            return guards.guard
        return lambda tensors, *fixed: guards.InPython(tensors, *fixed).check

    @pytest.fixture
    def pair(self) -> tuple[Tensor, Tensor]:
        return torch.randn(4, 6), torch.randn(3)

    def test_the_same_and_other_sizes(self, guard: Any, pair: tuple[Tensor, Tensor]) -> None:
        fits = guard(pair)
        assert fits(*pair)
        assert fits(torch.randn(5, 6).T, torch.randn(9))
        assert not fits(torch.randn(5, 6, 1), pair[1])

    def test_fixed_sizes(self, guard: Any, pair: tuple[Tensor, Tensor]) -> None:
        fits = guard(pair, (0,), (0,))
        assert fits(torch.randn(4, 6), torch.randn(8))
        assert not fits(torch.randn(6, 4).T, pair[1])
        assert not fits(torch.randn(5, 6), pair[1])
        assert guard(pair, (), (0,))(torch.randn(5, 6), pair[1])
        assert guard(pair, (0,))(torch.randn(6, 4).T, pair[1])

    @pytest.mark.parametrize(
        "change",
        [
            torch._neg_view,
            lambda x: x.bfloat16(),
            lambda x: x.clone().requires_grad_(),
            torch.nn.Parameter,
            lambda x: x.to("meta"),
            lambda x: None,
            lambda x: 3,
            lambda x: x.as_subclass(Subclass),
        ],
    )
    def test_other_kinds(
        self, guard: Any, pair: tuple[Tensor, Tensor], change: Callable[[Tensor], Any]
    ) -> None:
        assert not guard(pair)(change(pair[0]), pair[1])

    def test_a_tensor_twice(self, guard: Any) -> None:
        x = torch.randn(3)
        assert not guard((x, x.clone()))(x, x)

    @pytest.mark.parametrize(
        "state",
        [torch.inference_mode, lambda: torch.autocast("cpu")],
        ids=["inference", "autocast"],
    )
    def test_other_states(self, guard: Any, pair: tuple[Tensor, Tensor], state: Any) -> None:
        fits = guard(pair)
        with state():
            assert not fits(*pair)
        assert fits(*pair)

    def test_inside_of_a_transform(self, guard: Any, pair: tuple[Tensor, Tensor]) -> None:
        fits, seen = guard(pair), []
        torch.vmap(lambda x: (seen.append(fits(x, pair[1])), x)[1])(torch.randn(2, 4, 6))
        assert seen == [False]

    def test_of_another_number_of_tensors(self, guard: Any, pair: tuple[Tensor, Tensor]) -> None:
        with suppress(TypeError):
            assert not guard(pair)(pair[0])
