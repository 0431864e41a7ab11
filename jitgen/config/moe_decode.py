# SPDX-License-Identifier: Apache-2.0
"""
Config and problem of `moe_decode`. The config is what changes a kernel's source (how the warpgroups
of a CTA share the work); the problem is the sizes of one call, for which a config is chosen.
"""

from __future__ import annotations

from typing import ClassVar

from jitgen.config.config import MAX_SIZE, Part, TiledConfig, of
from jitgen.config.problem import UngroupedTokens
from jitgen.errors import ConfigError
from jitgen.support.frozen import frozen

MOST_TOKENS = 8
"""Most tokens of a call; all of them are columns of each product."""

MOST_EXPERTS = 512
"""Most experts on a device; a CTA has a word of 16 bytes for each."""

MOST_PAIRS = 64
"""Most pairs of a token and an expert; a warp lists their experts, two pairs in each lane."""


_BEFORE = (
    *("x", "topk_ids", "topk_weights", "w13", "w13_scale", "w2", "w2_scale"),
    *("exchange", "state"),
)


@frozen
class Tiling(Part):
    """
    How the threads of a CTA share the work; default values do not appear in a kernel's name.

    Attributes:
        warpgroups: Warpgroups that multiply; each has one more warp, which loads its weights.
        stages: Pipeline stages of each warpgroup, of 16 rows of weights x 512 columns.
        room: Most chunks of 512 columns of a token.
        use_pdl: Start before the previous kernel ended (programmatic dependent launch), and let the
            next one start.
    """

    warpgroups: int = of(int, default=4, word="w")
    stages: int = of(int, default=2, word="s")
    room: int = of(int, default=14, word="room")
    use_pdl: bool = of(bool, default=True, word="nopdl")

    @property
    def short(self) -> str:
        """Short text with the warpgroups, their stages and the room for chunks."""
        return f"{self.warpgroups} warpgroups x {self.stages} stages, room {self.room}"


@frozen
class MoeDecodeConfig(TiledConfig):
    """
    One kernel of `moe_decode`, before its target is known.

    Attributes:
        has_shared: Whether a shared expert's rows are added.
        is_weighted: Whether each row of the shared expert has a weight.
        tiling: How the threads of a CTA share the work.

    Example::

        config = MoeDecodeConfig(tiling=Tiling(stages=3))
        config.name("sm_90a")
        # 'moe_decode_e4m3_block128_s3_sm_90a'
    """

    op: ClassVar[str] = "moe_decode"
    prefix: ClassVar[str] = "e4m3_block128"
    has_shared: bool = of(bool, default=False, word="shared")
    is_weighted: bool = of(bool, default=False, word="weighted")
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
        return (*_BEFORE, *shared, *weights, "out")


@frozen
class MoeDecodeProblem(UngroupedTokens):
    """
    One call of `moe_decode`: a layer of experts for few tokens.

    Attributes:
        m: Number of tokens.
        experts: Number of experts with weights on this device.
        top_k: Number of experts of a token.
        hidden: Columns H of a token.
        intermediate: Rows I of an expert's gates, and of its ups.
        has_shared: Whether a shared expert's rows are added.
        is_weighted: Whether each row of the shared expert has a weight.
    """

    op: ClassVar[str] = "moe_decode"
    m: int = of(int, least=0, most=MOST_TOKENS)
    experts: int = of(int, most=MOST_EXPERTS)
    top_k: int = of(int, most=MOST_PAIRS)
    hidden: int = of(int, most=MAX_SIZE)
    intermediate: int = of(int, most=MAX_SIZE)
    has_shared: bool = of(bool, default=False)
    is_weighted: bool = of(bool, default=False)

    def __post_init__(self) -> None:
        Part.__post_init__(self)
        if self.is_weighted and not self.has_shared:
            raise ConfigError("is_weighted is for a shared expert: set has_shared")
        if self.m * self.top_k > MOST_PAIRS:
            raise ConfigError(
                f"m x top_k is at most {MOST_PAIRS}, and {self.m} x {self.top_k} is more"
            )

    @property
    def chosen(self) -> float:
        """How many experts are chosen on average, if each is equally likely."""
        return self.experts * (1 - (1 - min(1.0, self.top_k / self.experts)) ** self.m)

    @property
    def traffic_bytes(self) -> int:
        """Bytes of the weights that are read on average, and of tokens and results."""
        weights = round(self.chosen * 3 * self.intermediate * self.hidden)
        return weights + 4 * self.m * self.hidden

    @property
    def types(self) -> str:
        """Text for errors that says which types and formats the problem has."""
        shared = ", with a shared expert's" * self.has_shared + ", weighted" * self.is_weighted
        return f"bf16 tokens, e4m3 weights with block scales{shared}"

    @property
    def slug(self) -> str:
        """Name of the problem that is readable and valid as a file name."""
        layer = f"e{self.experts}_top{self.top_k}_h{self.hidden}_i{self.intermediate}"
        words = "_shared" * self.has_shared + "_weighted" * self.is_weighted
        return f"moe_decode_m{self.m}_{layer}{words}"

    @property
    def kind(self) -> tuple[object, ...]:
        """Sort key of problems: the layer, then tokens."""
        shared = self.has_shared, self.is_weighted
        return (*shared, self.hidden, self.intermediate, self.experts, self.top_k, self.m)
