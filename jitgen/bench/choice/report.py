# SPDX-License-Identifier: Apache-2.0
"""Measurements of the choice suite in a file, and the loss of each rule of selection for them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from jitgen.bench.choice import NAME
from jitgen.bench.choice.cases import Case
from jitgen.bench.report import Report, Table, write
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.runtime.session import select
from jitgen.support.frozen import frozen

_WORST = 10
_RULES = {"model": False, "table": True}
"""
Rules of selection, and whether each uses measurements (those that jitgen ships and those of this
machine) in addition to the model.
"""


@frozen
class Measured:
    """
    The times of every candidate of one case.

    Attributes:
        case: The problem and its rows.
        times_us: Microseconds of each candidate, by name.
        took_s: Seconds that the case took, with operands and checks.
    """

    case: Case
    times_us: Mapping[str, float] = field(hash=False)
    took_s: float = 0.0

    @property
    def best(self) -> str:
        """Name of the fastest candidate."""
        return min(self.times_us, key=self.times_us.__getitem__)


@frozen
class Regret:
    """
    The loss of a choice relative to the fastest measured kernel.

    Attributes:
        measured: The case.
        chosen: Name of the kernel that was chosen.
    """

    measured: Measured
    chosen: str

    @property
    def lost(self) -> float:
        """The time of the chosen kernel over the best time, minus 1."""
        times = self.measured.times_us
        return times[self.chosen] / times[self.measured.best] - 1

    def to_json(self) -> dict[str, Any]:
        """Return the loss, and the names and times of both kernels, as JSON values."""
        times = self.measured.times_us
        return {
            "case": str(self.measured.case),
            "chosen": self.chosen,
            "chosen_us": times[self.chosen],
            "best": self.measured.best,
            "best_us": times[self.measured.best],
            "regret": self.lost,
        }


@dataclass(slots=True, kw_only=True)
class ChoiceReport(Report):
    """
    Report of a run of the choice suite.

    Attributes:
        family: The family of the cases: ``random``, ``skewed``, ``layers`` or ``recorded``.
        seed: Seed of the drawn cases; 0 for recorded ones.
        failed: Cases that could not be measured, and why.
        lost: The loss of each rule of selection, the worst first; see `judge`.
    """

    SUITES: ClassVar[tuple[str, ...]] = (NAME,)
    SCHEMA: ClassVar[Mapping[str, Any]] = {"schema": 1}

    family: str
    seed: int
    found: list[Measured] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    lost: dict[str, list[Regret]] = field(default_factory=dict)

    @property
    def failures(self) -> list[str]:
        """Cases that could not be measured: one line each."""
        return [f"{case}: {reason}" for case, reason in self.failed.items()]

    def to_json(self) -> dict[str, Any]:
        """
        Return the report as a JSON object, in which times refer to kernels by their index in a list
        of names.
        """
        names = sorted({name for each in self.found for name in each.times_us})
        number = {name: place for place, name in enumerate(names)}
        return {
            "suite": NAME,
            **self.SCHEMA,
            "family": self.family,
            "seed": self.seed,
            "conditions": self.conditions,
            "failures": self.failed,
            "kernels": names,
            "found": [
                {
                    **each.case.to_json(),
                    "times_us": [[number[name], us] for name, us in each.times_us.items()],
                    "took_s": each.took_s,
                }
                for each in self.found
            ],
        }

    @classmethod
    def decoded(cls, document: Mapping[str, Any]) -> Self:
        """Return the object from the document that `to_json` returned."""
        names = [str(name) for name in document["kernels"]]
        return cls(
            family=str(document["family"]),
            seed=int(document["seed"]),
            conditions={str(k): str(v) for k, v in document["conditions"].items()},
            found=[_measured(each, names) for each in document["found"]],
            failed={str(k): str(v) for k, v in document["failures"].items()},
        )

    def differs(self, other: ChoiceReport) -> str:
        """
        Return a text that says which family and seed, or which routings, this report has that
        `other` has not; empty if all three are the same. Nothing else is compared.
        """
        if (self.family, self.seed) != (other.family, other.seed):
            return f"--of {self.family} --seed {self.seed}; go on with those, or save elsewhere"
        ours, theirs = (each.conditions.get("routings") for each in (self, other))
        return f"routings {ours}, not {theirs}; save elsewhere" if ours != theirs else ""

    def judge(self, arch: Arch) -> None:
        """
        Set `lost` to the loss of each rule of selection relative to the best candidate of each
        case.

        Args:
            arch: Target of the kernels that are chosen; the device is the report's.
        """
        for rule, use_measured in _RULES.items():

            def choose(case: Case, use_measured: bool = use_measured) -> str:
                device = self.conditions.get("gpu")
                choice = select(case.asked, arch, device=device, use_measured=use_measured)
                return str(choice.config.name(arch))

            found = regrets(self, choose)
            self.lost[rule] = sorted(found, key=lambda each: each.lost, reverse=True)

    def summary(self) -> dict[str, Any]:
        """Return the loss of every rule, and its worst cases."""
        return {
            "rules": {rule: summary(found) for rule, found in self.lost.items()},
            "worst": {
                rule: [each.to_json() for each in found[:_WORST]]
                for rule, found in self.lost.items()
            },
        }

    def tables(self) -> Iterator[Table]:
        """Yield a table of the loss of every rule, then of its worst cases one by one."""
        sums = {rule: summary(found) for rule, found in self.lost.items()}
        yield Table(
            title="what is lost",
            columns=("CHOSEN BY", "CASES", "MEAN", "WORST", "BEYOND 2 %", "BEYOND 8 %"),
            rows=tuple(
                (
                    rule,
                    f"{each['cases']:.0f}",
                    f"{each['mean']:.2%}",
                    f"{each['worst']:.1%}",
                    f"{each['beyond_2']:.0f}",
                    f"{each['beyond_8']:.0f}",
                )
                for rule, each in sums.items()
            ),
        )
        for rule, found in self.lost.items():
            yield Table(
                title=f"the worst by {rule}",
                columns=("LOST", "BEST (us)", "CASE", "CHOSEN", "BEST"),
                rows=tuple(_cells(each) for each in found[:_WORST]),
                texts=("CASE", "CHOSEN", "BEST"),
            )

    def save(self, path: Path) -> None:
        """Write the report to `path`, a line for each case; raises as `Report.save`."""
        document = self.to_json()
        rows = [json.dumps(each, separators=(",", ":")) for each in document.pop("found")]
        head = json.dumps(document, indent=1).removesuffix("\n}")
        write(f'{head},\n "found": [\n' + ",\n".join(rows) + "\n]\n}\n", path)


def _measured(document: Mapping[str, Any], names: list[str]) -> Measured:
    times = {names[int(place)]: float(us) for place, us in document["times_us"]}
    if not min(times.values(), default=0.0) > 0:
        raise ValueError("times are positive, and there is one of each candidate")
    return Measured(
        case=Case.from_json(dict(document)), times_us=times, took_s=float(document["took_s"])
    )


def regrets(report: ChoiceReport, choose: Callable[[Case], str]) -> Iterator[Regret]:
    """
    Yield the loss of `choose`, which names a kernel for a case; cases without a measurement of that
    kernel are skipped.
    """
    for each in report.found:
        name = choose(each.case)
        if name in each.times_us:
            yield Regret(measured=each, chosen=name)


def summary(found: list[Regret]) -> dict[str, float]:
    """
    Return the number of cases, the mean and the largest loss, and in how many cases the loss
    exceeds 2 % and 8 %.
    """
    lost = [each.lost for each in found]
    return {
        "cases": len(lost),
        "mean": statistics.fmean(lost) if lost else 0.0,
        "worst": max(lost, default=0.0),
        "beyond_2": sum(each > 0.02 for each in lost),
        "beyond_8": sum(each > 0.08 for each in lost),
    }


def _cells(regret: Regret) -> tuple[str, ...]:
    measured = regret.measured
    return (
        f"{regret.lost:.1%}",
        f"{measured.times_us[measured.best]:.1f}",
        str(measured.case),
        _shape(regret.chosen),
        _shape(measured.best),
    )


def _shape(name: str) -> str:
    """
    Return the part of a kernel's name that distinguishes it from other kernels of its problem.
    """
    config, _ = GroupedGemmConfig.parse(name)
    return config.short + f" split {config.schedule.split_k}" * (config.schedule.split_k > 1)
