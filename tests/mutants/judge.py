# SPDX-License-Identifier: Apache-2.0
"""Whether `jitgen verify` finds a mistake."""

from __future__ import annotations

import re

from jitgen.codegen.render import render, source_of
from jitgen.config import Arch
from jitgen.errors import JitgenError
from jitgen.verify.artifacts import compiled
from jitgen.verify.verification import verify
from tests.cases import Kernel, pool
from tests.covering import covering
from tests.mutants.mutant import Mutant

TIME_LIMIT_S = 30
"""Seconds for one mode of one problem: a wrong bound may make a loop endless."""


def judged(name: str, op: str, arch: str, mutant: Mutant) -> tuple[str, str]:
    """Return the verdict on a mistake in the kernel `name`, one word, and why it was refused."""
    config = next(each.config for each in kernels(op, arch) if each.config.name(arch) == name)
    source = render(config, Arch.parse(arch))
    try:
        right = compiled(source)
        wrong = compiled(source_of(config, Arch.parse(arch), mutant.applied(source.text)))
    except JitgenError as error:
        return "refused", str(error)
    if _code(right.ptx) == _code(wrong.ptx):
        return "same", ""
    try:
        verdict = verify(config, arch, artifact=wrong, time_limit_s=TIME_LIMIT_S)
    except (TypeError, ValueError) as error:  # the entry takes no such tensors
        return "refused", str(error)
    return ("survived" if verdict.is_right else "found"), ""


def _code(ptx: str) -> str:
    """Return PTX without places of the source and sections of debugging."""
    return re.sub(r"(?m)^\s*(\.loc|\.file|//).*$", "", ptx).partition(".section")[0]


def kernels(op: str, arch: str) -> list[Kernel]:
    """Return kernels of an operation that have between them every value of every field."""
    return covering(pool(Arch.parse(arch), op), lambda kernel: kernel.values)
