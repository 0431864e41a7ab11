# SPDX-License-Identifier: Apache-2.0
"""What an attack found: counts, and one line for each case that went wrong or is worth a line."""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

_HERE = re.compile(rf"{re.escape(str(Path(__file__).parents[2]))}/|/(?:dev/shm|tmp)/[^/\s'\"]+")
"""Where this ran, which matters only here: the checkout, folders that exist for a case."""


@dataclass
class Stage:
    """
    One kind of attack.

    Attributes:
        name: Its name.
        goal: Statement that must hold under the attack.
        counts: Counts by their name: cases, failures, and others.
        lines: One line for each situation, where there are few; where there are many, for those
            that went wrong.
        failures: Descriptions of what went wrong.
        seconds: Duration of the stage.
    """

    name: str
    goal: str
    counts: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    _start: float = field(default_factory=time.perf_counter)

    def case(self, what: str, outcome: str, *, is_good: bool = True) -> None:
        """Note one of few situations, and what came of it."""
        self.counts["cases"] += 1
        self.lines.append(f"{'ok  ' if is_good else 'BAD '} {what}: {outcome}")
        if not is_good:
            self.fail(f"{what}: {outcome}")

    def fail(self, text: str) -> None:
        """Note that something went wrong."""
        self.counts["failures"] += 1
        if len(self.failures) < 50:
            self.failures.append(text)

    def end(self) -> Stage:
        """Note how long the stage took, and return it."""
        self.seconds = time.perf_counter() - self._start
        return self

    @property
    def ok(self) -> bool:
        """Whether no case went wrong, and at least one was tried."""
        return not self.failures and sum(self.counts.values()) > 0

    def text(self) -> str:
        """Return the stage as text for people."""
        counts = ", ".join(f"{count:,} {name}" for name, count in sorted(self.counts.items()))
        verdict = "ok" if self.ok else "FAILED"
        head = f"{self.name}: {verdict} in {self.seconds:.1f} s; {counts}\n  goal: {self.goal}"
        body = [f"  {line}" for line in self.lines]
        told = "".join(self.lines)
        body += [f"  failure: {text}" for text in self.failures if text not in told]
        return _HERE.sub("", "\n".join([head, *body]))
