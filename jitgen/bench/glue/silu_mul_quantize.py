# SPDX-License-Identifier: Apache-2.0
"""`silu_mul_quantize` as a layer calls it; `jitgen bench silu` measures it by itself, at length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import partial

import torch
from torch import Tensor

import jitgen
from jitgen.bench.glue.permute_quantize import EXPERTS, TOP_K, check, quantized
from jitgen.bench.glue.sides import COPY, INDUCTOR, Operands
from jitgen.config import Arch, Layout
from jitgen.config.silu_mul_quantize import SiluMulQuantizeProblem
from jitgen.ops.silu_mul_quantize import reference
from jitgen.support.frozen import frozen

_TOKENS, _CPU_TOKENS = (1, 64, 4096), 16
_GPU_N, _CPU_N = 2048, 256


@frozen
class Case:
    """
    One measurement: rows of random groups, with block scales.

    Attributes:
        tokens: Tokens, with `TOP_K` rows each.
        n: Columns of the result.
        budgets: See `jitgen.bench.glue.sides.Case`.
    """

    tokens: int
    n: int
    budgets: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the case as tables show it: ``silu_mul_quantize block128, 64 tokens I2048``."""
        return f"silu_mul_quantize block128, {self.tokens} tokens I{self.n}"

    @property
    def problem(self) -> SiluMulQuantizeProblem:
        """What a kernel is chosen for."""
        rows = self.tokens * TOP_K
        return SiluMulQuantizeProblem(layout=Layout.RAGGED, groups=EXPERTS, m=rows, n=self.n)

    @property
    def num_bytes(self) -> int:
        """Gates and ups in, results out."""
        return self.problem.traffic_bytes

    def kernel(self, arch: Arch) -> str:
        """Return the name of the kernel that serves it."""
        return str(jitgen.select(self.problem, arch).config.name(arch))

    def operands(self, device: str, seed: int) -> Operands:
        """Return a call with random values."""
        chance, rows = torch.Generator(device).manual_seed(seed), self.tokens * TOP_K
        x = torch.randn((rows, 2 * self.n), generator=chance, device=device).bfloat16()
        owners = torch.randint(EXPERTS, (rows,), generator=chance, device=device)
        offs = torch.bincount(owners, minlength=EXPERTS).cumsum(0).int()
        expected = reference.silu_mul_quantize(x, offs=offs)
        return Operands(
            ours=partial(jitgen.silu_mul_quantize, x, offs=offs),
            plain=activated,
            arguments=(x,),
            check=partial(check, expected=expected),
        )


def cases(arch: Arch) -> Iterator[Case]:
    """Yield what is measured on a device of `arch`: on a CPU once, and small."""
    if not arch.is_gpu:
        yield Case(tokens=_CPU_TOKENS, n=_CPU_N)
        return
    for tokens in _TOKENS:
        budgets = {COPY: 0.85, INDUCTOR: 1.0} if tokens == _TOKENS[-1] else {}
        yield Case(tokens=tokens, n=_GPU_N, budgets=budgets)


def activated(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return what models compute in torch."""
    return quantized(reference.activated(x), 128)
