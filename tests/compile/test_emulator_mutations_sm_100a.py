# SPDX-License-Identifier: Apache-2.0
"""Mistakes made on purpose in kernels of sm_100a; `test_emulator_mutations` has those of sm_90a."""

from __future__ import annotations

from operator import attrgetter

import pytest

from tests import needs
from tests.compile import mutations_fc2_atoms as atoms
from tests.compile import mutations_fc2_sm_100a as fc2
from tests.compile import mutations_sm_100a as gemm
from tests.compile.kernels import often
from tests.compile.mutations import Mutation
from tests.compile.mutations_sm_100a import JUDGED, ONE
from tests.compile.mutations_sm_100a_pipelines import PIPELINES
from tests.compile.mutations_sm_100a_stores import STORES
from tests.compile.mutations_sm_100a_tensor import TENSOR_MEMORY
from tests.compile.programs import Programs, assert_found, assert_judged, is_found_by_verify

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

PROGRAMS = gemm.PROGRAMS | fc2.PROGRAMS | atoms.PROGRAMS
MUTATIONS = (*PIPELINES, *TENSOR_MEMORY, *STORES, *fc2.EXPERTS, *atoms.ATOMS)

OFTEN = [mutation for mutation in MUTATIONS if not mutation.of_source and mutation.program == ONE]
"""Those that need nothing compiled but a narrow kernel: for every push."""


@pytest.fixture(scope="module")
def programs() -> Programs:
    return Programs(PROGRAMS)


def test_there_are_many() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 99
    assert len(OFTEN) >= 5


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == ONE else pytest.mark.nightly) for name in PROGRAMS],
)
def test_unchanged_programs_are_clean(programs: Programs, name: str) -> None:
    unchanged = programs[name]
    assert unchanged.findings_of(unchanged.artifact, "quick") == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mutation", often(MUTATIONS, OFTEN, attrgetter("name")))
def test_found(programs: Programs, mutation: Mutation) -> None:
    """With the problem that `PROGRAMS` has for it."""
    assert_found(programs[mutation.program], mutation)


@pytest.mark.nightly
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_verify_finds(programs: Programs, mutation: Mutation) -> None:
    """So does `jitgen verify` with its own problems, whatever it says of it."""
    assert is_found_by_verify(programs[mutation.program], mutation)


@pytest.mark.nightly
@pytest.mark.parametrize("name", JUDGED)
def test_judged(programs: Programs, name: str) -> None:
    """What is right all the same gives no finding: a reason is kept beside each."""
    assert_judged(programs, *JUDGED[name])
