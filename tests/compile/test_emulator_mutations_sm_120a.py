# SPDX-License-Identifier: Apache-2.0
"""Mistakes made on purpose in kernels of sm_120a; `test_emulator_mutations` has those of sm_90a."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

import pytest

from tests import needs
from tests.compile.kernels import often
from tests.compile.mutations import Mutation
from tests.compile.mutations_sm_120a import JUDGED, LOW, PROGRAMS, spoiled
from tests.compile.mutations_sm_120a_decoded import (
    DECODING,
    FACTORS,
    TAILS_OF_WEIGHTS,
    TOKENS,
)
from tests.compile.mutations_sm_120a_operands import OPERANDS, PROMOTION, SCALES, TAILS
from tests.compile.mutations_sm_120a_pipelines import PIPELINES
from tests.compile.mutations_sm_120a_stores import STORES, TILES
from tests.compile.programs import Programs, assert_found, assert_judged, is_found_by_verify

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

MUTATIONS = (
    *(*PIPELINES, *OPERANDS, *SCALES, *PROMOTION, *STORES, *TILES),
    *(*DECODING, *FACTORS, *TOKENS),
)

OFTEN = [mutation for mutation in MUTATIONS if not mutation.of_source]
"""Those that need nothing compiled but a low kernel: for every push."""


@pytest.fixture(scope="module")
def programs() -> Programs:
    return Programs(PROGRAMS)


def test_there_are_many() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 110
    assert {mutation.program for mutation in OFTEN} == {LOW}
    assert len(OFTEN) >= 3


@pytest.mark.nightly
@pytest.mark.parametrize("name", PROGRAMS)
def test_unchanged_programs_are_clean(programs: Programs, name: str) -> None:
    unchanged = programs[name]
    assert unchanged.findings_of(unchanged.artifact, "quick") == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mutation", often(MUTATIONS, OFTEN, attrgetter("name")))
def test_found(programs: Programs, mutation: Mutation) -> None:
    """With the problem that `PROGRAMS` has for it."""
    assert_found(programs[mutation.program], mutation)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "mutation", [*TAILS, *TAILS_OF_WEIGHTS], ids=lambda mutation: mutation.name
)
def test_found_where_tails_are_spoiled(programs: Programs, mutation: Mutation) -> None:
    """Unchanged, such a kernel is right."""
    program = programs[mutation.program]
    k = PROGRAMS[mutation.program][1].k
    program = replace(program, problem=spoiled(program.problem, k))

    assert program.findings_of(program.artifact, "quick") == []
    assert_found(program, mutation)


@pytest.mark.nightly
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_verify_finds(programs: Programs, mutation: Mutation) -> None:
    """So does `jitgen verify` with its own problems, whatever it says of it."""
    assert is_found_by_verify(programs[mutation.program], mutation)


@pytest.mark.nightly
@pytest.mark.parametrize("name", JUDGED)
def test_judged(programs: Programs, name: str) -> None:
    """What is right all the same, or what the emulator cannot see: a reason is kept beside each."""
    assert_judged(programs, *JUDGED[name])
