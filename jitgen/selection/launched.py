# SPDX-License-Identifier: Apache-2.0
"""
The kernels that a call may launch: the chosen one, and those that its operation launches beside it.
"""

from __future__ import annotations

from jitgen.config import Arch, Config
from jitgen.config.operation import operation
from jitgen.config.problem import Problem
from jitgen.selection.choice import Choice, Chooser
from jitgen.targets.early import early


def launched(
    problem: Problem, arch: Arch, chooser: Chooser, device: str | None, *, is_early: bool
) -> tuple[Choice, tuple[Config, ...]]:
    """
    Return the choice for a problem, and the configs that its calls may launch: the chosen one, and
    those of further launches of its operation (such as unpacking weights). Raises as
    `Chooser.select`.

    Args:
        problem: The problem.
        arch: The target.
        chooser: The chooser of kernels.
        device: Name of the device, as `Chooser.select` takes it.
        is_early: Whether the kernel starts before the previous one has ended: see
            `jitgen.targets.early`.
    """
    choice = chooser.select(problem, arch, device=device)
    usual = early(choice.config, arch) if is_early else choice.config
    beside = operation(problem.op).launched_beside(problem, arch, chooser.select, device)
    return choice, (usual, *beside)
