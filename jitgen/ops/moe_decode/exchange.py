# SPDX-License-Identifier: Apache-2.0
"""
The memory in which CTAs of `moe_decode` exchange h, and what counts its launches.

A word has two columns of h and the number of the launch that wrote it, so nothing is cleared
between launches. Both belong together: a word is taken for new if it has the number that `state`
gives next. So launches that use the same memory must come one after the other, those of the replays
of a CUDA graph too.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor


class Exchange(NamedTuple):
    """
    Memory for calls that come one after the other.

    Attributes:
        words: (rows, at least I / 2) int64, each row contiguous: see `rows_for`.
        state: (1,) int64: CTAs of this launch that have begun in the low half, launches in the
            high one.
    """

    words: Tensor
    state: Tensor

    @classmethod
    def of(
        cls, tokens: int, top_k: int, intermediate: int, device: torch.device | str = "cpu"
    ) -> Self:
        """Return memory for calls of at most so many tokens, experts of each, and columns of h."""
        shape = (rows_for(tokens, top_k), -(-intermediate // 4) * 2)
        words = torch.zeros(shape, dtype=torch.int64, device=device)
        return cls(words, words.new_zeros(1))


def rows_for(tokens: int, top_k: int) -> int:
    """Return the rows that so many tokens may need: one of each expert that is chosen."""
    return tokens * tokens * top_k
