# SPDX-License-Identifier: Apache-2.0
"""The layers that are measured: experts on the GPU, tokens, and the sizes of DeepSeek-V3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jitgen.bench.protocol import Record
from jitgen.support.frozen import frozen

HIDDEN, INTERMEDIATE, TOP_K = 7168, 2048, 8
EXPERTS = (8, 32, 256)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 512, 4096, 16384)

ROUTED_EXPERTS, ROUTED_OF = (32,), 256
"""DeepSeek-V3's experts on one device of eight, behind its router."""

QUICK_EXPERTS, QUICK_TOKENS = (32,), (1, 8, 64, 512)
"""Experts and tokens of a run of one minute."""


@frozen
class Case(Record):
    """
    One layer and the number of its tokens.

    Attributes:
        experts: Experts on this GPU.
        tokens: Number of tokens of a call.
        hidden: Columns of a token.
        intermediate: Columns between the products.
        top_k: Number of experts of a token.
        of: Experts of all devices, among which a router chooses by logits; this device has the
            first `experts` of them. 0: there is no router, tokens are given with their experts, and
            all experts are on this device.
    """

    experts: int
    tokens: int
    hidden: int = HIDDEN
    intermediate: int = INTERMEDIATE
    top_k: int = TOP_K
    of: int = 0

    def __str__(self) -> str:
        """Return the case's name in progress and errors: ``32 experts, 8 tokens``."""
        return f"{self.layer}, {self.tokens} tokens"

    @property
    def layer(self) -> str:
        """
        Name of the layer, which is the same for all numbers of tokens: ``32 of 256 experts,
        routed``.
        """
        return (
            f"{self.experts} of {self.of} experts, routed" if self.of else f"{self.experts} experts"
        )

    @property
    def rows(self) -> int:
        """
        Rows of the products: one for each token and each of its experts, on this device or another.
        """
        return self.tokens * self.top_k

    @property
    def expert_bytes(self) -> int:
        """Bytes of the FP8 weights of one expert, without scales."""
        return 3 * self.intermediate * self.hidden

    @property
    def flop(self) -> int:
        """Floating point operations of both products, for all rows."""
        return 2 * self.rows * 3 * self.intermediate * self.hidden


def plan(
    experts: Sequence[int] = EXPERTS, tokens: Sequence[int] = TOKENS, of: int = 0
) -> Iterator[Case]:
    """
    Yield a case for every number of tokens and every number of experts; with a router if `of` is
    given.
    """
    for count in experts:
        for each in tokens:
            yield Case(experts=count, tokens=each, of=of)
