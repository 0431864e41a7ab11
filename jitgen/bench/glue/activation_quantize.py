# SPDX-License-Identifier: Apache-2.0
"""
`activation_quantize` as a layer calls it; `jitgen bench silu` measures this operation in more
cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

import jitgen
from jitgen.bench.glue import Operands, case
from jitgen.bench.glue.permute_quantize import EXPERTS, TOP_K, check, quantized
from jitgen.bench.runner import COPY, INDUCTOR, KernelCase
from jitgen.config import Arch, Layout
from jitgen.config.activation_quantize import ActivationQuantizeProblem
from jitgen.ops.activation_quantize import reference

_TOKENS, _CPU_TOKENS = (1, 64, 4096), 16
_GPU_N, _CPU_N = 2048, 256


def _operands(problem: ActivationQuantizeProblem, device: str, seed: int) -> Operands:
    """Return a call with random values."""
    chance, rows = torch.Generator(device).manual_seed(seed), problem.m
    x = torch.randn((rows, 2 * problem.n), generator=chance, device=device).bfloat16()
    owners = torch.randint(EXPERTS, (rows,), generator=chance, device=device)
    offs = torch.bincount(owners, minlength=EXPERTS).cumsum(0).int()
    expected = reference.activation_quantize(x, offs=offs)
    return Operands(
        ours=partial(jitgen.activation_quantize, x, offs=offs),
        plain=activated,
        arguments=(x,),
        check=partial(check, expected=expected),
    )


def cases(arch: Arch) -> Iterator[KernelCase]:
    """Yield the cases to measure on a device of `arch`: on a CPU once, and small."""
    for tokens in _TOKENS if arch.is_gpu else (_CPU_TOKENS,):
        problem = ActivationQuantizeProblem(
            layout=Layout.RAGGED,
            groups=EXPERTS,
            m=tokens * TOP_K,
            n=_GPU_N if arch.is_gpu else _CPU_N,
        )
        budgets = {COPY: 0.85, INDUCTOR: 1.0} if tokens == _TOKENS[-1] else {}
        name = f"activation_quantize block128, {tokens} tokens I{problem.n}"
        yield case(name, problem, partial(_operands, problem), budgets)


def activated(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `activation_quantize` with torch's operations as models do."""
    return quantized(reference.activated(x), 128)
