# SPDX-License-Identifier: Apache-2.0
"""The registers that sm_90a's rules say a thread of these kernels needs: none spills."""

from __future__ import annotations

import pytest

from jitgen.codegen.render import render
from jitgen.compile import compiler, inspect
from jitgen.config import Arch, Config, Layout
from jitgen.config.combine import CombineProblem
from jitgen.config.format import Format
from jitgen.config.permute_quantize import PermuteQuantizeProblem, Walk
from jitgen.errors import ConfigError
from jitgen.targets.legality import require, rules
from tests import needs
from tests.strategies import combine_sweep, permute_sweep

pytestmark = [needs.compiler, needs.linker]


def chosen() -> list[Config]:
    """Return every config that may be chosen."""
    found: list[Config] = []
    for has_shared in (False, True):
        problem = CombineProblem(m=1, n=8, has_shared=has_shared)
        found += rules(Arch.SM_90A, "combine").candidates(problem)
    for layout in Layout:
        for form in Format:
            for walk in Walk:
                try:
                    rows = PermuteQuantizeProblem(layout=layout, m=1, k=16, format=form, walk=walk)
                except ConfigError:  # no such walk
                    continue
                found += rules(Arch.SM_90A, "permute_quantize").candidates(rows)
    return found


def spills(config: Config, arch: Arch = Arch.SM_90A) -> str:
    """Return what is wrong with the registers of a kernel, if anything is."""
    made = compiler.compile_source(render(config, arch))
    found = inspect.resources(made.files[made.library])
    derived = require(config, arch).derived
    if found.stack_bytes or found.spill_instructions or found.registers > derived.registers:
        return f"{config.to_name()}: {found}"
    return ""


@pytest.mark.parametrize("place", [0, -1])
def test_the_first_and_the_last(place: int) -> None:
    assert not spills(chosen()[place])


@pytest.mark.nightly
@pytest.mark.parametrize("config", chosen(), ids=lambda config: config.to_name())
def test_what_may_be_chosen(config: Config) -> None:
    assert not spills(config)


@pytest.mark.nightly
def test_a_sample_of_what_is_legal() -> None:
    every = [*permute_sweep(Arch.SM_90A), *combine_sweep(Arch.SM_90A)]

    assert not [found for config in every[::5] if (found := spills(config))]
