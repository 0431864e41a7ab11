# SPDX-License-Identifier: Apache-2.0
"""
What changes the source of `silu_mul_quantize` (rows, scales, activation, how work is shared),
and the sizes of one call: what a config is chosen for, and never a part of it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from enum import StrEnum
from typing import Any, ClassVar, Self

from jitgen.config.config import SCALE_BLOCK, Config, DType, Layout, Part, of
from jitgen.errors import ConfigError
from jitgen.support.frozen import frozen


class Activation(StrEnum):
    """What becomes of a gate and an up."""

    SWIGLU = "swiglu"
    """gate / (1 + exp(-gate)) * up"""

    SWIGLU_OAI = "swiglu_oai"
    """gpt-oss's: gate / (1 + exp(-alpha gate)) * (up + 1), with both limited before."""


class Scales(StrEnum):
    """How many results share one scale: as the next GEMM takes its a, or not at all."""

    BLOCK128 = "block128"
    """One float32 for each 1x128, which the kernel finds."""

    ROW = "row"
    """One float32 for each row, which the kernel finds."""

    TENSOR = "tensor"
    """One float32 for all, which is given."""

    NONE = "none"
    """None: results stay bfloat16."""

    @property
    def q_dtype(self) -> DType:
        """Element type of the results."""
        return DType.BF16 if self is Scales.NONE else DType.E4M3

    @property
    def is_found(self) -> bool:
        """Whether kernels compute the scales, and not the caller."""
        return self in (Scales.BLOCK128, Scales.ROW)


@frozen
class Tiling(Part):
    """
    How a GPU's threads share the work; what is at its default does not show in a kernel's name.

    A thread takes 8 columns at a time. Where a warp can find a scale, a tile is `rows` x 256
    columns and each warp has tiles of its own; for scales of rows a CTA has `rows` whole ones.

    Attributes:
        rows: Rows of a tile, whose loads are all under way at once.
        threads: Threads of a CTA.
        ctas_per_sm: CTAs that one SM holds, for which registers must suffice.
        held: Vectors of 8 columns that a thread keeps until the scale of their row is known; for
            scales of rows alone.
        loads_ahead: Load a tile before the one before it is computed.
        is_persistent: As many CTAs as the GPU holds walk over all tiles; else there is one for
            every few.
        use_pdl: Start before the previous kernel ended (programmatic dependent launch), and let the
            next one start.
    """

    rows: int = of(int, default=4)
    threads: int = of(int, default=128)
    ctas_per_sm: int = of(int, default=7)
    held: int = of(int, default=1)
    loads_ahead: bool = of(bool, default=False)
    is_persistent: bool = of(bool, default=True)
    use_pdl: bool = of(bool, default=False)

    def words(self) -> list[str]:
        """Return what differs from the default, as names have it."""
        usual = Tiling()
        return [
            *([f"r{self.rows}"] if self.rows != usual.rows else []),
            *([f"t{self.threads}"] if self.threads != usual.threads else []),
            *([f"c{self.ctas_per_sm}"] if self.ctas_per_sm != usual.ctas_per_sm else []),
            *([f"held{self.held}"] if self.held != usual.held else []),
            *(["ahead"] if self.loads_ahead else []),
            *([] if self.is_persistent else ["once"]),
            *(["pdl"] if self.use_pdl else []),
        ]


@frozen
class SiluMulQuantizeConfig(Config):
    """
    One kernel of `silu_mul_quantize`, before its target is known.

    Attributes:
        layout: How rows belong to groups.
        scale_granularity: How many results share one scale.
        activation: What becomes of a gate and an up.
        interleaved: Whether gates and ups take turns; else all gates come first.
        power_of_two: Whether scales are rounded up to powers of two.
        tiling: How a GPU's threads share the work.

    Example::

        config = SiluMulQuantizeConfig(layout="ragged", tiling=Tiling(rows=2, ctas_per_sm=9))
        config.name("sm_90a")
        # 'silu_mul_quantize_ragged_block128_swiglu_r2_c9_sm_90a'
    """

    op: ClassVar[str] = "silu_mul_quantize"
    layout: Layout = of(Layout)
    scale_granularity: Scales = of(Scales, default=Scales.BLOCK128)
    activation: Activation = of(Activation, default=Activation.SWIGLU)
    interleaved: bool = of(bool, default=False)
    power_of_two: bool = of(bool, default=False)
    tiling: Tiling = of(Tiling, default=Tiling())

    def words(self) -> str:
        """Return the middle of a kernel's name; what is at its default shows only where it must."""
        parts = [
            f"{self.layout}_{self.scale_granularity}_{self.activation}",
            *(["interleaved"] if self.interleaved else []),
            *(["pow2"] if self.power_of_two else []),
            *self.tiling.words(),
        ]
        return "_".join(parts)

    @property
    def short(self) -> str:
        """What tells a config from others for the same problem, for a reader."""
        tiling = self.tiling
        text = f"{tiling.rows} rows, {tiling.threads} threads x {tiling.ctas_per_sm}"
        return text + " once" * (not tiling.is_persistent)

    @property
    def arguments(self) -> tuple[str, ...]:
        """What findings call the first arguments of the compiled function."""
        given = {Scales.TENSOR: ("given",), Scales.NONE: ()}
        return ("x", "groups", "q", *given.get(self.scale_granularity, ("scale",)))

    @classmethod
    def of_words(cls, words: str) -> Self | None:
        """Return the config whose `words` these are; None where they are nobody's."""
        match = _WORDS.fullmatch(words)
        if match is None:
            return None
        part = match.groupdict()
        sizes = {
            name: int(part[name])
            for name in ("rows", "threads", "ctas_per_sm", "held")
            if part[name] is not None
        }
        config = cls.from_json(
            {
                "layout": part["layout"],
                "scale_granularity": part["scale_granularity"],
                "activation": part["activation"],
                "interleaved": part["interleaved"] is not None,
                "power_of_two": part["pow2"] is not None,
                "tiling": {
                    **sizes,
                    "loads_ahead": part["ahead"] is not None,
                    "is_persistent": part["once"] is None,
                    "use_pdl": part["pdl"] is not None,
                },
            }
        )
        return config if config.words() == words else None  # r4 is never written: one name each

    def parameters(self) -> dict[str, Any]:
        """Return every field under the name by which templates ask for it."""
        return {
            "layout": str(self.layout),
            "scale_granularity": str(self.scale_granularity),
            "activation": str(self.activation),
            "interleaved": self.interleaved,
            "power_of_two": self.power_of_two,
            **self.tiling.values(),
        }


