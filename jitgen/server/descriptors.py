# SPDX-License-Identifier: Apache-2.0
"""The limit on file descriptors: each connection takes one, and so do files."""

from __future__ import annotations

import resource

from jitgen.server.connection_slots import EXTRA

_SPARE = 256  # for files, pipes and the sockets of supervisors and signer

FEW_DESCRIPTORS = "the process may not open more files: raise its limit (ulimit -n, LimitNOFILE)"


def raise_limit(connections: int) -> None:
    """Raise this process's limit of descriptors for `connections`, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + EXTRA + _SPARE
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def max_connections(connections: int, *, is_raised: bool = True) -> int:
    """
    Return for how many of `connections` there are descriptors.

    Args:
        connections: The number wanted.
        is_raised: Whether to go by the present limit; else by the one it can be raised to.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0 if is_raised else 1]
    if limit == resource.RLIM_INFINITY:
        return connections
    return max(1, min(connections, limit - EXTRA - _SPARE))
