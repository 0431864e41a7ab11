# SPDX-License-Identifier: Apache-2.0
"""Marlin's grouped product of bfloat16 activations and packed weights, as vLLM builds it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from jitgen.autotune.measure.clock import Call
from jitgen.bench.hopper_fp4.operands import Tokens, Weights, copies
from jitgen.bench.hopper_fp4.plain import Plain, plain
from jitgen.bench.hopper_fp4.sides import Side
from jitgen.bench.peers import Unavailable, require
from jitgen.bench.peers.marlin_layouts import TILE, block_of_rows, blocks_of_rows, repack, scales_of
from jitgen.bench.peers.vllm import folder_of_vllm
from jitgen.bench.runner import Ready
from jitgen.config import DType

_LIBRARY = "_moe_C.abi3.so"
_TYPES: Mapping[DType, int] = {
    DType.INT4: 0x4000000100400,
    DType.E2M1: 0x2000000010102,
    DType.E4M3: 0xA000000010304,
}
"""
vLLM's numbers for types: bits of exponent, of mantissa, a sign, what is added to integers (8), no
infinity, and which codes are NaN.
"""

_LEAST = 4 * TILE


class Marlin(Side):
    """`moe_wna16_marlin_gemm` out of the library beside vLLM's Python files."""

    note = "vLLM's build, with the block of rows that vLLM would take"

    def __init__(self, name: str, form: str, tokens: DType) -> None:
        reason = "vLLM gives Marlin e4m3 tokens on sm_89 and sm_120 alone"
        require(tokens is DType.BF16, reason)
        self.name = name
        self._form = form
        library = folder_of_vllm() / _LIBRARY
        if not library.exists():
            raise Unavailable(f"this vllm has no {_LIBRARY}")
        try:
            torch.ops.load_library(str(library))
        except OSError as error:
            raise Unavailable(f"{_LIBRARY} does not go with this torch: {error}") from None
        self._gemm: Any = torch.ops._moe_C.moe_wna16_marlin_gemm

    def prepare(self, weights: Weights, tokens: Tokens) -> Ready:
        """Return the product with float32 reduction and without atomics, as in vLLM."""
        found = plain(weights, self._form)
        _, n, k = found.sizes
        require(not n % _LEAST and not k % _LEAST, f"it wants N and K of multiples of {_LEAST}")
        sets, scale, factor = weights.once(self.name, partial(_operands, found))
        device = tokens.x.device
        block = block_of_rows(len(tokens.x) / len(tokens.row_counts))
        ids, experts = blocks_of_rows(tokens.row_counts, block)
        sms = torch.cuda.get_device_properties(device).multi_processor_count
        locks = torch.zeros(sms * 4, dtype=torch.int32, device=device)
        rows = [
            ids.to(device),
            experts.to(device),
            torch.tensor([len(ids)], dtype=torch.int32, device=device),
            torch.ones(len(tokens.x), 1, device=device),
        ]

        def call(packed: Tensor, out: Tensor) -> Call:
            # None of these: bias, scales of a, zero points, order of K.
            return partial(
                self._gemm,
                *(tokens.x, out, packed, None, scale, None, factor, None, None, None, locks),
                *(*rows, block, 1, False, _TYPES[found.dtype], len(tokens.x), n, k),
                *(True, False, True, False, -1, -1, -1),
            )

        expected = tokens.product(f"{self._form} plain bf16", tokens.x.float, found.values)
        return tokens.ready(sets, call, expected, num_bytes=found.num_bytes + tokens.x.nbytes)


def _operands(found: Plain) -> tuple[list[Tensor], Tensor, Tensor | None]:
    """Return copies of the codes, scales and factors in Marlin's orders."""
    return copies(repack(found.codes, found.dtype.bits)), *scales_of(found)
