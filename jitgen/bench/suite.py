# SPDX-License-Identifier: Apache-2.0
"""A suite that keeps a report: the options of its command, and how it measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from jitgen.bench.report import Report
from jitgen.errors import ConfigError
from jitgen.support.frozen import frozen

Given = Mapping[str, Any]
"""
The options of a command, by the names of its parameters, without those that the suite does not
have.
"""


@frozen
class Suite:
    """
    A suite that keeps a report.

    Attributes:
        name: The word of the command line.
        report: The class of its reports.
        about: Text of the command's help below the suite's line.
        options: The options of the command in the order of its help, by their names in
            `jitgen.cli.bench`.
        step: The word for a step in the help, for example case.
        measuring: Parameters of a measurement, which are not allowed together with ``--from``.
        refusal: The message if one of them is given with ``--from``.
        steps: Returns the steps to measure; raises ConfigError.
        run: Measures steps and adds the results to a report; yields each step when it is done. Its
            last argument saves the report.
        new: Returns an empty report.
        kernels: Returns the names of the kernels that steps need; None: they cannot be listed.
        choices: The allowed values of options with a choice.
        rounds: The default number of rounds.
        listing: Further fields of the JSON that lists kernels.
        judge: Compares a report with something else before it is shown; None: there is no
            comparison.
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
        Return the report in `path`, to which measurements are added; a new report if there is no
        such file.

        Raises:
            ConfigError: The file contains no report of the suite, or one of other cases.
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
            ConfigError: The file contains no report, or one of another suite.
        """
        report = self.report.read(path)
        if report.suite != self.name:
            raise ConfigError(f"{path} is a report of another suite: jitgen bench {report.suite}")
        return report

    def measure(self, report: Report, steps: Sequence[Any], given: Given) -> Iterator[Any]:
        """Measure `steps`, saving the report to ``--save``; yields each step when it is done."""
        path = given.get("save_at")

        def save() -> None:
            if path is not None:
                report.save(path)

        for step in self.run(report, steps, given, save):
            save()
            yield step
        save()  # now with values known only at the end: clocks, the copy rate
