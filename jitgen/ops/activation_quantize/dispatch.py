# SPDX-License-Identifier: Apache-2.0
"""Arguments to a launch: the part of a call that runs once for each combination of shapes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from jitgen.config.activation_quantize import (
    Activation,
    ActivationQuantizeConfig,
    ActivationQuantizeProblem,
)
from jitgen.config.format import Format
from jitgen.config.problem import Problem
from jitgen.formats.protocol import TORCH, Rows, ScaleFormat
from jitgen.ops.activation_quantize.validate import Arguments, Validated, form_of, validate
from jitgen.ops.expected_rows import mean_of, rows_of
from jitgen.ops.launch import AnyLaunch, Family, Kernel
from jitgen.ops.scaled import Scaled, ScaledCall
from jitgen.ops.tensors import groups_of
from jitgen.ops.values import check_values
from jitgen.support.frozen import frozen


@lru_cache(maxsize=1024)  # a warm call finds them in a third of the time
def _rows(shape: torch.Size) -> Rows:
    return Rows(shape)


@frozen
class Launch(AnyLaunch):
    """
    A cached launch: everything that a call needs except its tensors.

    Attributes:
        columns: I.
        q_dtype: Element type of the results.
        form: The format of the scales; None if the kernel computes no scales.
    """

    columns: int
    q_dtype: torch.dtype
    form: ScaleFormat | None

    def call(
        self,
        x: Tensor,
        groups: Tensor | None,
        scale: Tensor | None,
        q: Tensor | None,
        found: Tensor | None,
        numbers: Tensor | None = None,
    ) -> Scaled:
        """Launch the kernel, into `q` and `found` if they are given; return q and its scales."""
        rows = x.shape[:-1]
        if q is None:
            q = x.new_empty((*rows, self.columns), dtype=self.q_dtype)
        if self.form is not None:
            scale = self.form.new_a(x, _rows(rows), self.columns) if found is None else found
        if numbers is not None:
            tensors = (x, groups, q, numbers) if scale is None else (x, groups, q, scale, numbers)
            self.function(*tensors, *self.tail)
        elif scale is None:
            self.function(x, groups, q, *self.tail)
        else:
            self.function(x, groups, q, scale, *self.tail)
        return q, scale


def new_tensors(x: Tensor, columns: int, scales: Format) -> Scaled:
    """
    Return new tensors for q and scales of the rows of `x`, in the layout that the next GEMM reads,
    not initialised; no scales if the kernel computes none.
    """
    rows, form = x.shape[:-1], form_of(scales)
    q = x.new_empty((*rows, columns), dtype=TORCH[scales.q_dtype])
    return q, None if form is None else form.new_a(x, Rows(rows), columns)


class ActivationQuantize(ScaledCall[Arguments, Validated]):
    """Calls of `activation_quantize`: arguments, validation, choice and launch."""

    name = "activation_quantize"
    arguments = Arguments
    config = ActivationQuantizeConfig
    like = "x"
    gradients = "jitgen.ops.tracing.layer_gradients:ACTIVATION"
    graph_names: ClassVar[dict[str, str]] = {
        "format": "scale_granularity",
        "global_scale": "scale",
        "swiglu_limit": "limit",
        "swiglu_alpha": "alpha",
    }
    validate = staticmethod(validate)

    def check_values(self, args: Arguments, valid: Validated) -> None:
        check_values(valid.layout, groups_of(args), valid.rows, start=1)

    def problem(self, args: Arguments, valid: Validated) -> ActivationQuantizeProblem:
        """Return the problem that the selector gets."""
        rows = rows_of(args, valid)
        return ActivationQuantizeProblem(
            groups=valid.groups, m=rows, n=valid.n, **self.kind(args, valid)
        )

    def kind(self, args: Arguments, valid: Validated) -> dict[str, Any]:
        return {
            "layout": valid.layout,
            "scale_granularity": valid.scale_granularity,
            "activation": valid.activation,
            "interleaved": args.interleaved,
            "power_of_two": args.power_of_two,
            "per_group": args.group_numbers is not None,
        }

    def family(self, problem: Problem, args: Arguments, valid: Validated) -> Family:
        return Family.of(problem, valid, mean_of(args, valid))

    def launch(self, args: Arguments, valid: Validated, kernel: Kernel) -> Launch:
        scales = valid.scale_granularity
        return Launch(
            **kernel | {"tail": (*args.numbers, *valid.device.tail)},
            columns=valid.n,
            q_dtype=TORCH[scales.q_dtype],
            form=form_of(scales),
        )

    def start(self, launch: Launch, args: Arguments) -> Scaled:
        q, scale = args.out or (None, None)
        given = (args.x, groups_of(args), args.global_scale, q, scale, args.group_numbers)
        return launch.call(*given)

    def new_results(self, args: Arguments, valid: Validated | None) -> tuple[Tensor, ...]:
        scales, inputs = Format(args.format), Activation(args.activation).inputs
        return self.to_results(args, new_tensors(args.x, args.x.shape[-1] // inputs, scales))

    def finds_scales(self, args: Arguments) -> bool:
        return Format(args.format).has_float_scales