_WORDS = re.compile(
    r"(?P<layout>[a-z]+)_(?P<scale_granularity>[a-z0-9]+)"
    rf"_(?P<activation>{'|'.join(sorted(Activation, key=len, reverse=True))})"
    r"(?P<interleaved>_interleaved)?(?P<pow2>_pow2)?"
    r"(_r(?P<rows>\d{1,9}))?(_t(?P<threads>\d{1,9}))?(_c(?P<ctas_per_sm>\d{1,9}))?"
    r"(_held(?P<held>\d{1,9}))?(?P<ahead>_ahead)?(?P<once>_once)?(?P<pdl>_pdl)?"
)


MAX_SIZE = 2**48
"""Beyond any memory, and small enough that products of sizes are floats."""


@frozen
class SiluMulQuantizeProblem(Part):
    """
    One call of `silu_mul_quantize`: (rows, 2 n) to (rows, n).

    Attributes:
        layout: How rows belong to groups.
        groups: Number of groups; 1 for the contiguous layout, whose calls do not know it, so that
            all rows count as one group's.
        m: Rows in all; for the masked layout those that are expected to be valid, over all groups.
        n: Columns of the result, I: half of those of x.
        scale_granularity: How many results share one scale.
        activation: What becomes of a gate and an up.
        interleaved: Whether gates and ups take turns.
        power_of_two: Whether scales are powers of two.
    """

    op: ClassVar[str] = "silu_mul_quantize"
    layout: Layout = of(Layout)
    groups: int = of(int, most=MAX_SIZE)
    m: int = of(int, least=0, most=MAX_SIZE)
    n: int = of(int, most=MAX_SIZE)
    scale_granularity: Scales = of(Scales, default=Scales.BLOCK128)
    activation: Activation = of(Activation, default=Activation.SWIGLU)
    interleaved: bool = of(bool, default=False)
    power_of_two: bool = of(bool, default=False)

    def __post_init__(self) -> None:
        Part.__post_init__(self)
        if self.layout is Layout.CONTIGUOUS and self.groups != 1:
            raise ConfigError(
                "groups must be 1 for contiguous rows, because a call does not know of more: count "
                f"all rows as one group's (got {self.groups})"
            )

    @property
    def rows_per_group(self) -> int:
        """Mean rows of a group, rounded up; at least 1."""
        return max(1, -(-self.m // self.groups))

    @property
    def traffic_bytes(self) -> int:
        """Bytes of x, results and scales, each once."""
        scales = {Scales.BLOCK128: 4 * -(-self.n // SCALE_BLOCK), Scales.ROW: 4}
        each = 4 * self.n + self.n * self.scale_granularity.q_dtype.bits // 8
        return self.m * (each + scales.get(self.scale_granularity, 0))

    @property
    def types(self) -> str:
        """The types in words, for errors."""
        granularity = self.scale_granularity
        return f"{self.activation} of bf16 -> {granularity.q_dtype} with {granularity} scales"

    @property
    def slug(self) -> str:
        """A readable name, as a file may have it."""
        words = [str(self.layout), str(self.scale_granularity), str(self.activation)]
        words += ["interleaved"] * self.interleaved + ["pow2"] * self.power_of_two
        return f"{'_'.join(words)}_g{self.groups}_m{self.m}_n{self.n}"

    @property
    def kind(self) -> tuple[Any, ...]:
        """What to sort problems by: kind, columns, groups, rows."""
        kind = (self.layout, self.scale_granularity, self.activation, self.interleaved)
        return (*kind, self.power_of_two, self.n, self.groups, self.m)

    def with_mean(self, rows: int) -> Self:
        """Return the same sizes with a mean of `rows` rows a group."""
        return replace(self, m=rows * self.groups)
