# SPDX-License-Identifier: Apache-2.0
"""
Config and problem of `quantize`. The config is what changes a kernel's source (layout, format,
rounding, how work is shared); the problem is the sizes of one call, for which a config is chosen.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from jitgen.config.config import MAX_SIZE, Layout, Part, TiledConfig, of
from jitgen.config.format import IN_ATOMS, Format
from jitgen.config.problem import GroupedRows
from jitgen.support.frozen import frozen


class Rounding(StrEnum):
    """How a scale that is a power of two is found."""

    UP = "up"
    """The smallest scale that clips no value."""

    FLOOR = "floor"
    """The scale of the specification, which clips the largest values."""


@frozen
class Tiling(Part):
    """
    How a GPU's threads share the work; default values do not appear in a kernel's name.

    A warp walks over tiles of `rows` rows, of which each lane has `vector` neighbouring columns.

    Attributes:
        rows: Rows of a tile; their loads are in flight at the same time.
        threads: Threads of a CTA.
        ctas_per_sm: CTAs on one SM, which limits their registers.
        vector: Columns of a row that a lane processes: 8, which are 16 bytes, or 16.
        is_persistent: Whether the launch has as many CTAs as fit on the GPU, which loop over all
            tiles; otherwise it has one CTA for every few tiles.
        use_pdl: Start before the previous kernel ended (programmatic dependent launch).
    """

    rows: int = of(int, default=4, word="r")
    threads: int = of(int, default=128, word="t")
    ctas_per_sm: int = of(int, default=7, word="c")
    vector: int = of(int, default=8, word="v")
    is_persistent: bool = of(bool, default=True, word="once")
    use_pdl: bool = of(bool, default=False, word="pdl")


@frozen
class QuantizeConfig(TiledConfig):
    """
    One kernel of `quantize`, before its target is known.

    Attributes:
        layout: How rows belong to groups; each group's scales begin with an atom. Contiguous rows
            are whole matrices here, without groups.
        format: Format of the result.
        rounding: How scales that are powers of two are found; ``up`` for NVFP4, which has no such
            scales.
        tiling: How a GPU's threads share the work.

    Example::

        config = QuantizeConfig(layout="ragged", format="mxfp8", tiling=Tiling(rows=2))
        config.name("sm_90a")
        # 'quantize_ragged_mxfp8_r2_sm_90a'
    """

    op: ClassVar[str] = "quantize"
    layout: Layout = of(Layout)
    format: Format = of(Format, allowed=IN_ATOMS, default=Format.MXFP8)
    rounding: Rounding = of(Rounding, default=Rounding.UP, always=False)
    tiling: Tiling = of(Tiling, default=Tiling())

    @property
    def short(self) -> str:
        """Short text that distinguishes this config from others for the same problem."""
        tiling = self.tiling
        text = f"{tiling.rows} rows x {tiling.vector}, {tiling.threads} threads"
        return f"{text} x {tiling.ctas_per_sm}" + " once" * (not tiling.is_persistent)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the first arguments of the compiled function, in their order."""
        groups = () if self.layout is Layout.CONTIGUOUS else ("groups",)
        overall = ("global_scale",) if self.format is Format.NVFP4 else ()
        return ("x", *groups, "q", "scale", *overall)


@frozen
class QuantizeProblem(GroupedRows):
    """
    One call of `quantize`: (rows, k) of bf16.

    Attributes:
        layout: How rows belong to groups.
        groups: Number of groups, for the contiguous layout of matrices.
        m: Total rows; for the masked layout, the expected number of valid rows in all groups.
        k: Columns of a row.
        format: Format of the result.
        rounding: Rounding of scales that are powers of two.
    """

    op: ClassVar[str] = "quantize"
    layout: Layout = of(Layout)
    groups: int = of(int, most=MAX_SIZE)
    m: int = of(int, least=0, most=MAX_SIZE)
    k: int = of(int, most=MAX_SIZE)
    format: Format = of(Format, allowed=IN_ATOMS, default=Format.MXFP8)
    rounding: Rounding = of(Rounding, default=Rounding.UP)

    @property
    def traffic_bytes(self) -> int:
        """Bytes of x, results and scales, each once."""
        form = self.format
        return self.m * (2 * self.k + self.k * form.q_dtype.bits // 8 + -(-self.k // form.values))

    @property
    def types(self) -> str:
        """Text for errors that says which types and formats the problem has."""
        return f"bf16 -> {self.format}, rounded {self.rounding}"

    @property
    def slug(self) -> str:
        """Name of the problem that is readable and valid as a file name."""
        words = [str(self.layout), str(self.format)]
        words += [str(self.rounding)] * (self.rounding is not Rounding.UP)
        return f"{'_'.join(words)}_g{self.groups}_m{self.m}_k{self.k}"

    @property
    def kind(self) -> tuple[object, ...]:
        """Sort key of problems: layout, format, rounding, columns, groups, rows."""
        return (self.layout, self.format, self.rounding, self.k, self.groups, self.m)
