# SPDX-License-Identifier: Apache-2.0
"""
Problems that get the same config.

A choice is made once for all row counts of a bucket, so a thousand batch sizes take one decision
each for a handful of buckets, and the kernels that a range of sizes can choose are found by walking
over its buckets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

from jitgen.model import Arch, Problem

EDGES: dict[Arch, tuple[int, ...]] = {
    Arch.CPU: (8, 16, 32, 64),
    Arch.SM_90A: (
        *(8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512),
        *(640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 6144, 8192),
    ),
}
"""Largest mean rows of a group of each bucket; the last one also takes everything above it."""


def bucket(problem: Problem, arch: Arch) -> Problem:
    """
    Return the problem that stands for all that are chosen alike: the same sizes at its bucket's
    edge of rows.
    """
    edges = EDGES[arch]
    place = min(bisect_left(edges, problem.rows_per_group), len(edges) - 1)
    return replace(problem, m=edges[place] * problem.groups)


def buckets(problem: Problem, arch: Arch, rows: tuple[int, int]) -> Iterator[Problem]:
    """
    Yield every bucket that problems like `problem` fall into.

    Args:
        problem: All sizes but the rows.
        arch: The target.
        rows: Smallest and largest mean of rows a group, rounded up to whole rows; every mean
            between occurs.
    """
    first, last = (
        bucket(replace(problem, m=mean * problem.groups), arch).rows_per_group for mean in rows
    )
    for edge in EDGES[arch]:
        if first <= edge <= last:
            yield replace(problem, m=edge * problem.groups)
