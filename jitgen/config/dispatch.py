# SPDX-License-Identifier: Apache-2.0
"""
Config and problem of `dispatch`. The config is what changes a kernel's source (how work is shared);
the problem is the sizes of one call, for which a config is chosen.
"""

from __future__ import annotations

from typing import ClassVar

from jitgen.config.config import MAX_SIZE, Part, TiledConfig, of
from jitgen.config.problem import UngroupedTokens
from jitgen.support.frozen import frozen

MOST_PLACES = 32
"""Experts of a token."""

MOST_RANKS = 8
"""Most GPUs of a host that access each other's memory."""


@frozen
class Tiling(Part):
    """
    How a GPU's threads share the work; default values do not appear in a kernel's name.

    Attributes:
        threads: Threads of a CTA.
        ctas: Most CTAs. All of them must run at the same time, because they wait for data of peers'
            CTAs.
        use_pdl: Start before the previous kernel ended (programmatic dependent launch), and let the
            next one start.
    """

    threads: int = of(int, default=256, word="t")
    ctas: int = of(int, default=128, word="c")
    use_pdl: bool = of(bool, default=True, word="nopdl")

    @property
    def short(self) -> str:
        """Short text with the threads of a CTA and the most CTAs."""
        return f"{self.threads} threads x at most {self.ctas}"


@frozen
class DispatchConfig(TiledConfig):
    """
    One kernel of `dispatch`, before its target is known.

    Attributes:
        can_mask: Whether a rank that is late is left out from then on.
        tiling: How a GPU's threads share the work.

    Example::

        config = DispatchConfig(tiling=Tiling(threads=512))
        config.name("sm_90a")
        # 'dispatch_bf16_t512_sm_90a'
    """

    op: ClassVar[str] = "dispatch"
    prefix: ClassVar[str] = "bf16"
    can_mask: bool = of(bool, default=False, word="mask")
    tiling: Tiling = of(Tiling, default=Tiling())

    @property
    def short(self) -> str:
        """Short text that distinguishes this config from others for the same problem."""
        return self.tiling.short

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the first arguments of the compiled function, in their order."""
        link = ("inbox", "peers", "state", *(("notes",) if self.can_mask else ()))
        return ("x", "topk_ids", "topk_weights", *link, "out_x", "out_ids", "out_weights")


@frozen
class DispatchProblem(UngroupedTokens):
    """
    One call of `dispatch`: each rank sends (m, k) to every rank.

    Attributes:
        m: Rows of each rank in the buffers.
        k: Columns of a token.
        top_k: Number of experts of a token.
        ranks: Number of ranks.
        can_mask: Whether a rank that is late is left out from then on.
    """

    op: ClassVar[str] = "dispatch"
    m: int = of(int, least=0, most=MAX_SIZE)
    k: int = of(int, most=MAX_SIZE)
    top_k: int = of(int, most=MOST_PLACES, default=8)
    ranks: int = of(int, most=MOST_RANKS, default=2)
    can_mask: bool = of(bool, default=False)

    @property
    def traffic_bytes(self) -> int:
        """
        Bytes of the tokens of all ranks, with the number of a round beside each word, and of the
        result.
        """
        return 3 * self.ranks * self.m * (2 * self.k + 8 * self.top_k)

    @property
    def types(self) -> str:
        """Text for errors that says which types and formats the problem has."""
        return "bf16 tokens" + ", from ranks that can be masked" * self.can_mask

    @property
    def slug(self) -> str:
        """Name of the problem that is readable and valid as a file name."""
        word = "_mask" * self.can_mask
        return f"dispatch_m{self.m}_k{self.k}_top{self.top_k}_ranks{self.ranks}{word}"

    @property
    def kind(self) -> tuple[object, ...]:
        """Sort key of problems: `can_mask`, columns, experts of a token, ranks, rows."""
        return (self.can_mask, self.k, self.top_k, self.ranks, self.m)
