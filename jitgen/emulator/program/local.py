# SPDX-License-Identifier: Apache-2.0
"""
The locals of a block function that hold registers, and the statements that give them a value.

An unused statement is left out: most registers of a batch are needed as rows only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

LOCAL = re.compile(r"\b[rqhpt]\d+\b")
"""A register's class and its row of that file, or a temporary."""


@dataclass(slots=True)
class Load:
    """
    The statement that loads a register: as a copy if the register `is_changed` later in the block.
    """

    local: str
    is_changed: bool = False

    def __str__(self) -> str:
        copy = ".copy()" if self.is_changed else ""
        return f"{self.local} = {self.local[0]}[{self.local[1:]}, s]{copy}"


@dataclass(frozen=True, slots=True)
class Pick:
    """The statement that takes a register out of the results of a batch."""

    local: str
    expression: str

    def __str__(self) -> str:
        return f"{self.local} = {self.expression}"


def rendered(lines: list[str | Load | Pick]) -> list[str]:
    """
    Return statements as text, without loads and picks of locals that no other statement names.
    """
    texts = [line for line in lines if isinstance(line, str) and not line.startswith("#")]
    used = set(LOCAL.findall("\n".join(texts)))
    return [str(line) for line in lines if isinstance(line, str) or line.local in used]


def is_same(one: object, other: object) -> bool:
    """Return whether constants are interchangeable: one object, or equal numbers of one type."""
    return one is other or (
        isinstance(one, np.generic)
        and isinstance(other, np.generic)
        and one.dtype == other.dtype
        and one.tobytes() == other.tobytes()
    )
