# SPDX-License-Identifier: Apache-2.0
"""
What changes the source of `grouped_gemm_wgrad` (layout, types, tile, cluster, pipeline, order), and
the sizes of one call: what a config is chosen for, and never a part of it.

The product is (N, tokens) times (tokens, K): a tile's m lies along N, its n along K, and its k
along the tokens.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, ClassVar, Self

from jitgen.config.config import Config, DType, Layout, Part, of
from jitgen.config.grouped_gemm import MAX_RASTER, MAX_SIZE, Cluster, Tile
from jitgen.support.frozen import frozen

_USUAL_RASTER = 8


@frozen
class GroupedGemmWgradConfig(Config):
    """
    One kernel of `grouped_gemm_wgrad`, before its target is known.

    Attributes:
        layout: How rows belong to groups.
        a_dtype: Element type of dy and a.
        out_dtype: Element type of the gradient.
        tile: Columns of dy, columns of a, and tokens of a step.
        cluster: CTAs that share operands by multicast: m of them a tile of a, n one of dy.
        num_ab_stage: Operand stages in shared memory; None takes as many as fit beside the places
            of the store.
        raster: Cluster tiles along N that are computed before K advances, so that they share a
            tile of a in L2; at most 1024.
        use_pdl: Start before the previous kernel ended (programmatic dependent launch).

    Example::

        config = GroupedGemmWgradConfig(layout="ragged", tile=Tile(m=128, n=256, k=64))
        config.name("sm_90a")
        # 'grouped_gemm_wgrad_ragged_bf16_bf16_t128x256x64_c1x1_sm_90a'
    """

    op: ClassVar[str] = "grouped_gemm_wgrad"
    layout: Layout = of(Layout)
    a_dtype: DType = of(DType, default=DType.BF16)
    out_dtype: DType = of(DType, default=DType.BF16)
    tile: Tile = of(Tile)
    cluster: Cluster = of(Cluster, default=Cluster())
    num_ab_stage: int | None = of(int, is_optional=True, default=None)
    raster: int = of(int, most=MAX_RASTER, default=_USUAL_RASTER)
    use_pdl: bool = of(bool, default=True)

    def words(self) -> str:
        """Return the middle of a kernel's name; what is at its default shows only where it must."""
        tile, cluster = self.tile, self.cluster
        parts = [
            f"{self.layout}_{self.a_dtype}_{self.out_dtype}",
            f"t{tile.m}x{tile.n}x{tile.k}_c{cluster.m}x{cluster.n}",
            *([f"ab{self.num_ab_stage}"] if self.num_ab_stage is not None else []),
            *([f"raster{self.raster}"] if self.raster != _USUAL_RASTER else []),
            *([] if self.use_pdl else ["nopdl"]),
        ]
        return "_".join(parts)

    @property
    def short(self) -> str:
        """What tells a config from others for the same problem, for a reader."""
        tile, cluster = self.tile, self.cluster
        text = f"{tile.m}x{tile.n}x{tile.k} c{cluster.m}x{cluster.n}"
        if self.num_ab_stage is not None:
            text += f" {self.num_ab_stage} stages"
        return text + f" raster {self.raster}" * (self.raster != _USUAL_RASTER)

    @classmethod
    def of_words(cls, words: str) -> Self | None:
        """Return the config whose `words` these are; None where they are nobody's."""
        match = _WORDS.fullmatch(words)
        if match is None:
            return None
        part = match.groupdict()
        config = cls.from_json(
            {
                **{name: part[name] for name in ("layout", "a_dtype", "out_dtype")},
                "tile": {side: int(part[f"tile_{side}"]) for side in ("m", "n", "k")},
                "cluster": {side: int(part[f"cluster_{side}"]) for side in ("m", "n")},
                "num_ab_stage": None if part["stages"] is None else int(part["stages"]),
                "raster": int(part["raster"] or _USUAL_RASTER),
                "use_pdl": part["nopdl"] is None,
            }
        )
        return config if config.words() == words else None  # one name each

    def parameters(self) -> dict[str, Any]:
        """Return every field under the name by which templates ask for it."""
        return {
            **{name: str(getattr(self, name)) for name in ("layout", "a_dtype", "out_dtype")},
            **{f"tile_{side}": getattr(self.tile, side) for side in ("m", "n", "k")},
            **{f"cluster_{side}": getattr(self.cluster, side) for side in ("m", "n")},
            "raster": self.raster,
            "use_pdl": self.use_pdl,
        }


_WORDS = re.compile(
    r"(?P<layout>[a-z]+)_(?P<a_dtype>[a-z0-9]+)_(?P<out_dtype>[a-z0-9]+)"
    r"_t(?P<tile_m>\d{1,9})x(?P<tile_n>\d{1,9})x(?P<tile_k>\d{1,9})"
    r"_c(?P<cluster_m>\d{1,9})x(?P<cluster_n>\d{1,9})"
    r"(_ab(?P<stages>\d{1,9}))?(_raster(?P<raster>\d{1,9}))?(?P<nopdl>_nopdl)?"
)


@frozen
class GroupedGemmWgradProblem(Part):
    """
    One call of `grouped_gemm_wgrad`: for each group (n, rows) times (rows, k).

    Attributes:
        layout: How rows belong to groups.
        groups: Number of groups G.
        m: Rows in all; for the masked layout those that are expected to be valid, over all groups.
        n: Columns of dy.
        k: Columns of a.
        a_dtype: Element type of dy and a.
        out_dtype: Element type of the gradient.
    """

    op: ClassVar[str] = "grouped_gemm_wgrad"
    layout: Layout = of(Layout)
    groups: int = of(int, most=MAX_SIZE)
    m: int = of(int, least=0, most=MAX_SIZE)
    n: int = of(int, most=MAX_SIZE)
    k: int = of(int, most=MAX_SIZE)
    a_dtype: DType = of(DType, default=DType.BF16)
    out_dtype: DType = of(DType, default=DType.BF16)

    @property
    def rows_per_group(self) -> int:
        """Mean rows of a group, rounded up; at least 1."""
        return max(1, -(-self.m // self.groups))

    @property
    def traffic_bytes(self) -> int:
        """Bytes of dy, a and the gradient, each once."""
        operands = self.m * (self.n + self.k) * self.a_dtype.bits
        return (operands + self.groups * self.n * self.k * self.out_dtype.bits) // 8

    @property
    def types(self) -> str:
        """The types in words, for errors."""
        return f"{self.a_dtype} x {self.a_dtype} -> {self.out_dtype}, rows of groups along K"

    @property
    def slug(self) -> str:
        """A readable name, as a file may have it."""
        types = f"wgrad_{self.layout}_{self.a_dtype}_{self.out_dtype}"
        return f"{types}_g{self.groups}_m{self.m}_n{self.n}_k{self.k}"

    @property
    def kind(self) -> tuple[Any, ...]:
        """What to sort problems by: layout, types, matrix, groups, rows."""
        kind = (self.layout, self.a_dtype, self.out_dtype)
        return (*kind, self.n, self.k, self.groups, self.m)

    def with_mean(self, rows: int) -> Self:
        """Return the same sizes with a mean of `rows` rows a group."""
        return replace(self, m=rows * self.groups)
