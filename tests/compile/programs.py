# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels that mistakes are made in, and whether what must be found is."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from jitgen.codegen.render import Source, render
from jitgen.config import Config
from jitgen.emulator import Artifact, Finding
from jitgen.errors import Deadlock, MachineFault
from jitgen.verify import emulate, verify
from jitgen.verify.artifacts import compiled, compiled_once
from jitgen.verify.verification import samples_of
from tests.compile.mutations import Mutation, rewrite

PLACE = re.compile(r"kernel\.py:\d+ \(\w+\) \| ptx:\d+: ")
HAS_TWO_PLACES = {"race", "proxy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A kernel and a problem for it."""

    source: Source
    problem: Any
    num_sms: int

    @property
    def artifact(self) -> Artifact:
        """The kernel without a mistake, compiled when first asked for: most mistakes need none."""
        return compiled_once(self.source)

    def findings(self, text: str, modes: str) -> list[Finding]:
        """Return what is found in PTX, a wrong result among it."""
        return self.findings_of(replace(self.artifact, ptx=text), modes)

    def mutated(self, mutation: Mutation) -> Artifact:
        """Return the kernel with a mistake in it."""
        if mutation.of_source:
            return compiled(replace(self.source, text=mutation.edit(self.source.text)))
        return replace(self.artifact, ptx=mutation.edit(self.artifact.ptx))

    def findings_of(self, artifact: Artifact, modes: str) -> list[Finding]:
        """Return what is found in a kernel, a wrong result among it."""
        problem, num_sms = deepcopy(self.problem), self.num_sms
        try:
            report = emulate(
                artifact,
                *problem.tensors,
                num_sms,
                modes=modes,
                num_sms=num_sms,
                time_limit_s=60,
                settled=self.source.config.settled,
            )
        except MachineFault as error:
            kind = "deadlock" if isinstance(error, Deadlock) else "fault"
            return [Finding(kind=kind, message=str(error))]
        found = [finding for _, finding in report.findings]
        if wrong := problem.wrong():
            found.append(Finding(kind="wrong", message=f"{wrong} values"))
        return found


class Programs:
    """Programs by their names, each rendered when it is first asked for."""

    def __init__(self, wanted: dict[str, tuple[str, Any]]) -> None:
        """
        Make the programs of `wanted`: for each name, that of a kernel and the sizes of its problem.
        """
        self._wanted = wanted
        self._found: dict[str, Program] = {}

    def __getitem__(self, key: str) -> Program:
        if key not in self._found:
            name, sizes = self._wanted[key]
            config, arch = Config.parse(name)
            problem = samples_of(config).make(config, sizes, is_exact=True)
            self._found[key] = Program(
                source=render(config, arch), problem=problem, num_sms=sizes.num_sms
            )
        return self._found[key]


def is_found_by_verify(program: Program, mutation: Mutation) -> bool:
    """
    Say whether `jitgen verify` finds a mistake with its own problems, whatever it says of it.

    A warning leaves a kernel right. It counts if it is the one that the mistake must give.
    """
    config, arch = program.source.config, program.source.arch
    mutated = program.mutated(mutation)
    found = verify(config, arch, artifact=mutated, time_limit_s=60)
    kinds = {finding.kind for trial in found.trials for _, finding in trial.findings}
    return not found.is_right or mutation.kind in kinds


def assert_judged(programs: Programs, where: str, edit: Any, reason: str) -> None:
    """Assert that a change gives no finding, for a reason that is kept beside it."""
    unchanged = programs[where]
    changed = replace(unchanged.source, text=rewrite(edit)(unchanged.source.text))

    assert reason
    assert unchanged.findings_of(compiled(changed), "quick") == []


def assert_found(program: Program, mutation: Mutation) -> None:
    """Assert that a mistake is found, as what it is, and in the place where it was made."""
    found = program.findings_of(program.mutated(mutation), "eager")

    # what is read by mistake may lead astray at once: a fault tells what was found before it
    before = f"before that, {mutation.kind}: "
    texts = [str(item) for item in found if item.kind == mutation.kind or before in str(item)]
    wanted = re.compile(".*".join(map(re.escape, mutation.names)), re.DOTALL)
    matching = [text for text in texts if wanted.search(text)]
    assert matching, "\n".join(map(str, found)) or "nothing was found"
    if mutation.kind in HAS_TWO_PLACES and "griddepcontrol" not in matching[0]:
        assert len(PLACE.findall(matching[0])) == 2, matching[0]
