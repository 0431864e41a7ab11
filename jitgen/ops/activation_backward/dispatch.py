# SPDX-License-Identifier: Apache-2.0
"""Arguments to a launch: the part of a call that runs once for each combination of shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen.config.activation_backward import (
    ActivationBackwardConfig,
    ActivationBackwardProblem,
)
from jitgen.config.problem import Problem
from jitgen.ops.activation_backward.validate import (
    Arguments,
    Results,
    Validated,
    sums_of,
    validate,
)
from jitgen.ops.call import Call
from jitgen.ops.expected_rows import mean_of, rows_of
from jitgen.ops.launch import AnyLaunch, Family, Kernel
from jitgen.ops.tensors import groups_of
from jitgen.ops.values import check_values
from jitgen.support.frozen import frozen


@frozen
class Launch(AnyLaunch):
    """A cached launch: everything that a call needs except its tensors."""

    def call(
        self, dy: Tensor, x: Tensor, weights: Tensor, groups: Tensor | None, out: Results | None
    ) -> Results:
        """Launch the kernel, into `out` if it is given; return dx, y and sums."""
        found = new_results(dy, x) if out is None else out
        self.function(dy, x, weights, groups, *found, *self.tail)
        return found


def new_results(dy: Tensor, x: Tensor) -> Results:
    """Return uninitialised dense dx, y and sums for these operands."""
    sums = (*dy.shape[:-1], sums_of(dy.shape[-1]))
    return (
        x.new_empty(x.shape),
        dy.new_empty(dy.shape),
        dy.new_empty(sums, dtype=torch.float32),
    )


class ActivationBackward(Call[Arguments, Validated, Results]):
    """Calls of `activation_backward`: arguments, validation, choice and launch."""

    name = "activation_backward"
    arguments = Arguments
    config = ActivationBackwardConfig
    like = "dy"
    outputs = ("dx", "y", "sums")
    validate = staticmethod(validate)

    def check_values(self, args: Arguments, valid: Validated) -> None:
        check_values(valid.layout, groups_of(args), valid.rows, start=1)

    def problem(self, args: Arguments, valid: Validated) -> ActivationBackwardProblem:
        """Return the problem that the selector gets."""
        rows = rows_of(args, valid)
        return ActivationBackwardProblem(
            groups=valid.groups, m=rows, n=valid.n, **self.kind(args, valid)
        )

    def kind(self, args: Arguments, valid: Validated) -> dict[str, Any]:
        return {
            "layout": valid.layout,
            "activation": valid.activation,
            "interleaved": args.interleaved,
        }

    def family(self, problem: Problem, args: Arguments, valid: Validated) -> Family:
        return Family.of(problem, valid, mean_of(args, valid))

    def launch(self, args: Arguments, valid: Validated, kernel: Kernel) -> Launch:
        return Launch(**kernel | {"tail": (*args.numbers, *valid.device.tail)})

    def start(self, launch: Launch, args: Arguments) -> Results:
        return launch.call(args.dy, args.x, args.weights, groups_of(args), args.out)

    def new_results(self, args: Arguments, valid: Validated | None) -> tuple[Tensor, ...]:
        return new_results(args.dy, args.x)

    def of_results(self, args: Arguments, tensors: tuple[Tensor, ...]) -> Results:
        dx, y, sums = tensors
        return dx, y, sums

    def out_of(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tensors
