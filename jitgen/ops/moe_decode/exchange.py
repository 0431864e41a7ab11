# SPDX-License-Identifier: Apache-2.0
"""
The memory in which CTAs of `moe_decode` exchange h (the activated values), and the counter of its
launches.

A word has two columns of h and the number of the launch that wrote it, so nothing is cleared
between launches. `words` and `state` belong together: a word counts as new if its number is the
next one of `state`. So launches that use the same memory must run one after another, including
replays of CUDA graphs.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor


class Exchange(NamedTuple):
    """
    Memory in which CTAs exchange h, for calls that run one after another.

    Attributes:
        words: (rows, at least I / 2) int64, each row contiguous: see `rows_for`.
        state: (1,) int64: in the low half the number of CTAs of this launch that have begun, in the
            high half the number of launches.
    """

    words: Tensor
    state: Tensor

    @classmethod
    def of(
        cls, tokens: int, top_k: int, intermediate: int, device: torch.device | str = "cpu"
    ) -> Self:
        """
        Return memory for calls with at most `tokens` tokens, `top_k` experts for each, and
        `intermediate` columns of h.
        """
        shape = (rows_for(tokens, top_k), -(-intermediate // 4) * 2)
        words = torch.zeros(shape, dtype=torch.int64, device=device)
        return cls(words, words.new_zeros(1))


def rows_for(tokens: int, top_k: int) -> int:
    """
    Return the number of rows that these tokens may need: for each expert that they may choose, one
    for each token.
    """
    return tokens * tokens * top_k
