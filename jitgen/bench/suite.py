# SPDX-License-Identifier: Apache-2.0
"""A suite that keeps a report: what its command takes, and how it measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from jitgen.bench.report import Report
from jitgen.errors import ConfigError
from jitgen.support.frozen import frozen

Given = Mapping[str, Any]
"""The options of a command, by the names of its parameters; those that a suite lacks are absent."""


@frozen
class Suite:
    """
    A suite that keeps a report.

    Attributes:
        name: The word of the command line.
        report: The class of its reports.
        about: What help says below the line of the suite.
        options: What the command takes, in the order of its help: parts of names of
            `jitgen.cli.bench`.
        step: What a step is called there: a case, or a step.
        measuring: Parameters that ask for a measurement, and do not go with ``--from``.
        refusal: What ``--from`` says where one is given.
        steps: Returns what to measure. Raises ConfigError.
        run: Measures steps and adds what was found to a report; yields each step once it is done.
            Its last argument keeps the report.
        new: Returns a report of nothing yet.
        kernels: Returns the names of the kernels that steps need; None: nothing lists them.
        choices: For options with a choice what may be chosen.
        rounds: How many rounds there are if nothing is said.
        listing: What the document of that list says besides.
        judge: Compares what a report holds with something else before it is shown; None: nothing.
    """

    name: str
    report: type[Report]
    about: str
    options: tuple[str, ...]
    step: str = "case"
    measuring: tuple[str, ...] = ()
    refusal: str = "--from measures nothing: it goes with --report and --json"
    steps: Callable[[Given], Sequence[Any]]
    run: Callable[[Any, Sequence[Any], Given, Callable[[], None]], Iterable[Any]]
    new: Callable[[Given], Report]
    kernels: Callable[[Sequence[Any], Given], list[str]] | None = None
    choices: Mapping[str, Iterable[str]] = field(default_factory=dict)
    rounds: int = 5
    listing: Mapping[str, Any] = field(default_factory=dict)
    judge: Callable[[Any, Given], None] | None = None

    def begin(self, path: Path | None, given: Given) -> Report:
        """
        Return the report in `path`, to be continued; a new one if there is no such file.

        Raises:
            ConfigError: The file holds no such report, or one of something else.
        """
        report = self.new(given)
        if path is None or not path.exists():
            return report
        found = self.report.read(path)
        if reason := found.differs(report):
            raise ConfigError(f"{path} is of {reason}")
        return found

    def read(self, path: Path) -> Report:
        """
        Return the report of the suite in `path`.

        Raises:
            ConfigError: The file holds none, or one of another suite.
        """
        report = self.report.read(path)
        if report.suite != self.name:
            raise ConfigError(f"{path} is a report of another suite: jitgen bench {report.suite}")
        return report

    def measure(self, report: Report, steps: Sequence[Any], given: Given) -> Iterator[Any]:
        """Measure `steps`, keeping the report in ``--save``; yields each once it is done."""
        path = given.get("save_at")

        def save() -> None:
            if path is not None:
                report.save(path)

        for step in self.run(report, steps, given, save):
            save()
            yield step
        save()  # now with values known only at the end: clocks, the copy rate
