# SPDX-License-Identifier: Apache-2.0
"""Options and argument types that several commands share."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from jitgen.cli.output import Output
from jitgen.errors import ConfigError
from jitgen.model import Arch
from jitgen.settings import parse_size

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


ARCH = ArchType()
SIZE = SizeType()


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
