# SPDX-License-Identifier: Apache-2.0
"""
The fallback for a problem with a bias that was never measured: the same problem without one.

A bias is read once for each tile and added in registers, so kernels take as long as without it,
except for the scatter of measurements, and their order is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from jitgen.config import Arch
from jitgen.config.grouped_gemm import Epilogue, GroupedGemmConfig, GroupedGemmProblem
from jitgen.selection.measurements import Measured, Measurements


def with_fallback(
    problem: GroupedGemmProblem,
    found: Measurements,
    arch: Arch,
    lookup: Callable[[GroupedGemmProblem], Measurements],
) -> Measurements:
    """
    Return the measurements of `problem`; if there are none, those of the same problem without bias.

    Args:
        problem: A problem with a bias.
        found: Its own measurements.
        arch: The target.
        lookup: Returns the measurements of another problem.
    """
    if found.measured:
        return found
    plain = lookup(replace(problem, bias=False))
    return Measurements(
        measured=tuple(_biased(each, problem, arch) for each in plain.measured),
        excluded=found.excluded,
    )


def _biased(measured: Measured, problem: GroupedGemmProblem, arch: Arch) -> Measured:
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
    config, _ = GroupedGemmConfig.parse(name)
    return replace(config, epilogue=Epilogue(bias=True)).name(arch)
