# SPDX-License-Identifier: Apache-2.0
"""Arguments to a launch: the part of a call that runs once for each combination of shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen.config import Layout
from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig, GroupedGemmWgradProblem
from jitgen.errors import InputError
from jitgen.formats.protocol import TORCH
from jitgen.ops.call import Call
from jitgen.ops.explicit_config import explicit_config
from jitgen.ops.grouped_gemm_wgrad.validate import Arguments, Facts, validate
from jitgen.ops.launch import AnyLaunch, Family
from jitgen.ops.tensors import groups_of
from jitgen.ops.values import check_values
from jitgen.support.frozen import frozen
from jitgen.targets.legality import require


@frozen
class Launch(AnyLaunch):
    """
    What a call of `grouped_gemm_wgrad` needs besides its tensors.

    Attributes:
        columns: N and K of an output that the caller leaves to us.
        out_dtype: Its type.
    """

    columns: tuple[int, int]
    out_dtype: torch.dtype

    def call(self, dy: Tensor, a: Tensor, groups: Any, out: Any) -> Tensor:
        """Launch the kernel, into `out` if it is given; return the result."""
        result: Tensor = out
        if out is None:
            result = a.new_empty((groups.shape[0], *self.columns), dtype=self.out_dtype)
        self.function(dy, a, groups, result, *self.tail)
        return result


def _zeros(_dy: Tensor, _a: Tensor, _groups: Tensor, out: Tensor, *_: Any) -> None:
    """Stand for a kernel where there is no row at all: of nothing the TMA unit knows no map."""
    out.zero_()


class GroupedGemmWgrad(Call[Arguments, Facts, Tensor]):
    """What a call of `grouped_gemm_wgrad` is."""

    name = "grouped_gemm_wgrad"
    arguments = Arguments
    config = GroupedGemmWgradConfig
    like = "dy"
    gradients = "jitgen.ops.tracing.gradients:GROUPED_GEMM_WGRAD"
    validate = staticmethod(validate)
    without_rows = staticmethod(_zeros)

    def check_values(self, given: Arguments, facts: Facts) -> None:
        check_values(facts.layout, groups_of(given), facts.rows)

    def problem(self, given: Arguments, facts: Facts) -> GroupedGemmWgradProblem:
        """Return the sizes; unless told, groups share the rows and masked ones are full."""
        rows = facts.rows * facts.groups if facts.layout is Layout.MASKED else facts.rows
        if given.expected_m is not None:
            rows = given.expected_m * facts.groups
        return GroupedGemmWgradProblem(
            layout=facts.layout,
            groups=facts.groups,
            m=rows,
            n=facts.n,
            k=facts.k,
            a_dtype=facts.a_dtype,
            out_dtype=facts.out_dtype,
        )

    def family(self, problem: Any, given: Arguments, facts: Facts) -> Family:
        return Family.of(problem, facts, given.expected_m)

    def require_fit(self, asked: object, given: Arguments, facts: Facts) -> GroupedGemmWgradConfig:
        config: GroupedGemmWgradConfig = explicit_config(asked, GroupedGemmWgradConfig, facts.arch)
        names = ("layout", "a_dtype", "out_dtype")
        if wrong := [name for name in names if getattr(config, name) != getattr(facts, name)]:
            raise InputError(
                "config",
                "must be for what the tensors are, "
                + ", ".join(f"{name} {getattr(facts, name)}" for name in wrong)
                + f" (got one for {config.words()})",
            )
        require(config, facts.arch)
        return config

    def launch(self, given: Arguments, facts: Facts, kernel: dict[str, Any]) -> Launch:
        columns = (facts.n, facts.k)
        return Launch(**kernel, columns=columns, out_dtype=TORCH[facts.out_dtype])

    def start(self, launch: Launch, given: Arguments) -> Tensor:
        return launch.call(given.dy, given.a, groups_of(given), given.out)

    def new_results(self, given: Arguments, facts: Facts | None) -> tuple[Tensor, ...]:
        groups = given.masked_m if given.offs is None else given.offs
        shape = (groups.shape[0], given.dy.shape[-1], given.a.shape[-1])  # type: ignore[union-attr]
        return (given.a.new_empty(shape, dtype=given.out_dtype or torch.bfloat16),)
