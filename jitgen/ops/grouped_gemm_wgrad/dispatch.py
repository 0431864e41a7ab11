# SPDX-License-Identifier: Apache-2.0
"""Arguments to a launch: the part of a call that runs once for each combination of shapes."""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config import Layout
from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig, GroupedGemmWgradProblem
from jitgen.config.layouts import ARGUMENT
from jitgen.config.problem import Problem
from jitgen.errors import InputError
from jitgen.formats.protocol import TORCH
from jitgen.ops.call import Call
from jitgen.ops.explicit_config import explicit_config
from jitgen.ops.grouped_gemm_wgrad.validate import Arguments, Validated, validate
from jitgen.ops.launch import AnyLaunch, Family, Kernel
from jitgen.ops.tensors import groups_of, result_of
from jitgen.ops.values import check_values
from jitgen.support.frozen import frozen
from jitgen.targets.legality import require


@frozen
class Launch(AnyLaunch):
    """
    A cached launch: everything that a call needs except its tensors.

    Attributes:
        shape: G, N and K of the result that the call allocates if `out` is not given.
        out_dtype: Its type.
    """

    shape: tuple[int, int, int]
    out_dtype: torch.dtype

    def call(self, dy: Tensor, a: Tensor, groups: Tensor | None, out: Tensor | None) -> Tensor:
        """Launch the kernel, into `out` if it is given; return the result."""
        if out is None:
            out = a.new_empty(self.shape, dtype=self.out_dtype)
        self.function(dy, a, groups, out, *self.tail)
        return out


def _zeros(_dy: Tensor, _a: Tensor, _groups: Tensor, out: Tensor, *_: object) -> None:
    """
    Fill the result with zeros, without a kernel, if there are no rows: a tensor map of the TMA unit
    cannot describe an empty tensor.
    """
    out.zero_()


class GroupedGemmWgrad(Call[Arguments, Validated, Tensor]):
    """Calls of `grouped_gemm_wgrad`: arguments, validation, choice and launch."""

    name = "grouped_gemm_wgrad"
    arguments = Arguments
    config = GroupedGemmWgradConfig
    like = "dy"
    gradients = "jitgen.ops.tracing.gradients:GROUPED_GEMM_WGRAD"
    validate = staticmethod(validate)
    without_rows = staticmethod(_zeros)

    def check_values(self, args: Arguments, valid: Validated) -> None:
        check_values(valid.layout, groups_of(args), valid.rows)

    def problem(self, args: Arguments, valid: Validated) -> GroupedGemmWgradProblem:
        """
        Return the problem that the selector gets. Without `expected_m`, groups share the rows, and
        masked matrices are full.
        """
        rows = valid.rows * valid.groups if valid.layout is Layout.MASKED else valid.rows
        if args.expected_m is not None:
            rows = args.expected_m * valid.groups
        return GroupedGemmWgradProblem(
            layout=valid.layout,
            groups=valid.groups,
            m=rows,
            n=valid.n,
            k=valid.k,
            a_dtype=valid.a_dtype,
            out_dtype=valid.out_dtype,
        )

    def family(self, problem: Problem, args: Arguments, valid: Validated) -> Family:
        return Family.of(problem, valid, args.expected_m)

    def require_fit(
        self, asked: object, args: Arguments, valid: Validated
    ) -> GroupedGemmWgradConfig:
        config = explicit_config(asked, GroupedGemmWgradConfig, valid.arch)
        names = ("layout", "a_dtype", "out_dtype")
        if wrong := [name for name in names if getattr(config, name) != getattr(valid, name)]:
            raise InputError(
                "config",
                "must be for what the tensors are, "
                + ", ".join(f"{name} {getattr(valid, name)}" for name in wrong)
                + f" (got one for {config.to_name()})",
            )
        require(config, valid.arch)
        return config

    def entry_tensors(self, config: GroupedGemmWgradConfig) -> tuple[str, ...]:
        return ("dy", "a", ARGUMENT[config.layout], "out")

    def launch(self, args: Arguments, valid: Validated, kernel: Kernel) -> Launch:
        shape = (valid.groups, valid.n, valid.k)
        return Launch(**kernel, shape=shape, out_dtype=TORCH[valid.out_dtype])

    def start(self, launch: Launch, args: Arguments) -> Tensor:
        return launch.call(args.dy, args.a, groups_of(args), args.out)

    def new_results(self, args: Arguments, valid: Validated | None) -> tuple[Tensor, ...]:
        groups = args.masked_m if args.offs is None else args.offs
        shape = (groups.shape[0], args.dy.shape[-1], args.a.shape[-1])  # type: ignore[union-attr]
        return (args.a.new_empty(shape, dtype=args.out_dtype or result_of(args.a.dtype)),)
