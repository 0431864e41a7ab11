# SPDX-License-Identifier: Apache-2.0
"""Marlin's grouped product of 4-bit weights and bfloat16 activations, as vLLM builds it."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from jitgen.bench.hopper_fp4.operands import Ready, Tokens, Weights, copies
from jitgen.bench.hopper_fp4.sides import Side
from jitgen.bench.peers import Unavailable
from jitgen.bench.peers.mxfp4 import folder_of_vllm

_LIBRARY = "_moe_C.abi3.so"
_E2M1 = 0x2000000010102
"""vLLM's number for e2m1: 2 bits of exponent, 1 of mantissa, a sign, no infinity, no NaN."""

_BLOCKS = (8, 16, 32, 48, 64)
_FULL = 0.9
"""vLLM takes the smallest block of rows that groups fill to less than this."""

_TILE = 16
_LEAST_N = 64


class Marlin(Side):
    """`moe_wna16_marlin_gemm` out of the library beside vLLM's Python files."""

    name = "marlin"
    note = "vLLM's build, with the block of rows that vLLM would take"

    def __init__(self) -> None:
        library = folder_of_vllm() / _LIBRARY
        if not library.exists():
            raise Unavailable(f"this vllm has no {_LIBRARY}")
        try:
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
        except OSError as error:
            raise Unavailable(f"{_LIBRARY} does not go with this torch: {error}") from None
        self._gemm: Any = torch.ops._moe_C.moe_wna16_marlin_gemm

    def prepare(self, weights: Weights, tokens: Tokens) -> Ready:
        """Return the product with float32 reduction, and no atomics, as vLLM asks for it."""
        _, n, k = weights.sizes
        if n % _LEAST_N or k % (4 * _TILE):
            raise Unavailable(f"it wants N and K of multiples of {_LEAST_N}")
        sets, scale = weights.once(
            self.name, lambda: (copies(repack(weights.packed)), repack_scale(weights.scale))
        )
        device = tokens.x.device
        block = block_of_rows(len(tokens.x) / len(tokens.row_counts))
        ids, experts = blocks_of_rows(tokens.row_counts, block)
        sms = torch.cuda.get_device_properties(device).multi_processor_count
        locks = torch.zeros(sms * 4, dtype=torch.int32, device=device)
        paired = tokens.paired(sets)
        rows = [
            ids.to(device),
            experts.to(device),
            torch.tensor([len(ids)], dtype=torch.int32, device=device),
            torch.ones(len(tokens.x), 1, device=device),
        ]
        # Bias, scales of a and of groups, zero points, order of K: it has none of them.
        calls = [
            partial(
                self._gemm,
                *(tokens.x, out, packed, None, scale, None, None, None, None, None, locks),
                *(*rows, block, 1, False, _E2M1, len(tokens.x), n, k),
                *(True, False, True, False, -1, -1, -1),
            )
            for packed, out in paired
        ]
        return Ready(
            calls=tuple(calls),
            out=paired[0][1],
            expected=tokens.product("bf16", tokens.x.float, weights.values),
            num_bytes=weights.num_bytes + tokens.x.nbytes + paired[0][1].nbytes,
        )


def block_of_rows(mean: float) -> int:
    """Return the rows of a block for groups of `mean` rows."""
    return next((block for block in _BLOCKS if mean / block < _FULL), _BLOCKS[-1])


def blocks_of_rows(row_counts: tuple[int, ...], block: int) -> tuple[Tensor, Tensor]:
    """Return the row at each place of each block, padding beyond the last, and blocks' groups."""
    ids: list[int] = []
    experts: list[int] = []
    first, rows = 0, sum(row_counts)
    for group, count in enumerate(row_counts):
        blocks = -(-count // block)
        ids += [*range(first, first + count), *[rows] * (blocks * block - count)]
        experts += [group] * blocks
        first += count
    return torch.tensor(ids, dtype=torch.int32), torch.tensor(experts, dtype=torch.int32)


def repack(packed: Tensor) -> Tensor:
    """
    Return weights in the order in which Marlin's threads read them.

    Tiles of 16 x 16 (K, N), four side by side in 1024 codes: a thread's eight, of two columns of
    tensor core fragments, share a word, in the order 0, 2, 4, 6, 1, 3, 5, 7.

    Args:
        packed: (G, N, K / 2) uint8.

    Returns:
        (G, K / 16, 2 N) int32.
    """
    groups, n, half = packed.shape
    k = half * 2
    order = _order_of_codes().to(packed.device)
    words = packed.new_empty((groups, k // _TILE, n * 2), dtype=torch.int32)
    for word, each in zip(words, packed, strict=True):
        codes = torch.stack((each & 15, each >> 4), -1).flatten(-2).T
        tiles = codes.reshape(k // _TILE, _TILE, n // _TILE, _TILE).transpose(1, 2)
        nibbles = tiles.reshape(-1, len(order))[:, order].view(k // _TILE, n * 2, 4, 2)
        joined = nibbles[..., 0] | nibbles[..., 1] << 4
        word.copy_(joined.contiguous().view(torch.int32).squeeze(-1))
    return words


def repack_scale(scale: Tensor) -> Tensor:
    """
    Return scales in Marlin's order.

    Args:
        scale: (G, N, K / 32) uint8.

    Returns:
        (G, K / 32, N) float8_e8m0fnu.
    """
    groups, n, blocks = scale.shape
    eight = torch.arange(8)
    order = (eight.unsqueeze(1) + 8 * eight).flatten().to(scale.device)
    permuted = scale.transpose(1, 2).reshape(-1, len(order))[:, order]
    pairs = permuted.reshape(-1, 4)[:, [0, 2, 1, 3]]
    return pairs.reshape(groups, blocks, n).view(torch.float8_e8m0fnu)


def _order_of_codes() -> Tensor:
    """Return where each of 1024 codes of four tiles comes from."""
    order = []
    for thread in range(32):
        column, row = thread // 4, 2 * (thread % 4)
        of_tile = [
            _TILE * each + column + 8 * half
            for half in (0, 1)
            for each in (row, row + 1, row + 8, row + 9)
        ]
        for tile in range(4):
            codes = [place + _TILE * _TILE * tile for place in of_tile]
            order += [codes[place] for place in (0, 2, 4, 6, 1, 3, 5, 7)]
    return torch.tensor(order)
