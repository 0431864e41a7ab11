# SPDX-License-Identifier: Apache-2.0
"""The protocol of problems, and the fields that they share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Protocol, Self

from jitgen.config.config import Part


class Problem(Protocol):
    """
    The sizes of one call of an operation; never part of a config.

    A problem is a frozen dataclass, a `jitgen.config.config.Part`, so it can be a key of a
    dictionary and has an exact JSON form.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    op: ClassVar[str]
    """Name of the operation."""

    def __init__(self, **sizes: Any) -> None: ...

    def __hash__(self) -> int:
        """Return equal hashes for equal problems: they are keys of caches."""
        ...

    @property
    def groups(self) -> int:
        """Number of groups of rows; 1 if rows do not belong to groups."""
        ...

    @property
    def m(self) -> int:
        """Total rows of all groups."""
        ...

    @property
    def rows_per_group(self) -> int:
        """Mean rows of a group, rounded up; at least 1."""
        ...

    @property
    def types(self) -> str:
        """Text for errors that says which types and formats the problem has."""
        ...

    @property
    def slug(self) -> str:
        """Readable name that is valid as a file name and differs for each problem."""
        ...

    @property
    def kind(self) -> tuple[object, ...]:
        """Sort key of problems."""
        ...

    def with_mean(self, rows: int) -> Self:
        """Return the same sizes with a mean of `rows` rows per group."""
        ...

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Return the problem that `to_json` wrote; raises a ConfigError for anything else."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return the exact JSON form: strings, integers, booleans and null."""
        ...


class SizedProblem(Problem, Protocol):
    """A problem with the traffic of its calls in bytes."""

    @property
    def traffic_bytes(self) -> int:
        """Bytes of the operands and results of a call, each counted once."""
        ...


class GroupedRows(Part):
    """Sizes of calls whose `m` rows belong to `groups` groups."""

    __slots__ = ()
    groups: int
    m: int

    @property
    def rows_per_group(self) -> int:
        """Mean rows of a group, rounded up; at least 1."""
        return max(1, -(-self.m // self.groups))

    def with_mean(self, rows: int) -> Self:
        """Return the same sizes with a mean of `rows` rows per group."""
        return replace(self, m=rows * self.groups)


class Tokens(Part):
    """Sizes of calls whose kernel depends on their `m` tokens, not on groups."""

    __slots__ = ()
    m: int

    @property
    def rows_per_group(self) -> int:
        """Number of tokens; at least 1."""
        return max(1, self.m)

    def with_mean(self, rows: int) -> Self:
        """Return the same sizes with `rows` tokens."""
        return replace(self, m=rows)


class UngroupedTokens(Tokens):
    """Sizes of calls whose tokens belong to no groups."""

    __slots__ = ()

    @property
    def groups(self) -> int:
        """1: kernels are chosen by tokens, not by the groups that the tokens go to."""
        return 1
