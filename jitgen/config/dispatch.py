# SPDX-License-Identifier: Apache-2.0
"""
Config and problem of `dispatch`. The config is what changes a kernel's source (how work is shared);
the problem is the sizes of one call, for which a config is chosen.
"""

from __future__ import annotations

from typing import ClassVar

from jitgen.config.config import MAX_SIZE, SCALE_BLOCK, Part, TiledConfig, of
from jitgen.config.format import Format
from jitgen.config.problem import UngroupedTokens
from jitgen.support.frozen import frozen

MOST_PLACES = 32
"""Experts of a token."""

MOST_RANKS = 8
"""Most GPUs of a host that access each other's memory."""

SENT = (Format.NONE, Format.BLOCK128, Format.ROW)
"""Formats in which tokens are sent."""

MOST_SORTED = 512
"""Most pairs of tokens and experts that `dispatch` sorts, and most local experts then."""

_SCALES = 4  # of a token in memory: whole vectors of 16 bytes


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
        format: Format in which tokens are sent: bfloat16, or values and scales that the kernel
            quantises them to.
        can_mask: Whether a rank that is late is left out from then on.
        by_flags: Whether a flag of each CTA says that its data has come, instead of the number of
            the round beside each word: half the bytes, for many tokens.
        sorts: Whether the kernel also sorts the pairs of tokens and experts, as `route` does: for
            as many pairs and local experts as a CTA has threads.
        leaves: Whether a kernel that sorts leaves the rows of tokens in the inbox, for
            `permute_quantize` to take them.
        tiling: How a GPU's threads share the work.

    Example::

        config = DispatchConfig(tiling=Tiling(threads=512))
        config.name("sm_90a")
        # 'dispatch_bf16_t512_sm_90a'
    """

    op: ClassVar[str] = "dispatch"
    prefix: ClassVar[str] = "bf16"
    format: Format = of(Format, default=Format.NONE, always=False, allowed=SENT)
    can_mask: bool = of(bool, default=False, word="mask")
    by_flags: bool = of(bool, default=False, word="flags")
    sorts: bool = of(bool, default=False, word="sorts")
    leaves: bool = of(bool, default=False, word="leaves")
    tiling: Tiling = of(Tiling, default=Tiling())

    @property
    def short(self) -> str:
        """Short text that distinguishes this config from others for the same problem."""
        return self.tiling.short

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the first arguments of the compiled function, in their order."""
        link = ("inbox", "peers", "state", *(("notes",) if self.can_mask else ()))
        scales = ("out_scale",) if self.format.has_own_scales else ()
        order = ("offs", "permutation", "inverse") if self.sorts else ()
        x = () if self.leaves else ("out_x",)
        received = (*x, "out_ids", "out_weights", *scales)
        return ("x", "topk_ids", "topk_weights", *link, *received, *order)


@frozen
class DispatchProblem(UngroupedTokens):
    """
    One call of `dispatch`: each rank sends (m, k) to every rank.

    Attributes:
        m: Rows of each rank in the buffers.
        k: Columns of a token.
        top_k: Number of experts of a token.
        ranks: Number of ranks.
        format: Format in which tokens are sent.
        can_mask: Whether a rank that is late is left out from then on.
        by_flags: Whether flags say that data has come.
        experts: Experts of this rank, by which the kernel sorts the pairs; 0: it does not.
        leaves: Whether a kernel that sorts leaves the rows of tokens in the inbox.
    """

    op: ClassVar[str] = "dispatch"
    m: int = of(int, least=0, most=MAX_SIZE)
    k: int = of(int, most=MAX_SIZE)
    top_k: int = of(int, most=MOST_PLACES, default=8)
    ranks: int = of(int, most=MOST_RANKS, default=2)
    format: Format = of(Format, default=Format.NONE, allowed=SENT)
    can_mask: bool = of(bool, default=False)
    by_flags: bool = of(bool, default=False)
    experts: int = of(int, default=0, least=0, most=MAX_SIZE)
    leaves: bool = of(bool, default=False)

    @property
    def sorts(self) -> bool:
        """Whether the kernel sorts the pairs."""
        return self.experts > 0

    @property
    def most_in_a_cta(self) -> int:
        """Threads that a CTA which sorts must have; 0: none sorts."""
        return max(self.ranks * self.m * self.top_k, self.experts) if self.sorts else 0

    @property
    def length(self) -> int:
        """Vectors of a token, of 8 bytes each: its row, its scales, and one for each expert."""
        return vectors_of(self.k, self.top_k, self.format)

    @property
    def traffic_bytes(self) -> int:
        """
        Bytes of the tokens of all ranks, with the number of a round beside each word, or none, and
        of the result.
        """
        return (2 if self.by_flags else 3) * self.ranks * self.m * 8 * self.length

    @property
    def types(self) -> str:
        """Text for errors that says which types and formats the problem has."""
        form = f", sent as {self.format}" * (self.format is not Format.NONE)
        form += ", by flags" * self.by_flags + ", with sorted pairs" * self.sorts
        form += ", which stay in the inbox" * self.leaves
        return f"bf16 tokens{form}" + ", from ranks that can be masked" * self.can_mask

    @property
    def slug(self) -> str:
        """Name of the problem that is readable and valid as a file name."""
        word = f"_{self.format}" * (self.format is not Format.NONE) + "_mask" * self.can_mask
        word += "_flags" * self.by_flags + f"_e{self.experts}" * self.sorts
        word += "_leaves" * self.leaves
        return f"dispatch_m{self.m}_k{self.k}_top{self.top_k}_ranks{self.ranks}{word}"

    @property
    def kind(self) -> tuple[object, ...]:
        """Sort key of problems: format, flags, local experts, columns, top_k, ranks, rows."""
        kind = (self.format, self.can_mask, self.by_flags, self.experts, self.leaves)
        return (*kind, self.k, self.top_k, self.ranks, self.m)


def vectors_of(columns: int, top_k: int, form: Format) -> int:
    """
    Return the vectors of a token that is sent, of 8 bytes each: those of its row, four columns or
    eight quantised ones; those of its scales, two in each; and one for each expert.
    """
    if form is Format.NONE:
        return columns // 4 + top_k
    return columns // 8 + -(-scales_of(columns, form) // 2) + top_k


def scale_shape(rows: int, columns: int, form: Format) -> tuple[int, ...]:
    """Return the shape of the scales of quantised tokens, as ranks send and store them."""
    return (rows,) if form is Format.ROW else (rows, scales_of(columns, form))


def scales_of(columns: int, form: Format) -> int:
    """
    Return the scales of a quantised token in memory: 1 for its row, or one for each block and 1.0
    for the rest of the last four.
    """
    if form is Format.ROW:
        return 1
    return -(-columns // (_SCALES * SCALE_BLOCK)) * _SCALES
