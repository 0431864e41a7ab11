# SPDX-License-Identifier: Apache-2.0
"""Arguments to a launch: the part of a call that runs once for each combination of shapes."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from jitgen.config.add_lora import AddLoraConfig, AddLoraProblem
from jitgen.config.problem import Problem
from jitgen.ops.add_lora.validate import Arguments, Validated, validate
from jitgen.ops.call import Call
from jitgen.ops.launch import AnyLaunch, Family, Kernel
from jitgen.ops.values import check_places
from jitgen.support.frozen import frozen


@frozen
class Launch(AnyLaunch):
    """A cached launch: everything that a call needs except its tensors."""

    def call(self, y: Tensor, *others: Tensor, out: Tensor | None) -> Tensor:
        """
        Launch the kernel, into `out` if it is given; return y plus the products with the adapters.
        """
        if out is None:
            out = y.new_empty(y.shape)
        self.function(y, *others, out, *self.tail)
        return out


class AddLora(Call[Arguments, Validated, Tensor]):
    """Calls of `add_lora`: arguments, validation, choice and launch."""

    name = "add_lora"
    arguments = Arguments
    config = AddLoraConfig
    like = "y"
    validate = staticmethod(validate)
    in_place = ("y",)  # the thread that reads a value of y writes it
    fixed = ("b",)  # whose matrices are contiguous

    def check_values(self, args: Arguments, valid: Validated) -> None:
        pairs = args.topk_ids.numel()
        check_places("permutation", args.permutation, pairs, "pairs")
        check_places("adapter_ids", args.adapter_ids, valid.adapters, "adapters")

    def problem(self, args: Arguments, valid: Validated) -> AddLoraProblem:
        return AddLoraProblem(
            m=args.topk_ids.shape[0],
            n=valid.n,
            k=valid.k,
            rank=valid.rank,
            top_k=valid.top_k,
            parts=valid.parts,
            adapters=valid.adapters,
            experts=valid.experts,
            **self.kind(args, valid),
        )

    def kind(self, args: Arguments, valid: Validated) -> dict[str, bool]:
        return {"by_row": valid.by_row}

    def family(self, problem: Problem, args: Arguments, valid: Validated) -> Family:
        family = super().family(problem, args, valid)
        return replace(family, groups=valid.top_k)  # rows of y are chosen for by their tokens

    def launch(self, args: Arguments, valid: Validated, kernel: Kernel) -> Launch:
        return Launch(**kernel | {"tail": (args.first_expert, *valid.device.tail)})

    def start(self, launch: Launch, args: Arguments) -> Tensor:
        return launch.call(
            *(args.y, args.x, args.a, args.b, args.scales),
            *(args.adapter_ids, args.topk_ids, args.permutation),
            out=args.out,
        )

    def new_results(self, args: Arguments, valid: Validated | None) -> tuple[Tensor, ...]:
        return (args.y.new_empty(args.y.shape),)
