# SPDX-License-Identifier: Apache-2.0
"""
The kernels that are allowed for a call whose rows must not depend on the batch.

The selector chooses by sizes, so the kernel depends on the batch. With invariant numerics, it
chooses only among kernels that add up in one fixed order of their target (`jitgen.targets.sums`).
So every row has the same bits, no matter what is measured, predicted or missing. An explicit config
must fulfil the same condition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple, TypeVar

from jitgen.config import Arch, Config, Numerics
from jitgen.config.problem import Problem
from jitgen.errors import InputError
from jitgen.settings import settings
from jitgen.targets.legality import rules
from jitgen.targets.sums import SumOrder

_Problem = TypeVar("_Problem", bound=Problem)


class Kept(NamedTuple):
    """
    Configs that keep an order of summation, and reasons for those that do not.

    Attributes:
        configs: Configs that keep the order, in the order in which they were given.
        left_out: The other configs, each with the reason.
    """

    configs: tuple[Config, ...]
    left_out: dict[Config, str]


def require_word(numerics: object) -> None:
    """
    Check that `numerics` is one of the words that the argument of this name allows besides None,
    which callers do not pass.

    Raises:
        InputError: It is something else.
    """
    if numerics not in tuple(Numerics):
        words = ", ".join(Numerics)
        raise InputError("numerics", f"must be one of {words}, or None (got {numerics!r})")


def is_invariant(numerics: Numerics | str | None) -> bool:
    """Say whether numerics are invariant: by `numerics`, or else by JITGEN_NUMERICS."""
    return Numerics(numerics or settings.numerics) is Numerics.INVARIANT


def regardless(problem: _Problem) -> _Problem:
    """Return `problem` with numerics that allow every kernel, because all kernels are measured."""
    return replace(problem, numerics=Numerics.FAST)  # a grouped GEMM's has it


def keeping(configs: Iterable[Config], order: SumOrder) -> Kept:
    """Return the `configs` that add up in `order`, and for each of the others the reason."""
    departures = {config: order.departure(config) for config in configs}
    return Kept(
        configs=tuple(config for config, departure in departures.items() if not departure),
        left_out={
            config: f"numerics=invariant: {departure}"
            for config, departure in departures.items()
            if departure
        },
    )


def require_order(config: Config, arch: Arch, numerics: Numerics | str | None) -> None:
    """
    Check that `config` is allowed in a call with these `numerics`.

    Raises:
        InputError: It adds up in another order.
    """
    order = rules(arch, config.op).sums
    if not is_invariant(numerics):
        return
    if not (departure := order.departure(config)):
        return
    raise InputError(
        "config",
        f"must add up as every {config.op} kernel of {arch} does that numerics=invariant allows, "
        f"{order.words} (got {config.name(arch)}: {departure}); leave config out, have one "
        f"that jitgen configs --numerics invariant --arch {arch} lists, or numerics='fast'",
    )
