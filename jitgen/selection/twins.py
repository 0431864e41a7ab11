# SPDX-License-Identifier: Apache-2.0
"""
What stands in where a problem with a bias was never measured: the same problem without one.

A bias is read once for each tile and added in registers, so that it takes kernels as long as they
take without it, but for what their measurements scatter: their order is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from jitgen.config import Arch
from jitgen.config.grouped_gemm import Epilogue, KernelConfig, Problem
from jitgen.selection.known import Known, Measured


def with_twin(problem: Problem, known: Known, arch: Arch, lookup: Callable[[Any], Known]) -> Known:
    """
    Return what is `known` of `problem`; where nothing was measured, what was without its bias.

    Args:
        problem: One with a bias.
        known: What is known of it.
        arch: The target.
        lookup: Returns what is known of another problem.
    """
    if known.measured:
        return known
    plain = lookup(replace(problem, bias=False))
    return Known(
        measured=tuple(_biased(each, problem, arch) for each in plain.measured),
        excluded=known.excluded,
    )


def _biased(measured: Measured, problem: Problem, arch: Arch) -> Measured:
    """Return a record with the names that its kernels have with a bias."""
    record = measured.record
    names = {name: _name(name, arch) for name in {record.winner, *record.times_us}}
    times = {names[name]: time for name, time in record.times_us.items()}
    biased = replace(
        record, problem=problem, winner=names[record.winner], times_us=times, excluded={}
    )
    return measured._replace(record=biased, note=" without the bias")


@lru_cache(maxsize=1024)  # every bucket of a plan has the same few kernels
def _name(name: str, arch: Arch) -> str:
    config, _ = KernelConfig.parse(name)
    return replace(config, epilogue=Epilogue(bias=True)).name(arch)
