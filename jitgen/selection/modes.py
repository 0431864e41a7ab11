# SPDX-License-Identifier: Apache-2.0
"""
The rules by which the kernel of a grouped GEMM is chosen.

    dynamic   measurements, else the cost model: it knows the device, its SMs and its memory
    static    the target's table of rows a group: the same kernels on each of its devices
    passes    the smallest tile that goes over the rows of a group as rarely as any, as llama.cpp
              chooses: knows rows and nothing else, and is here to compare with

`docs/selection-measured.md` compares them. Only ``dynamic`` uses times; all three leave out kernels
that failed when they were measured on this machine.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, cast

from jitgen.config import Arch, Config
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.config.problem import Problem
from jitgen.errors import ConfigError
from jitgen.support.text import shown
from jitgen.targets.legality import rules
from jitgen.targets.protocol import Candidate, HasTable

_OP = "grouped_gemm"


class Mode(StrEnum):
    """
    A rule by which the kernel of a grouped GEMM is chosen: measurements and the cost model, a
    table, or the fewest passes over the rows.
    """

    DYNAMIC = "dynamic"
    STATIC = "static"
    PASSES = "passes"

    @classmethod
    def of(cls, word: str, problem: Problem) -> Mode:
        """
        Return the mode called `word`. Operations other than grouped GEMMs have no tiles of rows to
        choose among: their mode is always ``dynamic``.

        Raises:
            ConfigError: There is no mode of this name.
        """
        if word not in tuple(cls):
            raise ConfigError(f"mode must be one of {', '.join(cls)} (got {shown(word)})")
        return cls(word) if problem.op == _OP else cls.DYNAMIC


class Ranking(NamedTuple):
    """
    Candidates in the order of a rule.

    Attributes:
        candidates: The best first.
        why: The rule in words.
    """

    candidates: tuple[Candidate, ...]
    why: str


def ranked(mode: Mode, problem: Problem, arch: Arch, candidates: tuple[Candidate, ...]) -> Ranking:
    """
    Return `candidates`, given by predicted time, in the order of `mode`, which is not dynamic.

    Raises:
        ConfigError: The target has no table for ``static``.
    """
    if mode is Mode.PASSES:
        rows = problem.rows_per_group
        order = sorted(candidates, key=lambda each: (_passes(each, rows), _height(each)))
        why = (
            f"the smallest tile with the fewest passes over {rows} rows, {_passes(order[0], rows)}"
        )
        return Ranking(tuple(order), why)
    wanted = _of_table(problem, arch)
    order = sorted(candidates, key=lambda each: each.config != wanted)
    return Ranking(tuple(order), f"the table of {arch} has it for {problem.rows_per_group} rows")


def _passes(candidate: Candidate, rows: int) -> int:
    """Return the number of tiles along M for the rows of a group."""
    return -(-rows // _height(candidate))


def _height(candidate: Candidate) -> int:
    """Return the rows of a candidate's tile; only those of grouped GEMMs have modes."""
    return cast("GroupedGemmConfig", candidate.config).tile.m


def _of_table(problem: Problem, arch: Arch) -> Config:
    found = rules(arch, problem.op)
    if not isinstance(found, HasTable):
        others = ", ".join(mode for mode in Mode if mode is not Mode.STATIC)
        raise ConfigError(f"mode static: {arch} has no table to choose by; allowed: {others}")
    return found.of_table(problem)
