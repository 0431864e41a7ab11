# SPDX-License-Identifier: Apache-2.0
"""`combine`: the weighted sum of each token's rows, with and without a shared expert."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

import jitgen
from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench.glue import Operands, case, others
from jitgen.bench.runner import COPY, INDUCTOR, KernelCase
from jitgen.config import Arch
from jitgen.config.combine import CombineProblem
from jitgen.ops.combine import reference

_TOKENS, _FEW_TOKENS, _CPU_TOKENS = (1, 16, 64, 512, 4096), (64, 4096), 16
_GPU_N, _CPU_N = 7168, 256
_ERROR = 2.0**-6
"""Largest error, relative to the largest sum: two steps of bfloat16."""


def _operands(problem: CombineProblem, device: str, seed: int) -> Operands:
    """Return a call with random rows and weights, whose pairs all have a row, in random order."""
    chance = torch.Generator(device).manual_seed(seed)
    shape = (problem.m, problem.top_k)
    pairs = problem.m * problem.top_k
    y = torch.randn((pairs, problem.n), generator=chance, device=device).bfloat16()
    inverse = torch.randperm(pairs, generator=chance, device=device).view(shape).int()
    weights = torch.rand(shape, generator=chance, device=device)
    shared = None
    if problem.has_shared:
        shared = torch.randn((problem.m, problem.n), generator=chance, device=device).bfloat16()
    expected = reference.combine(y, inverse, weights, shared=shared)
    ours = partial(jitgen.combine, y, inverse, weights, shared=shared)
    return Operands(
        ours=ours,
        others=others(problem, ours),
        plain=summed,
        arguments=(y, inverse, weights, *([] if shared is None else [shared])),
        check=partial(check, expected=expected),
    )


def cases(arch: Arch) -> Iterator[KernelCase]:
    """Yield the cases to measure on a device of `arch`: on a CPU each kind once, and small."""
    n = _GPU_N if arch.is_gpu else _CPU_N
    for top_k, has_shared in ((8, True), (8, False), (2, False)):
        is_first = (top_k, has_shared) == (8, True)
        tokens = (_TOKENS if is_first else _FEW_TOKENS) if arch.is_gpu else (_CPU_TOKENS,)
        for count in tokens:
            problem = CombineProblem(m=count, n=n, top_k=top_k, has_shared=has_shared)
            has_budget = is_first and count == _TOKENS[-1]
            shared = ", shared" * has_shared
            name = f"combine top {top_k}{shared}, {count} tokens N{n}"
            budgets = {COPY: 0.85, INDUCTOR: 1.0} if has_budget else {}
            yield case(name, problem, partial(_operands, problem), budgets)


def summed(y: Tensor, inverse: Tensor, weights: Tensor, shared: Tensor | None = None) -> Tensor:
    """Compute `combine` with torch's operations as models do; every pair has a row."""
    total = (y[inverse].float() * weights.unsqueeze(-1)).sum(1)
    return (total if shared is None else total + shared.float()).bfloat16()


def check(found: Tensor, *, expected: Tensor) -> None:
    """
    Check that sums are close to the expected ones.

    Raises:
        WrongResult: They differ by more than the tolerance.
    """
    off = (found.float() - expected.float()).abs().max()
    if not off <= _ERROR * expected.float().abs().max():
        raise WrongResult(f"sums differ by {float(off):.3g}")
