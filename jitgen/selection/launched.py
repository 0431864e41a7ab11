# SPDX-License-Identifier: Apache-2.0
"""The kernels that one call may launch: the chosen one, and those that go with it."""

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
    Return the choice for a problem, and the configs that its calls may launch; raises as
    `Chooser.select`.

    Args:
        problem: The problem.
        arch: The target.
        chooser: What chooses.
        device: Name of the device, as `Chooser.select` takes it.
        is_early: Whether the kernel starts early: see `jitgen.targets.early`.
    """
    choice = chooser.select(problem, arch, device=device)
    usual = early(choice.config, arch) if is_early else choice.config
    beside = operation(problem.op).launched_beside(problem, arch, chooser.select, device)
    return choice, (usual, *beside)
