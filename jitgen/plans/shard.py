# SPDX-License-Identifier: Apache-2.0
"""
One of several equal shares of a set of kernels, for jobs that share the work of prewarming it.

The shard of a kernel follows from its key alone. So jobs need no communication, and their sets may
even differ: every kernel is in exactly one shard, and adding a kernel to a plan does not move
others. The cost is imbalance: with 18 kernels in 4 shards, the largest shard may have 7.
"""

from __future__ import annotations

import re
from typing import Self

from jitgen.errors import ConfigError
from jitgen.support.frozen import frozen
from jitgen.support.text import shown

_FORM = re.compile(r"(\d{1,9})/(\d{1,9})")
_DIGITS = 16
"""Digits of a key that decide its shard: 64 bits, far more than any number of shards needs."""


@frozen
class Shard:
    """
    One share of kernels.

    Attributes:
        index: Number of the share, from 0 to `count` - 1.
        count: Number of shares.
    """

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """
        Return the shard that ``i/n`` names, for example ``0/8``, the first of eight.

        Raises:
            ConfigError: `text` is not of that form, or `i` is not below `n`.
        """
        match = _FORM.fullmatch(text.strip())
        if match is None or not int(match[1]) < int(match[2]):
            raise ConfigError(
                f"shard {shown(text)} is not allowed: it must be i/n, for example 0/8 for the "
                "first and 7/8 for the last of eight"
            )
        return cls(index=int(match[1]), count=int(match[2]))

    def holds(self, key: str) -> bool:
        """Return whether the kernel `key` is in this shard."""
        return int(key[:_DIGITS], 16) % self.count == self.index

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"
