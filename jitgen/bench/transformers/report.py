# SPDX-License-Identifier: Apache-2.0
"""What was found of each piece of work, and what it is to show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from jitgen.bench.protocol import Row
from jitgen.bench.report import OURS, Record, Report, Table
from jitgen.bench.transformers import NAME
from jitgen.support.frozen import frozen

EAGER, GROUPED = "eager", "grouped_mm"
OURS_FP8, GROUPED_FP8 = "jitgen-fp8", "grouped_mm-fp8"

SIDES = (EAGER, GROUPED, OURS, GROUPED_FP8, OURS_FP8)
"""Every side, transformers' own first: the errors of ours are held against those."""

FP8_LIMIT, BF16_LIMIT = 0.08, 0.05
"""Largest errors of FP8 experts, which quantise tokens, and of others."""

OF_GROUPED = 1.5
"""Most that ours in bfloat16 may be off, as a part of what grouped_mm is."""


@frozen
class Work(Record):
    """
    What a model does.

    Attributes:
        texts: Texts at once.
        prompt: Tokens of each that are there.
        new: Tokens of each that are generated; 0: prefill alone.
    """

    texts: int
    prompt: int
    new: int = 0

    def __str__(self) -> str:
        """Return what tables call it: ``generate 32 x 32 after 128``."""
        if not self.new:
            return f"prefill {self.texts} x {self.prompt}"
        return f"generate {self.texts} x {self.new} after {self.prompt}"

    @property
    def tokens(self) -> int:
        """Tokens that count: the generated ones, or those of the prompts."""
        return self.texts * (self.new or self.prompt)

    @property
    def at_once(self) -> tuple[int, ...]:
        """Tokens that a layer has at once: in prefill, and for each new one."""
        prefill = self.texts * self.prompt
        return (prefill, self.texts) if self.new else (prefill,)


WORKS = (
    Work(texts=1, prompt=128, new=32),
    Work(texts=32, prompt=128, new=32),
    Work(texts=1, prompt=4096),
)


@frozen
class Measured(Record):
    """
    One model with one piece of work.

    Attributes:
        model: Its name.
        work: What it did.
        rates: Tokens a second of each side, from medians.
        spreads: How far best and worst time lie apart, as parts of the median.
        errors: How far each side's logits are from those of float32 experts, as a part of their
            norm, in the median of tokens.
        missing: Sides that are not there, and why.
    """

    JSON: ClassVar[Mapping[str, str]] = {
        "model": "model",
        "work": "work",
        "tokens_per_s": "rates",
        "spreads": "spreads",
        "errors": "errors",
        "missing": "missing",
    }

    model: str
    work: Work
    rates: dict[str, float] = field(default_factory=dict)
    spreads: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def case(self) -> str:
        """What tables call it."""
        return f"{self.model}, {self.work}"


@dataclass(slots=True, kw_only=True)
class TransformersReport(Report):
    """A run of the suite."""

    SUITES: ClassVar[tuple[str, ...]] = (NAME,)
    JSON: ClassVar[Mapping[str, str]] = {"conditions": "conditions", "cases": "found"}

    found: list[Measured] = field(default_factory=list)

    def targets(self) -> Iterator[Row]:
        """Yield how fast ours is beside grouped_mm: at least as fast."""
        for each in self.found:
            for side in (OURS, OURS_FP8):
                if {OURS, GROUPED, side} <= each.rates.keys():
                    yield Row(
                        suite=NAME,
                        what=f"{side} over {GROUPED}: {each.case}",
                        value=each.rates[side] / each.rates[GROUPED],
                        unit="x",
                        budget=1.0,
                        is_rate=True,
                    )

    def tables(self) -> Iterator[Table]:
        """Yield tokens a second with errors behind them, and who was left out."""
        yield Table(
            title="tokens a second, and how far logits are from those of float32 experts",
            columns=("model", "work", *SIDES),
            rows=tuple(
                (each.model, str(each.work), *(_cell(each, side) for side in SIDES))
                for each in self.found
            ),
            texts=("model", "work"),
        )

    def remarks(self) -> Iterator[str]:
        """Yield which sides were left out of which piece of work."""
        for each in self.found:
            for side, why in each.missing.items():
                yield f"{each.case}: {side} is left out: {why}"


def _cell(found: Measured, side: str) -> str:
    if side not in found.rates:
        return "-"
    return f"{found.rates[side]:,.0f} ({found.errors[side]:.1e})"


def limit(side: str, errors: dict[str, float]) -> float:
    """Return the largest error of a side: for ours in bfloat16, what grouped_mm's allows."""
    if side in {OURS_FP8, GROUPED_FP8}:
        return FP8_LIMIT
    return OF_GROUPED * errors[GROUPED] if side == OURS and GROUPED in errors else BF16_LIMIT
