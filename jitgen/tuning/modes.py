# SPDX-License-Identifier: Apache-2.0
"""
By which rule a grouped GEMM is chosen, and what changes where the least time of few rows counts.

    dynamic   measurements, else the cost model: it knows the device, its SMs and its memory
    static    the target's table of rows a group: the same kernels on each of its devices
    passes    the smallest tile that goes over the rows of a group as rarely as any, as llama.cpp
              chooses: knows rows and nothing else, and is here to compare with

`docs/selection.md` has what each costs. Only ``dynamic`` looks at times; all three leave out what
failed when it was measured here.

With `min_latency` a step of few rows is to take the least time: a group that one tile of the
smallest height holds is chosen for as if it had one row, whatever else that costs. A target may
have a kernel for it, which is then the only candidate; others take the best at one row.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Any, NamedTuple

from jitgen.config import Arch, Config
from jitgen.errors import ConfigError
from jitgen.settings import settings
from jitgen.targets.legality import rules
from jitgen.targets.protocol import Candidate, HasTable
from jitgen.text import shown

MIN_LATENCY_ROWS = 8
"""Mean rows of a group up to which `min_latency` counts: those of the smallest tile there is."""

_OP = "grouped_gemm"


class Mode(StrEnum):
    """A rule; see the module."""

    DYNAMIC = "dynamic"
    STATIC = "static"
    PASSES = "passes"

    @classmethod
    def of(cls, word: str | None, problem: Any) -> Mode:
        """
        Return the mode called `word`, None for JITGEN_SELECT's; ``dynamic`` for other operations,
        whose kernels have no tiles of rows to choose among.

        Raises:
            ConfigError: There is none.
        """
        word = settings.select if word is None else word
        if word not in tuple(cls):
            raise ConfigError(f"mode must be one of {', '.join(cls)} (got {shown(word)})")
        return cls(word) if problem.op == _OP else cls.DYNAMIC


class Ranking(NamedTuple):
    """
    Candidates in the order of a rule.

    Attributes:
        candidates: The best first.
        why: The rule, for who reads reasons.
    """

    candidates: tuple[Candidate, ...]
    why: str


def ranked(mode: Mode, problem: Any, arch: Arch, candidates: tuple[Candidate, ...]) -> Ranking:
    """
    Return `candidates`, which come by predicted time, in the order of `mode`.

    Raises:
        ConfigError: The target has no table for ``static``.
    """
    if mode is Mode.DYNAMIC:
        return Ranking(candidates, "")
    if mode is Mode.PASSES:
        rows = problem.rows_per_group
        order = sorted(candidates, key=lambda each: (_passes(each, rows), each.config.tile.m))
        why = (
            f"the smallest tile with the fewest passes over {rows} rows, {_passes(order[0], rows)}"
        )
        return Ranking(tuple(order), why)
    wanted = _of_table(problem, arch)
    order = sorted(candidates, key=lambda each: each.config != wanted)
    return Ranking(tuple(order), f"the table of {arch} has it for {problem.rows_per_group} rows")


def _passes(candidate: Candidate, rows: int) -> int:
    """Return how many tiles the rows of a group take, one over the other."""
    return -(-rows // int(candidate.config.tile.m))


def _of_table(problem: Any, arch: Arch) -> Config:
    found = rules(arch, problem.op)
    if not isinstance(found, HasTable):
        others = ", ".join(mode for mode in Mode if mode is not Mode.STATIC)
        raise ConfigError(f"mode static: {arch} has no table to choose by; allowed: {others}")
    return found.of_table(problem)  # type: ignore[no-any-return]


def resolved(problem: Any) -> Any:
    """Return `problem` with JITGEN_MIN_LATENCY's answer, where it leaves `min_latency` open."""
    if getattr(problem, "min_latency", False) is None and settings.min_latency:
        return replace(problem, min_latency=True)
    return problem


def standing(problem: Any) -> Any:
    """
    Return the problem that is chosen for in the place of `problem`, the edge of a bucket: with one
    row a group where the least time counts, and as if nobody had asked where there are more.
    """
    if getattr(problem, "min_latency", None) is None:
        return problem
    if problem.min_latency and problem.rows_per_group <= MIN_LATENCY_ROWS:
        return problem.with_mean(1)
    return replace(problem, min_latency=None)
