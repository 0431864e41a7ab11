# SPDX-License-Identifier: Apache-2.0
"""Which layers are measured: experts on the GPU, tokens, and the sizes of DeepSeek-V3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jitgen.frozen import frozen

HIDDEN, INTERMEDIATE, TOP_K = 7168, 2048, 8
EXPERTS = (8, 32, 256)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 512, 4096, 16384)

QUICK_EXPERTS, QUICK_TOKENS = (32,), (1, 8, 64, 512)
"""What a run of a minute measures."""


@frozen
class Case:
    """
    One layer with tokens whose experts are all on this GPU.

    Attributes:
        experts: How many are here.
        tokens: Tokens at once.
        hidden: Columns of a token.
        intermediate: Columns between the products.
        top_k: Experts of a token.
    """

    experts: int
    tokens: int
    hidden: int = HIDDEN
    intermediate: int = INTERMEDIATE
    top_k: int = TOP_K

    def __str__(self) -> str:
        """Return what progress and errors call it: ``32 experts, 8 tokens``."""
        return f"{self.experts} experts, {self.tokens} tokens"

    @property
    def rows(self) -> int:
        """Rows of the products: every token once for each of its experts."""
        return self.tokens * self.top_k

    @property
    def expert_bytes(self) -> int:
        """Bytes of an expert's FP8 weights."""
        return 3 * self.intermediate * self.hidden

    @property
    def flop(self) -> int:
        """Operations of both products."""
        return 2 * self.rows * 3 * self.intermediate * self.hidden


def plan(experts: Sequence[int] = EXPERTS, tokens: Sequence[int] = TOKENS) -> Iterator[Case]:
    """Yield every number of tokens for every number of experts."""
    for count in experts:
        for each in tokens:
            yield Case(experts=count, tokens=each)
