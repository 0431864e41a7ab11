# SPDX-License-Identifier: Apache-2.0
"""What may be chosen for a kind of grouped GEMM, whatever its sizes."""

from __future__ import annotations

from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import KernelConfig, Operands, Problem
from jitgen.targets.legality import rules


def candidates(
    arch: Arch, layout: Layout, operands: Operands, *, bias: bool = False
) -> tuple[KernelConfig, ...]:
    """Return the configs that may be chosen; none where `arch` has no kernel for `operands`."""
    problem = Problem(
        layout=layout,
        groups=1,
        m=1,
        n=1,
        k=1,
        a_dtype=operands.a_dtype,
        b_dtype=operands.b_dtype,
        out_dtype=operands.out_dtype,
        scale_granularity=operands.scale_granularity,
        a_scale_granularity=operands.a_scale_granularity,
        b_layout=operands.b_layout,
        bias=bias,
    )
    return rules(arch, "grouped_gemm").candidates(problem)
