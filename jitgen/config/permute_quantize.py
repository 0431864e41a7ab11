# SPDX-License-Identifier: Apache-2.0
"""
Config and problem of `permute_quantize`. The config is what changes a kernel's source (layout,
format, which way it walks, how work is shared); the problem is the sizes of one call, for which a
config is chosen.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from jitgen.config.config import (
    MAX_SIZE,
    SCALE_BLOCK,
    Layout,
    Part,
    TiledConfig,
    of,
)
from jitgen.config.format import Format
from jitgen.config.problem import UngroupedTokens
from jitgen.config.quantize import Rounding
from jitgen.errors import ConfigError
from jitgen.support.frozen import frozen

MOST_PLACES = 32
"""Places of a token: a warp has one in each lane."""


class Walk(StrEnum):
    """
    Whether a kernel goes through the rows of the result or through the tokens, whether it sorts the
    pairs first, and whether tokens are quantised already.
    """

    GATHER = "gather"
    """Rows of the result; the permutation gives the token of each."""

    SCATTER = "scatter"
    """Tokens, read and quantised once; the inverse gives the rows of each."""

    SORT = "sort"
    """
    A few tokens, as in `SCATTER`; the kernel sorts the pairs itself, and computes the rows of each
    token.
    """

    COPY = "copy"
    """Tokens, as in `SCATTER`, that are quantised already: values and scales are copied."""

    TAKE = "take"
    """
    A few tokens, as in `SCATTER`, that ranks send each other: the kernel waits for those that rows
    need, and takes them from the inbox of its rank.
    """


TAKEN = (Format.NONE, Format.BLOCK128, Format.ROW)
"""Formats of the result for which kernels take tokens from an inbox."""


SORTED = ("sorted_offs", "sorted_permutation", "sorted_inverse")
"""Names, in findings, of the tensors with the order of the pairs, if the kernel sorts."""


@frozen
class Tiling(Part):
    """
    How a GPU's threads share the work; default values do not appear in a kernel's name.

    A warp processes tiles of `rows` rows, in which each lane has `vector` consecutive columns; for
    scales of rows, a CTA has `rows` whole rows.

    Attributes:
        rows: Rows of a tile; their loads are in flight at the same time.
        threads: Threads of a CTA.
        ctas_per_sm: CTAs on one SM, which limits their registers.
        vector: Columns of a row that a lane processes: 8, which are 16 bytes, or 16.
        held: Vectors that a thread keeps in registers until the scale of their row is known; only
            for scales of rows.
        is_eager: Load a token before it is known whether a row needs it; only for kernels that go
            through tokens.
        is_relayed: Block scales are stored once for each token, and a second launch copies them to
            the rows, those of neighbouring rows together; only for kernels that go through tokens.
        is_persistent: Whether the launch has as many CTAs as fit on the GPU, which loop over all
            tiles; otherwise it has one CTA for every few tiles.
        use_pdl: Start before the previous kernel ended (programmatic dependent launch), and let the
            next one start.
    """

    rows: int = of(int, default=1, word="r")
    threads: int = of(int, default=128, word="t")
    ctas_per_sm: int = of(int, default=8, word="c")
    vector: int = of(int, default=8, word="v")
    held: int = of(int, default=1, word="held")
    is_eager: bool = of(bool, default=False, word="eager")
    is_relayed: bool = of(bool, default=False, word="relayed")
    is_persistent: bool = of(bool, default=False, word="persistent")
    use_pdl: bool = of(bool, default=True, word="nopdl")


@frozen
class PermuteQuantizeConfig(TiledConfig):
    """
    One kernel of `permute_quantize`, before its target is known.

    Attributes:
        layout: How rows of the result belong to groups.
        format: Format of the result.
        walk: Whether the kernel goes through rows or through tokens, which may be quantised
            already, or sorts the pairs first.
        power_of_two: Whether float32 scales that the kernel computes are rounded up to powers of
            two.
        rounding: Rounding of scales that are powers of two in one byte; ``up`` for other formats.
        tiling: How a GPU's threads share the work.

    Example::

        config = PermuteQuantizeConfig(layout="ragged", walk="scatter", tiling=Tiling(rows=2))
        config.name("sm_90a")
        # 'permute_quantize_ragged_block128_scatter_r2_sm_90a'
    """

    op: ClassVar[str] = "permute_quantize"
    layout: Layout = of(Layout)
    format: Format = of(Format, default=Format.BLOCK128)
    walk: Walk = of(Walk, default=Walk.GATHER)
    power_of_two: bool = of(bool, default=False, word="pow2")
    rounding: Rounding = of(Rounding, default=Rounding.UP, always=False)
    tiling: Tiling = of(Tiling, default=Tiling())

    @property
    def short(self) -> str:
        """Short text that distinguishes this config from others for the same problem."""
        tiling = self.tiling
        held = f" x {tiling.held}" * (tiling.held > 1)
        text = f"{self.walk}, {tiling.rows} rows x {tiling.vector}{held}, {tiling.threads} threads"
        flags = " eager" * tiling.is_eager + " relayed" * tiling.is_relayed
        flags += " persistent" * tiling.is_persistent
        return f"{text} x {tiling.ctas_per_sm}{flags}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the first arguments of the compiled function, in their order."""
        index = {
            Walk.GATHER: ("permutation", "groups"),
            Walk.SCATTER: ("inverse",),
            Walk.SORT: ("topk_ids",),
            Walk.COPY: ("x_scale", "inverse"),
            Walk.TAKE: ("state", "inverse"),
        }[self.walk]
        x = "inbox" if self.walk is Walk.TAKE else "x"
        scales = ("scale",) if self.format.has_own_scales else ()
        given = ("given",) if self.format.has_given_scale else ()
        memory = () if self.walk is Walk.COPY else ("by_token",)
        relay = ("permutation", *memory) if self.tiling.is_relayed else ()
        order = SORTED if self.walk is Walk.SORT else ()
        return (x, *index, "q", *scales, *given, *relay, *order)


