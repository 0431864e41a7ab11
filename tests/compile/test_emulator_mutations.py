# SPDX-License-Identifier: Apache-2.0
"""Mistakes made on purpose: the emulator finds every one, in the place where it was made."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import dataclass, replace

import pytest

from jitgen.codegen.render import render
from jitgen.emulator.artifact import Artifact
from jitgen.emulator.report import Finding
from jitgen.errors import Deadlock, MachineFault
from jitgen.ops.grouped_gemm.config import KernelConfig
from jitgen.ops.grouped_gemm.samples import Solved
from jitgen.verify import emulate
from jitgen.verify.artifacts import compiled
from jitgen.verify.problem import Sizes, make
from tests import needs
from tests.compile.mutations import Mutation
from tests.compile.mutations_order import FENCES, WAITS
from tests.compile.mutations_resources import RESOURCES
from tests.compile.mutations_split_k import EXCHANGE
from tests.compile.mutations_values import ADDRESSES, TRANSACTIONS

pytestmark = [needs.compiler, needs.linker]

MUTATIONS = (*TRANSACTIONS, *ADDRESSES, *WAITS, *FENCES, *EXCHANGE, *RESOURCES)

_RAGGED = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c2x1_acc1_sm_90a"
PROGRAMS = {
    "ragged": (
        _RAGGED,
        Sizes(rows=(133, 0, 70), n=136, k=400, num_sms=2),
    ),
    "ragged, many groups": (
        _RAGGED,
        Sizes(rows=(*[0] * 33, 9), n=8, k=16, num_sms=2),
    ),
    "contiguous": (
        "grouped_gemm_contiguous_e4m3_e4m3_block128_bf16_t128x128x128_c1x1_acc1_sm_90a",
        Sizes(rows=(130, 0, 70), n=136, k=400, num_sms=1),
    ),
    "masked": (
        "grouped_gemm_masked_e4m3_e4m3_row_bf16_t64x64x128_c1x2_acc1_sm_90a",
        Sizes(rows=(66, 0, 30), n=136, k=400, num_sms=2),
    ),
    "split K": (
        "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t64x32x128_c1x1_acc1_splitk2_sm_90a",
        Sizes(rows=(66, 0, 30), n=72, k=400, num_sms=2),
    ),
}
"""Kernels, and problems that wrap every ring and give each CTA several tiles."""

PLACE = re.compile(r"kernel\.py:\d+ \(\w+\) \| ptx:\d+: ")
HAS_TWO_PLACES = {"race", "proxy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A compiled kernel and a problem for it."""

    artifact: Artifact
    problem: Solved
    num_sms: int

    def findings(self, text: str, modes: str) -> list[Finding]:
        """Return what is found in PTX, a wrong result among it."""
        problem, num_sms = deepcopy(self.problem), self.num_sms
        artifact = replace(self.artifact, ptx=text)
        try:
            report = emulate(
                artifact, *problem.tensors, num_sms, modes=modes, num_sms=num_sms, time_limit_s=30
            )
        except MachineFault as error:
            kind = "deadlock" if isinstance(error, Deadlock) else "fault"
            return [Finding(kind=kind, message=str(error))]
        found = [finding for _, finding in report.findings]
        if wrong := problem.wrong():
            found.append(Finding(kind="wrong", message=f"{wrong} values"))
        return found


@pytest.fixture(scope="module")
def programs() -> dict[str, Program]:
    found, artifacts = {}, {}
    for key, (name, sizes) in PROGRAMS.items():
        config, arch = KernelConfig.parse(name)
        if name not in artifacts:
            artifacts[name] = compiled(render(config, arch))
        problem = make(config, sizes, is_exact=True)
        found[key] = Program(artifact=artifacts[name], problem=problem, num_sms=sizes.num_sms)
    return found


def test_there_are_many() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 40


@pytest.mark.parametrize("name", PROGRAMS)
def test_unchanged_programs_are_clean(programs: dict[str, Program], name: str) -> None:
    program = programs[name]
    assert program.findings(program.artifact.ptx, "quick") == []


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(mutation, marks=pytest.mark.nightly if number % 2 else (), id=mutation.name)
        for number, mutation in enumerate(MUTATIONS)
    ],
)
def test_found(programs: dict[str, Program], mutation: Mutation) -> None:
    program = programs[mutation.program]
    found = program.findings(mutation.edit(program.artifact.ptx), "eager")

    # what is read by mistake may lead astray at once: a fault tells what was found before it
    before = f"before that, {mutation.kind}: "
    texts = [str(item) for item in found if item.kind == mutation.kind or before in str(item)]
    wanted = re.compile(".*".join(map(re.escape, mutation.names)), re.DOTALL)
    matching = [text for text in texts if wanted.search(text)]
    assert matching, "\n".join(map(str, found)) or "nothing was found"
    if mutation.kind in HAS_TWO_PLACES and "griddepcontrol" not in matching[0]:
        assert len(PLACE.findall(matching[0])) == 2, matching[0]


REPEATED = [mutation for mutation in MUTATIONS if mutation.kind in HAS_TWO_PLACES][::4]


@pytest.mark.nightly
@pytest.mark.parametrize("mutation", REPEATED, ids=lambda mutation: mutation.name)
def test_found_in_the_same_way_again(programs: dict[str, Program], mutation: Mutation) -> None:
    program = programs[mutation.program]
    text = mutation.edit(program.artifact.ptx)
    first, second = (program.findings(text, "quick") for _ in range(2))
    assert first == second
