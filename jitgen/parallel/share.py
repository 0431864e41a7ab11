# SPDX-License-Identifier: Apache-2.0
"""Which experts a rank has."""

from __future__ import annotations


def share(experts: int, rank: int, ranks: int) -> tuple[int, int]:
    """
    Return the first expert of a rank and how many follow it: parts that differ by one at most.

    Example::

        first, count = share(256, rank=1, ranks=4)
        # 64, 64
    """
    first = rank * experts // ranks
    return first, (rank + 1) * experts // ranks - first
