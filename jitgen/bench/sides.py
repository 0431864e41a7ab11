# SPDX-License-Identifier: Apache-2.0
"""jitgen and its peers on the same operands, each with a right result before it is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jitgen
from jitgen.autotune.measure.clock import Batch, Call
from jitgen.autotune.measure.workload import Workload
from jitgen.bench.cases import Case
from jitgen.bench.peers import Peer, Prepared
from jitgen.bench.report import OURS, PADDING
from jitgen.config import Arch, Layout
from jitgen.selection.device import covered
from jitgen.targets.devices import default_arch
from jitgen.targets.legality import target

_DEVICE = "cuda"


@dataclass(slots=True, kw_only=True)
class Sides:
    """
    Who takes part in a case.

    Attributes:
        batches: For each side that computes the case right, its calls.
        missing: The other sides, and why.
    """

    batches: dict[str, Batch] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


class Ours(Peer):
    """jitgen itself, with the kernel that its selector chooses."""

    name = OURS
    note = ""
    has_same_numerics = True

    def prepare(self, workload: Workload, expected_m: int) -> Prepared:
        """Return `grouped_gemm`, which is told what to expect where the layout does not say it."""
        is_masked = workload.problem.layout is Layout.MASKED
        options: dict[str, Any] = {"expected_m": expected_m} if is_masked else {}
        return Prepared(
            call=partial(workload.call, jitgen.grouped_gemm, **options),
            check=partial(workload.check, OURS),
        )


def chosen(case: Case, operands: Workload) -> str:
    """Return the name of the kernel that `grouped_gemm` chooses for the case."""
    problem = operands.problem
    if case.layout is Layout.MASKED:
        problem = replace(problem, m=case.rows_per_group * case.groups)
    arch = default_arch()
    return str(jitgen.select(problem, arch).config.name(arch))


def of_every_device(arch: Arch, names: Callable[[], Iterable[str]]) -> list[str]:
    """
    Return the kernels that `names` returns as each device that `arch` knows chooses, or that of
    JITGEN_DEVICE alone: what to prewarm for a machine whose GPU is not known yet.
    """
    found: dict[str, None] = {}
    for each in target(arch).devices:
        if each.name in covered(arch):
            with jitgen.Session(device=each.name):
                found |= dict.fromkeys(names())
    return sorted(found)


def device() -> str:
    """Return where operands live: the GPU, as torch calls it."""
    return _DEVICE


def workload(case: Case) -> Workload:
    """Return random operands of the case."""
    return Workload.random(case.problem, case.row_counts, max_rows=case.max_rows, device=_DEVICE)


def prepare(case: Case, peers: Sequence[Peer], of: Sequence[Workload]) -> Sides:
    """
    Capture the calls of every side and check what they compute.

    A side that fails in any way is left out with its reason: others' code, and kernels under test.
    """
    sides = Sides()
    for peer in (Ours(), *peers):

        def add(peer: Peer = peer) -> None:
            prepared = [peer.prepare(each, case.rows_per_group) for each in of]
            batch = Batch.capture([each.call for each in prepared])
            of[0].out.fill_(float("nan"))
            batch.replay()
            prepared[0].check()
            found = {peer.name: batch}
            passes = [each.padding for each in prepared if each.padding is not None]
            if passes:
                found[PADDING] = Batch.capture(passes)
            sides.batches.update(found)

        attempt(peer.name, add, sides.missing)
    return sides


def attempt(name: str, step: Call, missing: dict[str, str]) -> bool:
    """Do `step` and return whether it succeeded; if not, note under `name` why."""
    try:
        step()
    except Exception as error:  # others' code may raise anything
        text = " ".join(str(error).split())
        missing[name] = f"{type(error).__name__}: {text[:300]}"
        return False
    return True
