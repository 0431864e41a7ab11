# SPDX-License-Identifier: Apache-2.0
"""Which experts a rank has."""

from __future__ import annotations

from jitgen.errors import InputError


def share(experts: int, rank: int, ranks: int) -> tuple[int, int]:
    """
    Return the first expert of a rank and the number of its experts; these numbers differ between
    ranks by at most one.

    Example::

        first, count = share(256, rank=1, ranks=4)
        # 64, 64

    Raises:
        InputError: There are fewer experts than ranks, or `rank` is not from 0 to ranks - 1.
    """
    if type(ranks) is not int or not 1 <= ranks <= experts:
        raise InputError("ranks", f"must be 1 to experts, {experts} (got {ranks!r})")
    if type(rank) is not int or not 0 <= rank < ranks:
        raise InputError("rank", f"must be 0 to {ranks - 1} (got {rank!r})")
    first = rank * experts // ranks
    return first, (rank + 1) * experts // ranks - first
