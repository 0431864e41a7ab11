# SPDX-License-Identifier: Apache-2.0
"""
Config and problem of `combine_ranks`. The config is what changes a kernel's source (whether a
shared expert is added, how work is shared); the problem is the sizes of one call, for which a
config is chosen.
"""

from __future__ import annotations

from typing import ClassVar

from jitgen.config.config import MAX_SIZE, Part, TiledConfig, of
from jitgen.config.dispatch import MOST_RANKS, Tiling
from jitgen.config.problem import UngroupedTokens
from jitgen.errors import ConfigError
from jitgen.support.frozen import frozen


@frozen
class CombineRanksConfig(TiledConfig):
    """
    One kernel of `combine_ranks`, before its target is known.

    Attributes:
        has_shared: Whether a shared expert's rows are added.
        is_weighted: Whether each row of the shared expert has a weight.
        can_mask: Whether a rank that is late is left out from then on.
        of_experts: Whether ranks send the row of each expert instead of the sum of their rows.
        by_flags: Whether a flag of each CTA says that its data has come, instead of the number of
            the round beside each word.
        tiling: How a GPU's threads share the work.

    Example::

        config = CombineRanksConfig(has_shared=True)
        config.name("sm_90a")
        # 'combine_ranks_bf16_shared_sm_90a'
    """

    op: ClassVar[str] = "combine_ranks"
    prefix: ClassVar[str] = "bf16"
    has_shared: bool = of(bool, default=False, word="shared")
    is_weighted: bool = of(bool, default=False, word="weighted")
    can_mask: bool = of(bool, default=False, word="mask")
    of_experts: bool = of(bool, default=False, word="experts")
    by_flags: bool = of(bool, default=False, word="flags")
    tiling: Tiling = of(Tiling, default=Tiling())

    @property
    def short(self) -> str:
        """Short text that distinguishes this config from others for the same problem."""
        return self.tiling.short

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the first arguments of the compiled function, in their order."""
        shared = ("shared",) if self.has_shared else ()
        weights = ("shared_weights",) if self.is_weighted else ()
        link = ("inbox", "peers", "state", *(("notes",) if self.can_mask else ()))
        return ("y", "inverse", "topk_weights", *link, *shared, *weights, "out")


@frozen
class CombineRanksProblem(UngroupedTokens):
    """
    One call of `combine_ranks`: every rank sends (m, n) to each rank.

    Attributes:
        m: Rows of each rank in the buffers.
        n: Columns of a token.
        ranks: Number of ranks.
        has_shared: Whether a shared expert's rows are added.
        is_weighted: Whether each row of the shared expert has a weight.
        can_mask: Whether a rank that is late is left out from then on.
        of_experts: Whether ranks send the row of each expert instead of the sum of their rows.
        by_flags: Whether flags say that data has come.
    """

    op: ClassVar[str] = "combine_ranks"
    m: int = of(int, least=0, most=MAX_SIZE)
    n: int = of(int, most=MAX_SIZE)
    ranks: int = of(int, most=MOST_RANKS, default=2)
    has_shared: bool = of(bool, default=False)
    is_weighted: bool = of(bool, default=False)
    can_mask: bool = of(bool, default=False)
    of_experts: bool = of(bool, default=False)
    by_flags: bool = of(bool, default=False)

    def __post_init__(self) -> None:
        Part.__post_init__(self)
        if self.is_weighted and not self.has_shared:
            raise ConfigError("is_weighted is for a shared expert: set has_shared")

    @property
    def traffic_bytes(self) -> int:
        """
        Bytes of the rows of all ranks, with the number of a round beside each word, or none, and of
        the result.
        """
        each = 2 if self.by_flags else 3
        return 2 * self.m * self.n * (each * self.ranks + 1 + self.has_shared)

    @property
    def types(self) -> str:
        """Text for errors that says which types and formats the problem has."""
        shared = ", with a shared expert's" * self.has_shared + ", weighted" * self.is_weighted
        shared += ", by flags" * self.by_flags
        what = "rows of experts" if self.of_experts else "sums"
        return f"bf16 {what}{shared}" + ", from ranks that can be masked" * self.can_mask

    @property
    def slug(self) -> str:
        """Name of the problem that is readable and valid as a file name."""
        words = "_shared" * self.has_shared + "_weighted" * self.is_weighted
        words += "_mask" * self.can_mask + "_experts" * self.of_experts
        words += "_flags" * self.by_flags
        return f"combine_ranks_m{self.m}_n{self.n}_ranks{self.ranks}{words}"

    @property
    def kind(self) -> tuple[object, ...]:
        """Sort key of problems: the flags, columns, ranks, rows."""
        return (
            self.of_experts,
            self.can_mask,
            self.by_flags,
            self.has_shared,
            self.is_weighted,
            self.n,
            self.ranks,
            self.m,
        )
