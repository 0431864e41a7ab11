# SPDX-License-Identifier: Apache-2.0
"""
Config and problem of `add_lora`. The config is what changes a kernel's source (whether x has a row
for each token or for each row, how work is shared); the problem is the sizes of one call, for which
a config is chosen.
"""

from __future__ import annotations

from typing import ClassVar

from jitgen.config.config import MAX_SIZE, Part, TiledConfig, of
from jitgen.config.problem import UngroupedTokens
from jitgen.errors import ConfigError
from jitgen.support.frozen import frozen

RANKS = (8, 16, 32, 64)
"""Ranks with kernels; adapters of other ranks must be padded with zeros."""

MOST_PARTS = 2
"""Number of parts of the columns; each has separate values between a and b: gates and ups."""


@frozen
class Tiling(Part):
    """
    How a GPU's threads share the work; default values do not appear in a kernel's name.

    Among 32 consecutive rows, those with the same adapter and expert share a CTA.

    Attributes:
        threads: Threads of a CTA.
        ctas_per_sm: CTAs on one SM, which limits their registers.
        use_pdl: Start before the previous kernel ended (programmatic dependent launch), and let the
            next one start.
        early: Compute the product with a, and load b, before the previous kernel has ended. The
            caller must guarantee that only y and out are used by that kernel, and that all other
            arguments were complete before it let this one start.
    """

    threads: int = of(int, default=256, word="t")
    ctas_per_sm: int = of(int, default=2, word="c")
    use_pdl: bool = of(bool, default=True, word="nopdl")
    early: bool = of(bool, default=False, word="early")


@frozen
class AddLoraConfig(TiledConfig):
    """
    One kernel of `add_lora`, before its target is known.

    Attributes:
        by_row: Whether x has a row for each row of y; otherwise one for each token.
        tiling: How a GPU's threads share the work.

    Example::

        config = AddLoraConfig(by_row=True, tiling=Tiling(threads=512, ctas_per_sm=1))
        config.name("sm_90a")
        # 'add_lora_bf16_byrow_t512_c1_sm_90a'
    """

    op: ClassVar[str] = "add_lora"
    prefix: ClassVar[str] = "bf16"
    by_row: bool = of(bool, default=False, word="byrow")
    tiling: Tiling = of(Tiling, default=Tiling())

    @property
    def short(self) -> str:
        """Short text that distinguishes this config from others for the same problem."""
        tiling = self.tiling
        return f"{tiling.threads} threads x {tiling.ctas_per_sm}" + " early" * tiling.early

    @property
    def settled(self) -> tuple[str, ...]:
        """Arguments that must be complete before the previous kernel lets this one start."""
        if not self.tiling.early:
            return ()
        return ("x", "a", "b", "scales", "adapter_ids", "topk_ids", "permutation")


@frozen
class AddLoraProblem(UngroupedTokens):
    """
    One call of `add_lora`: each of m * top_k rows, (k,) of x, becomes `rank` values for each part,
    and these a row (n,).

    Attributes:
        m: Number of tokens.
        n: Columns of y.
        k: Columns of x.
        rank: Columns of b.
        top_k: Rows of y for each token.
        parts: Parts of y's columns; a has `parts` times `rank` rows.
        adapters: Number of adapters that tokens may have.
        experts: Number of experts that rows may have.
        by_row: Whether x has a row for each row of y; otherwise one for each token.
    """

    op: ClassVar[str] = "add_lora"
    m: int = of(int, least=0, most=MAX_SIZE)
    n: int = of(int, most=MAX_SIZE)
    k: int = of(int, most=MAX_SIZE)
    rank: int = of(int, most=RANKS[-1])
    top_k: int = of(int, most=MAX_SIZE, default=8)
    parts: int = of(int, default=1, most=MOST_PARTS)
    adapters: int = of(int, default=1, most=MAX_SIZE)
    experts: int = of(int, default=1, most=MAX_SIZE)
    by_row: bool = of(bool, default=False)

    def __post_init__(self) -> None:
        Part.__post_init__(self)
        if self.rank not in RANKS:
            allowed = ", ".join(map(str, RANKS))
            raise ConfigError(f"rank must be one of {allowed} (got {self.rank})")

    @property
    def rows(self) -> int:
        """Rows of y."""
        return self.m * self.top_k

    @property
    def matrix_bytes(self) -> int:
        """Bytes of the two matrices of one adapter and one expert."""
        return 2 * self.rank * (self.parts * self.k + self.n)

    @property
    def traffic_bytes(self) -> int:
        """
        Bytes of y, read and written, of x, and of the matrices of each adapter and expert, or of
        each row if these are fewer.
        """
        matrices = min(self.rows, self.adapters * self.experts)
        x = self.rows if self.by_row else self.m
        return 4 * self.rows * self.n + 2 * x * self.k + matrices * self.matrix_bytes

    @property
    def types(self) -> str:
        """Text for errors that says which types and formats the problem has."""
        return f"bf16 adapters of rank {self.rank}"

    @property
    def slug(self) -> str:
        """Name of the problem that is readable and valid as a file name."""
        words = f"{self.parts}x{self.rank}_l{self.adapters}_e{self.experts}"
        words += "_byrow" * self.by_row
        return f"add_lora_{words}_m{self.m}_n{self.n}_k{self.k}_top{self.top_k}"

    @property
    def kind(self) -> tuple[object, ...]:
        """Sort key of problems: `by_row`, sizes, tokens."""
        ranks = self.rank, self.parts, self.adapters, self.experts
        return (self.by_row, self.n, self.k, *ranks, self.top_k, self.m)
