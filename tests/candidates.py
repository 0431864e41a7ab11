# SPDX-License-Identifier: Apache-2.0
"""What may be chosen for a kind of grouped GEMM, whatever its sizes."""

from __future__ import annotations

from jitgen.config import Arch, DType, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem, Operands
from jitgen.errors import UnsupportedConfig
from jitgen.targets.gemm import operands_of
from jitgen.targets.legality import rules


def candidates(
    arch: Arch, layout: Layout, operands: Operands, *, bias: bool = False
) -> tuple[GroupedGemmConfig, ...]:
    """Return the configs that may be chosen; none where `arch` has no kernel for `operands`."""
    problem = GroupedGemmProblem(
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


def every_candidate(arch: Arch, layout: Layout) -> list[GroupedGemmConfig]:
    """
    Return the configs that may be chosen, each once, for all types and scales that `arch` has
    kernels for; with prepacked weights those that give bf16.
    """
    found = rules(arch, "grouped_gemm")
    configs: list[GroupedGemmConfig] = []
    for space in getattr(found, "spaces", (found.space,)):  # type: ignore[attr-defined]
        for operands in operands_of(space):
            if operands.out_dtype is not DType.BF16 and operands.b_layout.is_prepacked:
                continue
            try:
                configs += candidates(arch, layout, operands)
            except UnsupportedConfig:
                continue
    return list(dict.fromkeys(configs))
