# SPDX-License-Identifier: Apache-2.0
"""
Attacks on the cache and the compiler: what others may do to them, and what machines do alone.

A stage is one kind of attack; ``STAGES[name](quick)`` returns what it found. Each module says what
it does and what must not happen; ``python -m tests.chaos --help`` runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.chaos import (
    calls,
    damage,
    hostile,
    mounts,
    power,
    stampede,
    swaps,
    trouble,
    users,
)
from tests.chaos.report import Stage

STAGES: dict[str, Callable[[bool], Stage]] = {
    "swaps": swaps.run,
    "users": users.run,
    "damage": damage.run,
    "calls": calls.run,
    "power": power.run,
    "mounts": mounts.run,
    "hostile": hostile.run,
    "trouble": trouble.run,
    "stampede": stampede.run,
}

NAMED: dict[str, Callable[[bool], Stage]] = {
    **STAGES,
    "calls-in-turn": partial(calls.run, errors=1),
}
"""
All stages, also those that run only if they are named. In full, ``calls-in-turn`` takes a sixth of
the time of ``calls``: every call fails, with one of the six errors.
"""
