# SPDX-License-Identifier: Apache-2.0
"""Arguments to a launch: the part of a call that runs once for each combination of shapes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from jitgen.config.combine import CombineConfig, CombineProblem
from jitgen.ops.call import Call
from jitgen.ops.combine.validate import Arguments, Facts, validate
from jitgen.ops.launch import AnyLaunch
from jitgen.ops.values import check_places
from jitgen.support.frozen import frozen


@frozen
class Launch(AnyLaunch):
    """What a call needs besides its tensors."""

    def call(
        self,
        y: Tensor,
        inverse: Tensor,
        topk_weights: Tensor,
        shared: Tensor | None,
        out: Tensor | None,
    ) -> Tensor:
        """
        Launch the kernel, into `out` if it is given; return the sums.

        Raises:
            RuntimeError: Matrices of y do not follow each other, which the entry does not see.
        """
        if y.dim() == 3:
            y = y.view(-1, y.shape[-1])
        if out is None:
            out = y.new_empty((inverse.shape[0], y.shape[1]))
        if shared is None:
            self.function(y, inverse, topk_weights, out, *self.tail)
        else:
            self.function(y, inverse, topk_weights, shared, out, *self.tail)
        return out


class Combine(Call[Arguments, Facts, Tensor]):
    """What a call of `combine` is."""

    name = "combine"
    arguments = Arguments
    config = CombineConfig
    like = "y"
    validate = staticmethod(validate)
    in_place = ("shared",)  # a thread reads what is shared where it writes the sum

    def check_values(self, given: Arguments, facts: Facts) -> None:
        check_places("inverse", given.inverse, given.y.shape[:-1].numel(), "rows of y")

    def problem(self, given: Arguments, facts: Facts) -> CombineProblem:
        return CombineProblem(
            m=facts.rows, n=facts.n, top_k=facts.top_k, has_shared=given.shared is not None
        )

    def fitting(self, config: CombineConfig, given: Arguments, facts: Facts) -> CombineConfig:
        return CombineConfig(has_shared=given.shared is not None, tiling=config.tiling)

    def launch(self, given: Arguments, facts: Facts, kernel: dict[str, Any]) -> Launch:
        return Launch(**kernel)

    def start(self, launch: Launch, given: Arguments) -> Tensor:
        # Of no rows strides mean nothing, to us; the entry wants them all the same.
        y = given.y if given.y.numel() else given.y.new_empty(given.y.shape)
        return launch.call(y, given.inverse, given.topk_weights, given.shared, given.out)

    def new_results(self, given: Arguments, facts: Facts | None) -> tuple[Tensor, ...]:
        return (given.y.new_empty((given.inverse.shape[0], given.y.shape[-1])),)
