# SPDX-License-Identifier: Apache-2.0
"""
Problems that get the same config.

A choice is made once for all row counts of a bucket, so a thousand batch sizes take one decision
each for a handful of buckets, and the kernels that a range of sizes can choose are found by walking
over its buckets. Where the buckets end, each target says for each operation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from jitgen.config import Arch
from jitgen.targets.legality import rules


def bucket(problem: Any, arch: Arch) -> Any:
    """
    Return the problem that stands for all that are chosen alike: the same sizes at its bucket's
    edge of rows.
    """
    return problem.with_mean(edge(rules(arch, problem.op).row_edges, problem.rows_per_group))


def edge(edges: tuple[int, ...], rows: int) -> int:
    """Return the edge of the bucket that a mean of `rows` rows a group falls into."""
    return edges[min(bisect_left(edges, rows), len(edges) - 1)]


def buckets(problem: Any, arch: Arch, rows: tuple[int, int]) -> Iterator[Any]:
    """
    Yield every bucket that problems like `problem` fall into.

    Args:
        problem: All sizes but the rows.
        arch: The target.
        rows: Smallest and largest mean of rows a group, rounded up to whole rows; every mean
            between occurs.
    """
    edges = edges_of(problem, arch)
    first, last = (edge(edges, mean) for mean in rows)
    for each in edges:
        if first <= each <= last:
            yield problem.with_mean(each)


def edges_of(problem: Any, arch: Arch) -> tuple[int, ...]:
    """Return where the buckets of problems like `problem` end."""
    return rules(arch, problem.op).row_edges
