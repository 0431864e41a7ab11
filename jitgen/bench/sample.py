# SPDX-License-Identifier: Apache-2.0
"""Random operands for measurements, and the check that comes before each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jitgen.bench.protocol import WrongResult
from jitgen.ops import quantize, reference

TOLERANCE = 2.0**-7
"""Largest difference to the reference, as a part of the largest value: bfloat16 rounds by 2**-9."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """
    Arguments of one ragged grouped GEMM with block scales, all groups equally large.

    Attributes:
        a: (M, K) float8_e4m3fn.
        b: (G, N, K) float8_e4m3fn.
        a_scale: (M, ceil(K / 128)) float32, M contiguous.
        b_scale: (G, ceil(N / 128), ceil(K / 128)) float32.
        offs: (G,) int32.
        out: (M, N) bfloat16.
    """

    a: Tensor
    b: Tensor
    a_scale: Tensor
    b_scale: Tensor
    offs: Tensor
    out: Tensor

    @classmethod
    def random(cls, groups: int, rows: int, n: int, k: int, device: str = "cpu") -> Sample:
        """Return a sample with `rows` rows in each group."""
        generator = torch.Generator(device).manual_seed(0)
        m = groups * rows
        a, a_scale = quantize.per_token_group(torch.randn(m, k, generator=generator, device=device))
        weights = [
            quantize.per_block(torch.randn(1, n, k, generator=generator, device=device))
            for _ in range(groups)
        ]
        return cls(
            a=a,
            b=torch.cat([each for each, _ in weights]),
            a_scale=a_scale,
            b_scale=torch.cat([scale for _, scale in weights]),
            offs=torch.arange(rows, m + 1, rows, dtype=torch.int32, device=device),
            out=torch.empty(m, n, dtype=torch.bfloat16, device=device),
        )

    def call(self, function: Callable[..., Any]) -> Any:
        """Call what takes the arguments of `jitgen.grouped_gemm`."""
        return function(self.a, self.b, self.a_scale, self.b_scale, offs=self.offs, out=self.out)

    def check(self, what: str) -> None:
        """
        Compare `out` with the reference.

        Raises:
            WrongResult: They differ by more than rounding.
        """
        found = self.out.float().clone()
        expected = self.call(reference.grouped_gemm).float()
        error = float((found - expected).abs().max() / expected.abs().max())
        if not error <= TOLERANCE:
            raise WrongResult(f"{what} is wrong by {error:.2e} of the largest value")
