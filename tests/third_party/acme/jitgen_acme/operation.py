# SPDX-License-Identifier: Apache-2.0
"""The operation: out[m, :] = x[m, :] * s[group of m], in float32."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from jitgen.config.config import Config, Part, of
from jitgen.config.operation import Operation

OPERATION = Operation(
    name="scale_rows",
    config="jitgen_acme.operation:RowsConfig",
    problem="jitgen_acme.operation:RowsProblem",
    direct="jitgen_acme.direct:check",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsConfig(Config):
    """
    One kernel.

    Attributes:
        vector: Values that are multiplied at once.
    """

    op: ClassVar[str] = "scale_rows"
    vector: int = of(int)

    def to_name(self) -> str:
        """Return the middle of a kernel's name."""
        return f"v{self.vector}"

    @property
    def short(self) -> str:
        """What tells this config from others for the same problem."""
        return f"vectors of {self.vector}"

    @classmethod
    def parse_name(cls, name: str) -> Self | None:
        """Return the config whose `to_name` is `name`; None where there is none."""
        is_one = name[:1] == "v" and name[1:].isdecimal() and len(name) < 6
        return cls(vector=int(name[1:])) if is_one else None

    def parameters(self) -> dict[str, Any]:
        """Return what the template asks for."""
        return {"vector": self.vector}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsProblem(Part):
    """The sizes of one call: `m` rows in `groups` groups, of `k` columns."""

    op: ClassVar[str] = "scale_rows"
    groups: int = of(int)
    m: int = of(int, least=0)
    k: int = of(int)

    @property
    def rows_per_group(self) -> int:
        """Mean rows of a group, rounded up."""
        return max(1, -(-self.m // self.groups))

    @property
    def types(self) -> str:
        """The types in words, for errors."""
        return "float32"

    @property
    def slug(self) -> str:
        """A readable name, as a file may have it."""
        return f"rows_g{self.groups}_m{self.m}_k{self.k}"

    @property
    def kind(self) -> tuple[Any, ...]:
        """What to sort problems by."""
        return (self.k, self.groups, self.m)

    def with_mean(self, rows: int) -> Self:
        """Return the same sizes with a mean of `rows` rows a group."""
        return replace(self, m=rows * self.groups)
