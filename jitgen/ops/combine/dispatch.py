# SPDX-License-Identifier: Apache-2.0
"""Arguments to a launch: the part of a call that runs once for each combination of shapes."""

from __future__ import annotations

from torch import Tensor

from jitgen.config.combine import CombineConfig, CombineProblem
from jitgen.ops.call import Call
from jitgen.ops.combine.validate import Arguments, Validated, validate
from jitgen.ops.launch import AnyLaunch, Kernel
from jitgen.ops.tensors import require
from jitgen.ops.values import check_places
from jitgen.support.frozen import frozen


@frozen
class Launch(AnyLaunch):
    """A cached launch: everything that a call needs except its tensors."""

    def call(
        self,
        y: Tensor,
        inverse: Tensor,
        topk_weights: Tensor,
        shared: Tensor | None,
        out: Tensor | None,
        shared_weights: Tensor | None = None,
    ) -> Tensor:
        """
        Launch the kernel, into `out` if it is given; return the sums.

        Raises:
            RuntimeError: The matrices of y do not follow each other in memory; the entry does not
                check this.
        """
        if y.dim() == 3:
            y = y.view(-1, y.shape[-1])
        if out is None:
            out = y.new_empty((inverse.shape[0], y.shape[1]))
        if shared is None:
            self.function(y, inverse, topk_weights, out, *self.tail)
        elif shared_weights is None:
            self.function(y, inverse, topk_weights, shared, out, *self.tail)
        else:
            self.function(y, inverse, topk_weights, shared, shared_weights, out, *self.tail)
        return out


class Combine(Call[Arguments, Validated, Tensor]):
    """Calls of `combine`: arguments, validation, choice and launch."""

    name = "combine"
    arguments = Arguments
    config = CombineConfig
    like = "y"
    rows_of = "inverse"
    gradients = "jitgen.ops.tracing.layer_gradients:COMBINE"
    validate = staticmethod(validate)
    in_place = ("shared",)  # a thread reads `shared` at the place where it writes the sum

    def check_values(self, args: Arguments, valid: Validated) -> None:
        check_places("inverse", args.inverse, args.y.shape[:-1].numel(), "rows of y")

    def problem(self, args: Arguments, valid: Validated) -> CombineProblem:
        return CombineProblem(m=valid.rows, n=valid.n, top_k=valid.top_k, **self.kind(args, valid))

    def kind(self, args: Arguments, valid: Validated) -> dict[str, bool]:
        weights = args.shared_weights
        return {"has_shared": args.shared is not None, "is_weighted": weights is not None}

    def entry_tensors(self, config: CombineConfig) -> tuple[str, ...]:
        return config.arguments

    def check_entry(self, args: Arguments, valid: Validated) -> None:
        require("y", args.y, rank=(2, "(M, N)"))

    def launch(self, args: Arguments, valid: Validated, kernel: Kernel) -> Launch:
        return Launch(**kernel)

    def start(self, launch: Launch, args: Arguments) -> Tensor:
        # Without rows strides mean nothing, but the entry requires them.
        y = args.y if args.y.numel() else args.y.new_empty(args.y.shape)
        shared = args.shared, args.out, args.shared_weights
        return launch.call(y, args.inverse, args.topk_weights, *shared)

    def new_results(self, args: Arguments, valid: Validated | None) -> tuple[Tensor, ...]:
        return (args.y.new_empty((args.inverse.shape[0], args.y.shape[-1])),)
