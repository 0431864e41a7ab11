# SPDX-License-Identifier: Apache-2.0
"""The rules of a grouped GEMM's sizes: what selection, plans and calls all ask."""

from __future__ import annotations

from jitgen.ops.grouped_gemm.problem import Problem
from jitgen.targets.protocol import refuse_unless


def check_vectors(problem: Problem, arch: str, *, vector_bytes: int) -> None:
    """
    Require that rows of a, b and the output end with a whole vector: the grain of what moves them.

    Raises:
        Refusal: K or N is none of the multiples, with the code ``E_SIZE``.
    """
    for name, size, dtype in (
        ("K", problem.k, problem.a_dtype),
        ("N", problem.n, problem.out_dtype),
    ):
        multiple = vector_bytes * 8 // dtype.bits
        refuse_unless(
            size % multiple == 0,
            "E_SIZE",
            f"must have {name} a multiple of {multiple} on {arch}, {vector_bytes} bytes of {dtype} "
            f"(got {size})",
        )
