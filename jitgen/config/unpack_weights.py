# SPDX-License-Identifier: Apache-2.0
"""
What changes the source of an `unpack_weights` kernel (the layout, how work is shared), and the
sizes of one call: what a config is chosen for, and never a part of it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, ClassVar, Self

from jitgen.config.config import BLayout, Config, Part, of
from jitgen.support.frozen import frozen

_BLOCK_BYTES = 4_352
"""Of a block of 64 rows x 128 of K: `jitgen.formats.prepared_blocks`, which needs torch."""


@frozen
class Tiling(Part):
    """
    How a GPU's threads share the work; what is at its default does not show in a kernel's name.

    A CTA of 256 threads has 64 rows, and of these one block of 128 along K after the other.

    Attributes:
        columns: Blocks along K that a CTA takes; others take the rest.
        ctas_per_sm: CTAs that one SM holds, for which registers must suffice.
        use_pdl: Start before the previous kernel ended (programmatic dependent launch).
    """

    columns: int = of(int, default=16)
    ctas_per_sm: int = of(int, default=6)
    use_pdl: bool = of(bool, default=False)

    def words(self) -> list[str]:
        """Return what differs from the default, as names have it."""
        usual = Tiling()
        sides = {"k": "columns", "c": "ctas_per_sm"}
        return [
            *(
                f"{letter}{getattr(self, side)}"
                for letter, side in sides.items()
                if getattr(self, side) != getattr(usual, side)
            ),
            *(["pdl"] if self.use_pdl else []),
        ]


@frozen
class UnpackWeightsConfig(Config):
    """
    One kernel of `unpack_weights`, before its target is known.

    Attributes:
        b_layout: What the weights were prepared for.
        tiling: How a GPU's threads share the work.

    Example::

        config = UnpackWeightsConfig(b_layout="exact1", tiling=Tiling(columns=8))
        config.words()
        # 'exact1_k8'
    """

    op: ClassVar[str] = "unpack_weights"
    b_layout: BLayout = of(BLayout)
    tiling: Tiling = of(Tiling, default=Tiling())

    def words(self) -> str:
        """Return the middle of a kernel's name; what is at its default does not show."""
        return "_".join([str(self.b_layout), *self.tiling.words()])

    @property
    def short(self) -> str:
        """What tells a config from others for the same problem, for a reader."""
        tiling = self.tiling
        return f"64 rows x {tiling.columns} blocks, {tiling.ctas_per_sm} CTAs" + (
            " pdl" * tiling.use_pdl
        )

    @classmethod
    def of_words(cls, words: str) -> Self | None:
        """Return the config whose `words` these are; None where they are nobody's."""
        match = _WORDS.fullmatch(words)
        if match is None:
            return None
        part = match.groupdict()
        sizes = {
            name: int(part[name]) for name in ("columns", "ctas_per_sm") if part[name] is not None
        }
        tiling = {**sizes, "use_pdl": part["pdl"] is not None}
        config = cls.from_json({"b_layout": part["b_layout"], "tiling": tiling})
        return config if config.words() == words else None  # one name each

    def parameters(self) -> dict[str, Any]:
        """Return what a template may ask of this config."""
        return {"b_layout": str(self.b_layout), **self.tiling.values()}


_WORDS = re.compile(
    rf"(?P<b_layout>{'|'.join(BLayout)})(_k(?P<columns>\d{{1,9}}))?(_c(?P<ctas_per_sm>\d{{1,9}}))?"
    r"(?P<pdl>_pdl)?"
)

MAX_SIZE = 2**48
"""Beyond any memory, and small enough that products of sizes are floats."""


@frozen
class UnpackWeightsProblem(Part):
    """
    One call of `unpack_weights`: weights of some groups.

    Attributes:
        groups: Number of groups.
        m: Rows of all their matrices: G times N.
        k: Columns.
        b_layout: What the weights were prepared for.
    """

    op: ClassVar[str] = "unpack_weights"
    groups: int = of(int, most=MAX_SIZE)
    m: int = of(int, least=0, most=MAX_SIZE)
    k: int = of(int, most=MAX_SIZE)
    b_layout: BLayout = of(BLayout, default=BLayout.EXACT1)

    @property
    def rows_per_group(self) -> int:
        """Rows of a matrix, N; at least 1."""
        return max(1, -(-self.m // self.groups))

    @property
    def blocks(self) -> tuple[int, int]:
        """Blocks of 64 rows of all groups, and along K."""
        return self.groups * -(-self.rows_per_group // 64), -(-self.k // 128)

    @property
    def result_bytes(self) -> int:
        """Bytes of what is written: values and scales."""
        return self.groups * self.rows_per_group * (self.k + 4)

    @property
    def traffic_bytes(self) -> int:
        """Bytes of weights and results, each once."""
        rows, columns = self.blocks
        return rows * columns * _BLOCK_BYTES + self.result_bytes

    @property
    def types(self) -> str:
        """The types in words, for errors."""
        return f"weights prepared as {self.b_layout} -> e4m3"

    @property
    def slug(self) -> str:
        """A readable name, as a file may have it."""
        return f"unpack_{self.b_layout}_g{self.groups}_m{self.m}_k{self.k}"

    @property
    def kind(self) -> tuple[Any, ...]:
        """What to sort problems by: layout, columns, groups, rows."""
        return (self.b_layout, self.k, self.groups, self.m)

    def with_mean(self, rows: int) -> Self:
        """Return the same sizes with `rows` rows of each matrix."""
        return replace(self, m=rows * self.groups)
