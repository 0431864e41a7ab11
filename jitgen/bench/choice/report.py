# SPDX-License-Identifier: Apache-2.0
"""What was measured, in a file; and what a rule of choosing loses there."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from jitgen.bench import files
from jitgen.bench.choice import NAME
from jitgen.bench.choice.cases import Case
from jitgen.errors import ConfigError
from jitgen.support.frozen import frozen
from jitgen.support.text import shown

SCHEMA = 1


@frozen
class Timed:
    """
    The candidates of one case.

    Attributes:
        case: The problem and its rows.
        times_us: Microseconds of each candidate, by name.
        took_s: Seconds that all of it took, operands and checks included.
    """

    case: Case
    times_us: Mapping[str, float] = field(hash=False)
    took_s: float = 0.0

    @property
    def best(self) -> str:
        """Name of the fastest."""
        return min(self.times_us, key=self.times_us.__getitem__)


@frozen
class Regret:
    """
    What a choice costs.

    Attributes:
        timed: The case.
        chosen: Name of the kernel that was chosen.
    """

    timed: Timed
    chosen: str

    @property
    def lost(self) -> float:
        """By what part of the best time it is slower."""
        times = self.timed.times_us
        return times[self.chosen] / times[self.timed.best] - 1

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        times = self.timed.times_us
        return {
            "case": str(self.timed.case),
            "chosen": self.chosen,
            "chosen_us": times[self.chosen],
            "best": self.timed.best,
            "best_us": times[self.timed.best],
            "regret": self.lost,
        }


@dataclass(slots=True, kw_only=True)
class ChoiceReport:
    """
    What was found.

    Attributes:
        family: Which cases: ``random``, ``skewed`` or ``recorded``.
        seed: What they were drawn with; 0 where nothing was.
        conditions: What figures depend on.
        found: What was measured.
        failures: Cases that could not be, and why.
    """

    family: str
    seed: int
    conditions: dict[str, str] = field(default_factory=dict)
    found: list[Timed] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values: names of kernels once, times by their numbers."""
        names = sorted({name for each in self.found for name in each.times_us})
        number = {name: place for place, name in enumerate(names)}
        return {
            "suite": NAME,
            "schema": SCHEMA,
            "family": self.family,
            "seed": self.seed,
            "conditions": self.conditions,
            "failures": self.failures,
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

    def save(self, path: Path) -> None:
        """Write the report to `path`, a line for each case; raises as `files.write_text`."""
        document = self.to_json()
        rows = [json.dumps(each, separators=(",", ":")) for each in document.pop("found")]
        head = json.dumps(document, indent=1).removesuffix("\n}")
        files.write_text(f'{head},\n "found": [\n' + ",\n".join(rows) + "\n]\n}\n", path)

    @classmethod
    def read(cls, path: Path) -> Self:
        """
        Return the report in `path`.

        Raises:
            ConfigError: There is none, or none of this version.
        """
        return files.read(path, cls.from_json)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """
        Return what `to_json` wrote.

        Raises:
            ConfigError: It is something else.
        """
        if (document.get("suite"), document.get("schema")) != (NAME, SCHEMA):
            raise ConfigError(f"no report of {NAME} of this version")
        try:
            names = [str(name) for name in document["kernels"]]
            return cls(
                family=str(document["family"]),
                seed=int(document["seed"]),
                conditions={str(k): str(v) for k, v in document["conditions"].items()},
                found=[_timed(each, names) for each in document["found"]],
                failures={str(k): str(v) for k, v in document["failures"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ConfigError(
                f"a report of {NAME} that is damaged: {type(error).__name__}: {shown(str(error))}"
            ) from None


def _timed(document: Mapping[str, Any], names: list[str]) -> Timed:
    times = {names[int(place)]: float(us) for place, us in document["times_us"]}
    if not min(times.values(), default=0.0) > 0:
        raise ValueError("times are positive, and there is one of each candidate")
    return Timed(
        case=Case.from_json(dict(document)), times_us=times, took_s=float(document["took_s"])
    )


def regrets(report: ChoiceReport, choose: Callable[[Case], str]) -> Iterator[Regret]:
    """Yield what `choose`, which names a kernel, loses; not where that one was not measured."""
    for each in report.found:
        name = choose(each.case)
        if name in each.times_us:
            yield Regret(timed=each, chosen=name)


def summary(found: list[Regret]) -> dict[str, float]:
    """Return the mean and the worst of what is lost, and in how many cases it is 2 and 8 %."""
    lost = [each.lost for each in found]
    return {
        "cases": len(lost),
        "mean": statistics.fmean(lost) if lost else 0.0,
        "worst": max(lost, default=0.0),
        "beyond_2": sum(each > 0.02 for each in lost),
        "beyond_8": sum(each > 0.08 for each in lost),
    }
