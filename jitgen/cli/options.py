# SPDX-License-Identifier: Apache-2.0
"""Options and argument types that several commands share."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from jitgen.cli.output import Output
from jitgen.config import Arch, DType, Layout, ScaleGranularity
from jitgen.errors import ConfigError
from jitgen.ops.protocol import Operation, operation
from jitgen.settings import MAX_WAIT_S, parse_size

P = ParamSpec("P")
R = TypeVar("R")


def with_output(function: Callable[Concatenate[Output, P], R]) -> Callable[..., R]:
    """Give a command the option ``--json``, and the Output that goes with it as first argument."""

    @click.option("--json", "is_json", is_flag=True, help="Print one JSON document.")
    @functools.wraps(function)
    def command(*arguments: Any, is_json: bool, **options: Any) -> R:
        return function(Output(is_json=is_json), *arguments, **options)

    return command


class ArchType(click.ParamType[Arch]):
    """A target by its name."""

    name = "arch"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Arch:
        """Return the target, or fail with the names that are allowed."""
        try:
            return Arch.parse(str(value))
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class Word(click.Choice[str]):
    """A member of an enumeration, by its value."""

    def __init__(self, kind: type[StrEnum]) -> None:
        super().__init__([member.value for member in kind])
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the member, or fail with the values that are allowed."""
        return self._kind(super().convert(value, param, ctx))


class SizeType(click.ParamType[int]):
    """A number of bytes, for example ``500MiB``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes, or fail with what is allowed."""
        try:
            return parse_size(str(value))
        except ValueError as error:
            self.fail(f"{value!r} is not {error}", param, ctx)


class SecondsType(click.FloatRange):
    """How long something may take: a second at least, and a number, which ``nan`` is not."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(1, MAX_WAIT_S)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds, or fail with what is allowed."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return seconds


class OperationType(click.ParamType[Operation]):
    """An operation by its name."""

    name = "operation"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Operation:
        """Return the operation, or fail with the names that are allowed."""
        if isinstance(value, Operation):
            return value
        try:
            return operation(str(value))
        except ConfigError as error:
            self.fail(str(error), param, ctx)


def with_sizes(
    *, is_required: bool, scales: Iterable[str] = ScaleGranularity
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Give a command an option for each field of a `jitgen.Problem`, under the field's name."""

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        for option in reversed(
            (
                _size("--groups", "-g", "Number of groups (experts).", is_required),
                _size("--m", "-m", "Rows of a, over all groups.", is_required),
                _size("--n", "-n", "Columns of the output.", is_required),
                _size("--k", "-k", "Length of the sums.", is_required),
                _word("--layout", "layout", Layout, "ragged"),
                _scales(scales),
                _word("--dtype", "a_dtype", DType, "e4m3"),
                _word("--out-dtype", "out_dtype", DType, "bf16"),
            )
        ):
            command = option(command)
        return command

    return decorate


def _size(name: str, short: str, text: str, is_required: bool) -> Callable[..., Any]:
    return click.option(name, short, type=int, required=is_required, help=text)


def _scales(words: Iterable[str]) -> Callable[..., Any]:
    return click.option(
        *("--scales", "scale_granularity"),
        type=click.Choice([str(word) for word in words]),
        default="block128",
        show_default=True,
    )


def _word(name: str, field: str, kind: type[StrEnum], default: str) -> Callable[..., Any]:
    return click.option(name, field, type=Word(kind), default=default, show_default=True)


ARCH = ArchType()
OPERATION = OperationType()
SIZE = SizeType()
SECONDS = SecondsType()


def confirm(question: str, *, is_agreed: bool) -> bool:
    """
    Return whether something may be destroyed; ask, unless `is_agreed`.

    Raises:
        click.UsageError: There is nobody to ask.
    """
    if is_agreed:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError("standard input is no terminal, so nobody can be asked; add --yes")
    return click.confirm(question, err=True)
