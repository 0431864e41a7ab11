# SPDX-License-Identifier: Apache-2.0
"""
Types of the fields that mean the same in all JSON documents; docs/json.md lists their names.

A dataclass whose instances are printed annotates its fields with them. Imported under
TYPE_CHECKING, by their names or as `v`, they take no time at the start of a program:
`jitgen.support.codec` imports them itself when it needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeAlias

from jitgen.support.codec import Rule

_LAST_SECOND = 253402300799.0  # of the year 9999


def said(text: str) -> Rule:
    """Return the rule that describes a value in a schema."""
    return Rule(description=text)


def by(names: str) -> Rule:
    """
    Return the rule that describes a JSON object by its keys; `names` is the word for these, such as
    ``language``.
    """
    return said(f"by {names}")


def iso(seconds: float) -> str:
    """
    Return a time as ISO 8601. A time outside of its range becomes the nearest one inside, because
    files may have any time.
    """
    bounded = min(max(seconds, 0.0), _LAST_SECOND)
    return datetime.fromtimestamp(bounded, UTC).isoformat(timespec="seconds")


Count: TypeAlias = Annotated[int, Rule(minimum=0)]
Seconds: TypeAlias = Annotated[float, Rule(minimum=0, description="seconds")]
Microseconds: TypeAlias = Annotated[float, Rule(minimum=0, description="microseconds")]
Bytes: TypeAlias = Annotated[int, Rule(minimum=0, description="bytes")]
When: TypeAlias = Annotated[str, Rule(format="date-time", description="ISO 8601 in UTC")]
Since1970: TypeAlias = Annotated[
    float, Rule(write=iso, type="string", format="date-time", description="ISO 8601 in UTC")
]
"""A time in seconds since 1970, which documents have as ISO 8601."""

Ok: TypeAlias = Annotated[
    bool, said("whether what was asked for is so; the exit code says the same")
]
Name: TypeAlias = Annotated[str, said("the readable name of a kernel")]
ArchName: TypeAlias = Annotated[str, said("a target, as JITGEN_ARCH names it")]
Key: TypeAlias = Annotated[str, said("the digest of a kernel's key document")]
KeyId: TypeAlias = Annotated[str, said("the SHA-256 of a public key")]
Reason: TypeAlias = Annotated[
    str, said("why not, in a sentence; empty where there is nothing to tell")
]
File: TypeAlias = Annotated[str | Path, said("the path of a file that was read or written")]
Url: TypeAlias = Annotated[str, said("where something is: s3://bucket/prefix, say")]
Values: TypeAlias = Mapping[str, object]
"""An object of anything: a key document, for example."""

ConfigValues: TypeAlias = Annotated[
    Mapping[str, object],
    Rule(
        type="object",
        properties={"op": {"type": "string"}},
        required=["op"],
        additionalProperties=True,
        description="the exact form that the from_json of its operation's config reads",
    ),
]
Invariant: TypeAlias = Annotated[
    bool, said("whether a row's bits depend on the row alone, and on no batch")
]
DerivedValues: TypeAlias = Annotated[Values, said("the numbers that follow from a config")]
ProblemValues: TypeAlias = Annotated[Values, said("the fields of a problem of its operation")]