@frozen
class PermuteQuantizeProblem(UngroupedTokens):
    """
    One call of `permute_quantize`: (m, k) of bf16 to `top_k` times as many rows.

    Attributes:
        layout: How rows of the result belong to groups.
        m: Number of tokens.
        k: Columns of a token.
        top_k: Rows of the result for each token.
        format: Format of the result.
        walk: What kernels go through: tokens if the call has the inverse, or sorts; `COPY` if
            tokens are quantised already, `TAKE` if they are in the inbox of a rank.
        power_of_two: Whether float32 scales are powers of two.
        rounding: Rounding of scales that are powers of two in one byte.
    """

    op: ClassVar[str] = "permute_quantize"
    layout: Layout = of(Layout)
    m: int = of(int, least=0, most=MAX_SIZE)
    k: int = of(int, most=MAX_SIZE)
    top_k: int = of(int, most=MOST_PLACES, default=8)
    format: Format = of(Format, default=Format.BLOCK128)
    walk: Walk = of(Walk, default=Walk.GATHER)
    power_of_two: bool = of(bool, default=False)
    rounding: Rounding = of(Rounding, default=Rounding.UP)

    def __post_init__(self) -> None:
        Part.__post_init__(self)
        if self.walk is not Walk.GATHER and (
            self.format.has_atoms or self.layout is not Layout.RAGGED
        ):
            raise ConfigError(
                "walk must be gather for scales in atoms and for rows that are not ragged (got "
                f"{self.format}, {self.layout})"
            )
        if self.walk is Walk.COPY and not self.format.has_float_scales:
            raise ConfigError(f"walk copy is for block128 and row (got {self.format})")
        if self.walk is Walk.TAKE and self.format not in TAKEN:
            raise ConfigError(f"walk take is for none, block128 and row (got {self.format})")

    @property
    def traffic_bytes(self) -> int:
        """Bytes of x once, and of results and scales, if every place has a row."""
        scales = {Format.BLOCK128: 4 * -(-self.k // SCALE_BLOCK), Format.ROW: 4}
        scales |= {Format.NVFP4: -(-self.k // 16)} | dict.fromkeys(
            (Format.MXFP8, Format.MXFP4), -(-self.k // 32)
        )
        copy = self.k * self.format.q_dtype.bits // 8 + scales.get(self.format, 0)
        given = copy if self.walk is Walk.COPY else 2 * self.k
        return self.m * (given + self.top_k * copy)

    @property
    def types(self) -> str:
        """Text for errors that says which types and formats the problem has."""
        given = self.format if self.walk is Walk.COPY else "bf16"
        return f"{given} -> {self.format}, {self.walk} of {self.layout} rows"

    @property
    def slug(self) -> str:
        """Name of the problem that is readable and valid as a file name."""
        words = [str(self.layout), str(self.format), str(self.walk)]
        words += ["pow2"] * self.power_of_two
        words += [str(self.rounding)] * (self.rounding is not Rounding.UP)
        return f"{'_'.join(words)}_m{self.m}_k{self.k}_top{self.top_k}"

    @property
    def kind(self) -> tuple[object, ...]:
        """
        Sort key of problems: layout, format, walk, rounding of scales, columns, places, tokens.
        """
        kind = (self.layout, self.format, self.walk, self.power_of_two, self.rounding)
        return (*kind, self.k, self.top_k, self.m)
