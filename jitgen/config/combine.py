# SPDX-License-Identifier: Apache-2.0
"""
Config and problem of `combine`. The config is what changes a kernel's source (whether a shared
expert is added, how work is shared); the problem is the sizes of one call, for which a config is
chosen.
"""

from __future__ import annotations

from typing import ClassVar

from jitgen.config.config import MAX_SIZE, Part, TiledConfig, of
from jitgen.config.problem import UngroupedTokens
from jitgen.errors import ConfigError
from jitgen.support.frozen import frozen

MOST_PLACES = 32
"""Places of a token: a warp has one in each lane."""


@frozen
class Tiling(Part):
    """
    How a GPU's threads share the work; default values do not appear in a kernel's name.

    A warp takes `rows` tokens times 256 columns, of which each lane has 8 neighbouring ones.

    Attributes:
        rows: Tokens of a tile.
        loads: Rows of each token whose loads are all under way at once.
        threads: Threads of a CTA.
        ctas_per_sm: CTAs on one SM, which limits their registers.
        is_persistent: Whether the launch has as many CTAs as fit on the GPU, which loop over all
            tiles; otherwise it has one CTA for every few tiles.
        use_pdl: Start before the previous kernel ended (programmatic dependent launch), and let the
            next one start.
    """

    rows: int = of(int, default=1, word="r")
    loads: int = of(int, default=4, word="l")
    threads: int = of(int, default=128, word="t")
    ctas_per_sm: int = of(int, default=8, word="c")
    is_persistent: bool = of(bool, default=False, word="persistent")
    use_pdl: bool = of(bool, default=True, word="nopdl")


@frozen
class CombineConfig(TiledConfig):
    """
    One kernel of `combine`, before its target is known.

    Attributes:
        has_shared: Whether a shared expert's rows are added.
        is_weighted: Whether each row of the shared expert has a weight.
        tiling: How a GPU's threads share the work.

    Example::

        config = CombineConfig(has_shared=True, tiling=Tiling(loads=8))
        config.name("sm_90a")
        # 'combine_bf16_shared_l8_sm_90a'
    """

    op: ClassVar[str] = "combine"
    prefix: ClassVar[str] = "bf16"
    has_shared: bool = of(bool, default=False, word="shared")
    is_weighted: bool = of(bool, default=False, word="weighted")
    tiling: Tiling = of(Tiling, default=Tiling())

    @property
    def short(self) -> str:
        """Short text that distinguishes this config from others for the same problem."""
        tiling = self.tiling
        text = f"{tiling.rows} rows x {tiling.loads} loads, {tiling.threads} threads"
        return f"{text} x {tiling.ctas_per_sm}" + " persistent" * tiling.is_persistent

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the first arguments of the compiled function, in their order."""
        shared = ("shared",) if self.has_shared else ()
        weights = ("shared_weights",) if self.is_weighted else ()
        return ("y", "inverse", "topk_weights", *shared, *weights, "out")


@frozen
class CombineProblem(UngroupedTokens):
    """
    One call of `combine`: the `top_k` rows of each token are added up to (m, n).

    Attributes:
        m: Number of tokens.
        n: Columns of a token.
        top_k: Rows that are added for each token.
        has_shared: Whether a shared expert's rows are added.
        is_weighted: Whether each row of the shared expert has a weight.
    """

    op: ClassVar[str] = "combine"
    m: int = of(int, least=0, most=MAX_SIZE)
    n: int = of(int, most=MAX_SIZE)
    top_k: int = of(int, most=MOST_PLACES, default=8)
    has_shared: bool = of(bool, default=False)
    is_weighted: bool = of(bool, default=False)

    def __post_init__(self) -> None:
        Part.__post_init__(self)
        if self.is_weighted and not self.has_shared:
            raise ConfigError("is_weighted is for a shared expert: set has_shared")

    @property
    def traffic_bytes(self) -> int:
        """Bytes of the result and of what is read for it, if each token has top_k rows."""
        return self.m * (2 * self.n * (self.top_k + 1 + self.has_shared) + 8 * self.top_k)

    @property
    def types(self) -> str:
        """Text for errors that says which types and formats the problem has."""
        shared = ", with a shared expert's" * self.has_shared + ", weighted" * self.is_weighted
        return f"bf16 rows{shared}"

    @property
    def slug(self) -> str:
        """Name of the problem that is readable and valid as a file name."""
        words = "_shared" * self.has_shared + "_weighted" * self.is_weighted
        return f"combine_m{self.m}_n{self.n}_top{self.top_k}{words}"

    @property
    def kind(self) -> tuple[object, ...]:
        """Sort key of problems: shared expert, its weights, columns, rows of a token, tokens."""
        return (self.has_shared, self.is_weighted, self.n, self.top_k, self.m)
