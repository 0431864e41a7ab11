# SPDX-License-Identifier: Apache-2.0
"""
Random weights of each format as checkpoints have them. jitgen's sides and the peers of a format
prepare the same ones.

========  =====================  ================================================================
format    codes                  scales
========  =====================  ================================================================
mxfp4     e2m1, two in a byte    UE8M0 for each 32 along K
fp8 row   e4m3                   bfloat16 for each row of N
int4_32   plus 8, two in a byte  bfloat16 for each 32 along K
int4_128  plus 8, two in a byte  bfloat16 for each 128 along K
nvfp4     e2m1, two in a byte    e4m3 for each 16 along K, and a float32 for each group
mxfp8     e4m3                   UE8M0 for each 32 along K
========  =====================  ================================================================

Every library has exactly these scales: those of rows are bfloat16 because humming and Marlin take
no others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from jitgen.bench.hopper_fp4.operands import Weights, fp8_bits
from jitgen.bench.peers import require
from jitgen.config import DType
from jitgen.config.prepacked import PrepackedFormat
from jitgen.formats import e2m1, int4
from jitgen.formats.mx32 import power
from jitgen.support.frozen import frozen

FP8_ROW = "fp8 row"
"""The one format that is not prepacked."""

_BIAS = 127


@frozen
class Plain:
    """
    Weights of all groups.

    Attributes:
        dtype: Type of the values.
        codes: (G, N, K / 2) uint8, of two neighbours along K the first in the low half of a byte;
            or (G, N, K) float8_e4m3fn.
        scale: (G, N, S), one for each K / S values of a row; uint8 is UE8M0.
        factor: (G,) float32, a factor of all values of a group; None: there is none.
    """

    dtype: DType
    codes: Tensor
    scale: Tensor
    factor: Tensor | None = None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of groups, N and K of the weights."""
        groups, n, size = self.codes.shape
        return groups, n, size * 8 // self.dtype.bits

    @property
    def shared(self) -> int:
        """Number of values along K that share a scale."""
        return self.sizes[2] // self.scale.shape[2]

    @property
    def num_bytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scale.nbytes

    def values(self) -> Tensor:
        """Return the values, (G, N, K) float32."""
        found = torch.empty(self.sizes, device=self.codes.device)
        for group, (codes, scale) in enumerate(zip(self.codes, self.scale, strict=True)):
            each = power(scale.int() - _BIAS) if scale.dtype is torch.uint8 else scale.float()
            factors = each.repeat_interleave(self.shared, -1)
            torch.mul(_NUMBERS[self.dtype](codes), factors, out=found[group])
            if self.factor is not None:
                found[group] *= self.factor[group]
        return found


_NUMBERS: Mapping[DType, Callable[[Tensor], Tensor]] = {
    DType.INT4: lambda codes: int4.values_of(codes.view(torch.int32)).float(),
    DType.E2M1: e2m1.unpack,
    DType.E4M3: lambda codes: codes.float(),
}


def fits(form: str, k: int) -> bool:
    """Return whether the scales of a format divide rows of `k` values evenly."""
    return k % _shared(form) == 0


def _shared(form: str) -> int:
    """Return the number of values along K of which K must be a multiple."""
    return 1 if form == FP8_ROW else PrepackedFormat(form).facts.values


def plain(weights: Weights, form: str) -> Plain:
    """
    Return the weights of a format of `FORMS`; the cases of a size share them.

    Raises:
        Unavailable: K is no multiple of the number of values that share a scale.
    """
    k = weights.sizes[2]
    require(fits(form, k), f"K is a multiple of {_shared(form)} there (got {k})")
    return weights.once(f"{form} plain", partial(_MAKERS[form], weights))


def _random(weights: Weights, size: int, seed: int) -> Tensor:
    """Return random float32 from 0 to 1, (G, N, size), the same in every run."""
    groups, n, _ = weights.sizes
    device = weights.packed.device
    chance = torch.Generator(device).manual_seed(seed)
    return torch.rand((groups, n, size), device=device, generator=chance)


def _mxfp4(weights: Weights) -> Plain:
    return Plain(dtype=DType.E2M1, codes=weights.packed, scale=weights.scale)


def _fp8_row(weights: Weights) -> Plain:
    scale = (_random(weights, 1, 2) + 0.5).bfloat16()
    return Plain(dtype=DType.E4M3, codes=fp8_bits(weights), scale=scale)


def _int4(size: int, weights: Weights) -> Plain:
    scale = _random(weights, weights.sizes[2] // size, 3) / 100 + 0.001
    return Plain(dtype=DType.INT4, codes=weights.packed, scale=scale.bfloat16())


def _nvfp4(weights: Weights) -> Plain:
    scale = (_random(weights, weights.sizes[2] // 16, 4) * 400 + 1).to(torch.float8_e4m3fn)
    factor = torch.full((weights.sizes[0],), 1e-4, device=scale.device)
    return Plain(dtype=DType.E2M1, codes=weights.packed, scale=scale, factor=factor)


def _mxfp8(weights: Weights) -> Plain:
    return Plain(dtype=DType.E4M3, codes=fp8_bits(weights), scale=weights.scale)


_MAKERS: Mapping[str, Callable[[Weights], Plain]] = {
    PrepackedFormat.MXFP4: _mxfp4,
    FP8_ROW: _fp8_row,
    PrepackedFormat.INT4_32: partial(_int4, 32),
    PrepackedFormat.INT4_128: partial(_int4, 128),
    PrepackedFormat.NVFP4: _nvfp4,
    PrepackedFormat.MXFP8: _mxfp8,
}

FORMS = tuple(_MAKERS)
"""The formats, by the names of their sides; MXFP4 first."""
