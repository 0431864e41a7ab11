# SPDX-License-Identifier: Apache-2.0
"""
Common parts of rules: one template or two, sizes that are all accepted, a fixed note on the cost
model; and the rules of configs that consist of some words and a tiling.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from jitgen.config.config import Config, Part, TiledConfig, members_of
from jitgen.config.problem import SizedProblem
from jitgen.targets.protocol import Candidate, Derived, Device, Template, legal_of
from jitgen.targets.sums import SumOrder
from jitgen.templates import ROOT

ConfigT = TypeVar("ConfigT", bound=Config)
TiledT = TypeVar("TiledT", bound=TiledConfig)
ProblemT = TypeVar("ProblemT", bound=SizedProblem)


ON_PAPER = "the model of an {device} is on paper: nothing was measured"
"""Note on the cost models of devices that no kernel was timed on."""


class Cost(NamedTuple):
    """
    Predicted cost of a config for a problem.

    Attributes:
        us: Microseconds of the call.
        waves: Number of tiles that the busiest CTA computes.
        padding_ratio: Work done over work needed.
    """

    us: float
    waves: int
    padding_ratio: float = 1.0


class BaseRules(Generic[ConfigT, ProblemT]):
    """
    The part of `jitgen.targets.protocol.Rules` that is the same for most operations.

    Args:
        arch: The target; empty for the one that the rules were written for.

    Attributes:
        arch: Name of that target.
        entry: The template that kernels are rendered from, below jitgen's templates.
        second: Another template, and a function that says whether a config's kernel is rendered
            from it; None: there is none.
        note: What the cost model was not fitted to; ``{device}`` is the device's name. Empty if it
            was fitted to all problems.
        limiter: What bounds its kernels, as `Candidate.limiter` has it.
    """

    arch: str
    generation = 1
    alignment = 1
    row_edges: tuple[int, ...] = (1,)
    sums: SumOrder
    entry: ClassVar[str]
    second: ClassVar[tuple[str, Callable[[Any], bool]] | None] = None
    note = ""
    limiter = "stream"

    def __init__(self, arch: str = "") -> None:
        self.arch = arch or self.arch

    def derive(self, config: ConfigT) -> Derived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        raise NotImplementedError

    def cost(self, problem: ProblemT, config: ConfigT, device: Device, num_sms: int) -> Cost:
        """Estimate the time of `config` for `problem` on `num_sms` SMs of `device`."""
        raise NotImplementedError

    def predict(
        self, problem: ProblemT, config: ConfigT, device: Device, num_sms: int
    ) -> Candidate:
        """Estimate the time of `config` for `problem` on `num_sms` SMs of `device`."""
        cost = self.cost(problem, config, device, num_sms)
        return Candidate(
            config=config,
            cost=cost.us,
            padding_ratio=cost.padding_ratio,
            waves=cost.waves,
            traffic_bytes=problem.traffic_bytes,
            limiter=self.limiter,
        )

    def confidence_note(self, problem: ProblemT, device: Device) -> str:  # others look at it
        """Return a note where the cost model was not fitted, else an empty text."""
        return self.note.format(device=device.name)

    def check_sizes(self, problem: ProblemT) -> None:
        """Accept any size: for kernels that read existing values one by one."""

    def templates(self) -> tuple[Template, ...]:
        """Return the templates of these kernels."""
        if self.second is None:
            return (Template(root=ROOT, entry=self.entry),)
        return _either(self.entry, *self.second)


@cache
def _either(entry: str, second: str, takes: Callable[[Any], bool]) -> tuple[Template, ...]:
    return (
        Template(root=ROOT, entry=entry, takes=lambda config: not takes(config)),
        Template(root=ROOT, entry=second, takes=takes),
    )


class TiledRules(BaseRules[TiledT, ProblemT]):
    """
    Rules of configs that consist of a kind, the fields that say what is computed, and a tiling,
    which shares the work.

    Attributes:
        usual: A config of the operation with the default tiling.
    """

    usual: TiledT

    def check_kind(self, config: TiledT) -> None:
        """Accept every kind; a subclass raises a Refusal for fields that do not go together."""

    def legal_kind(self, config: TiledT) -> TiledT:
        """Return `config`; a subclass changes fields of the kind that do not go together."""
        return config

    def kinds(self) -> Iterator[TiledT]:
        """Yield a config of every kind, legal or not, with the default tiling."""
        yield from kinds_of(self.usual)

    def kind_of(self, problem: ProblemT) -> TiledT:
        """Return the kind of every kernel for `problem`, with the default tiling."""
        names = (spec.name for spec in fields(self.usual))
        same: dict[str, object] = {n: getattr(problem, n) for n in names if hasattr(problem, n)}
        return replace(self.usual, **same)

    def legal(self, kind: TiledT, tilings: Iterable[Part]) -> tuple[TiledT, ...]:
        """Return the legal configs of `kind` with `tilings`, in their order."""
        return legal_of((tiled(kind, tiling) for tiling in tilings), self)


_TiledT = TypeVar("_TiledT", bound=TiledConfig)


def tiled(config: _TiledT, tiling: Part) -> _TiledT:
    """Return `config` with another tiling."""
    return replace(config, tiling=tiling)


def kinds_of(usual: _TiledT) -> Iterator[_TiledT]:
    """Yield `usual` with every combination of its enumerations and booleans, legal or not."""
    values: dict[str, tuple[object, ...]] = {}
    for spec in fields(usual):
        kind = spec.metadata["type"]
        if kind is bool:
            values[spec.name] = (False, True)
        elif kind is not int and not issubclass(kind, Part):
            values[spec.name] = members_of(spec.metadata)
    for chosen in itertools.product(*values.values()):
        yield replace(usual, **dict(zip(values, chosen, strict=True)))
