# SPDX-License-Identifier: Apache-2.0
"""One answer for a problem: the config, the reason, and what else was considered."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from jitgen.errors import UnsupportedConfig
from jitgen.model import Arch, KernelConfig, Operands, Problem
from jitgen.select.bucket import bucket
from jitgen.select.menu import menu
from jitgen.select.rule import NUM_SMS, Candidate, rank
from jitgen.select.target import default_arch


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """
    What was chosen for a problem.

    Attributes:
        config: The best candidate's config.
        arch: The target.
        why: The reason in one sentence.
        candidates: Everything that was considered, best first.
    """

    config: KernelConfig
    arch: Arch
    why: str
    candidates: tuple[Candidate, ...]


def select(problem: Problem, arch: Arch | str | None = None, *, num_sms: int = NUM_SMS) -> Choice:
    """
    Return the config to compute `problem` with.

    Every row count of a bucket gets the same answer, which is computed once and remembered.

    Args:
        problem: The sizes.
        arch: The target; None for JITGEN_ARCH, else the GPU's, else ``cpu``.
        num_sms: SMs to fill. `grouped_gemm` leaves it at its default, so that what it chooses does
            not depend on the machine and can be prewarmed on another.

    Raises:
        UnsupportedConfig: The target has no kernel for the problem's types.
    """
    target = default_arch() if arch is None else Arch.parse(arch)
    return _choose(bucket(problem, target), target, num_sms)


@lru_cache(maxsize=4096)
def _choose(problem: Problem, arch: Arch, num_sms: int) -> Choice:
    operands = Operands(
        a_dtype=problem.a_dtype,
        b_dtype=problem.a_dtype,
        out_dtype=problem.out_dtype,
        scale_granularity=problem.scale_granularity,
    )
    configs = menu(arch, problem.layout, operands)
    if not configs:
        raise UnsupportedConfig(
            f"{arch} has no kernel for {operands.a_dtype} x {operands.b_dtype} -> "
            f"{operands.out_dtype} with {operands.scale_granularity} scales; jitgen configs "
            f"--arch {arch} lists what it has",
            code="E_MMA",
        )
    candidates = rank(problem, configs, arch, num_sms)
    return Choice(
        config=candidates[0].config, arch=arch, why=_reason(candidates), candidates=candidates
    )


def _reason(candidates: tuple[Candidate, ...]) -> str:
    best, *others = candidates
    text = (
        f"{_shape(best)} is predicted at {best.cost:.1f} us, bound by {best.bound}: {best.waves} "
        f"wave{'s' * (best.waves != 1)}, {best.waste:.2f}x the work needed"
    )
    if others:
        text += f"; next is {_shape(others[0])} at {others[0].cost:.1f} us"
    return text


def _shape(candidate: Candidate) -> str:
    tile, cluster = candidate.config.tile, candidate.config.cluster
    return f"{tile.m}x{tile.n}x{tile.k} c{cluster.m}x{cluster.n}"
