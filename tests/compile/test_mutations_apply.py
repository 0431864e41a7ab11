# SPDX-License-Identifier: Apache-2.0
"""Mistakes in sources find their text on each push, though most of them are emulated at night."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import pytest

from jitgen.codegen.render import render
from jitgen.config import Config
from tests.compile import (
    mutations_sm_100a,
    mutations_sm_120a,
    test_activation_mistakes,
    test_emulator_mutations,
    test_emulator_mutations_fp4,
    test_emulator_mutations_sm_100a,
    test_emulator_mutations_sm_120a,
)
from tests.compile.mutations import Mutation, rewrite
from tests.compile.mutations_sm_120a_decoded import TAILS_OF_WEIGHTS
from tests.compile.mutations_sm_120a_operands import TAILS

LISTS: dict[str, tuple[Mapping[str, tuple[str, Any]], Iterable[Mutation]]] = {
    "sm_90a": (test_emulator_mutations.PROGRAMS, test_emulator_mutations.MUTATIONS),
    "fp4": (test_emulator_mutations_fp4.PROGRAMS, test_emulator_mutations_fp4.MUTATIONS),
    "sm_100a": (
        test_emulator_mutations_sm_100a.PROGRAMS,
        test_emulator_mutations_sm_100a.MUTATIONS,
    ),
    "sm_120a": (
        mutations_sm_120a.PROGRAMS,
        (*test_emulator_mutations_sm_120a.MUTATIONS, *TAILS, *TAILS_OF_WEIGHTS),
    ),
    "activations": (test_activation_mistakes.PROGRAMS, test_activation_mistakes.MISTAKES),
}


@cache
def source(name: str) -> str:
    """Return the text of a kernel."""
    return render(*Config.parse(name)).text


@pytest.mark.sampled(1)
@pytest.mark.parametrize("key", LISTS)
def test_a_mistake_changes_the_source(key: str) -> None:
    programs, mutations = LISTS[key]
    made = [mutation for mutation in mutations if mutation.of_source]

    for mutation in made:
        text = source(programs[mutation.program][0])
        assert mutation.edit(text) != text, mutation.name
    assert made


@pytest.mark.sampled(1)
@pytest.mark.parametrize("module", [mutations_sm_100a, mutations_sm_120a])
def test_what_is_judged_changes_the_source(module: Any) -> None:
    programs = {**test_emulator_mutations_sm_100a.PROGRAMS, **mutations_sm_120a.PROGRAMS}
    for where, edit, _ in module.JUDGED.values():
        text = source(programs[where][0])
        assert rewrite(edit)(text) != text
