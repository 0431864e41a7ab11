# SPDX-License-Identifier: Apache-2.0
"""Options and argument types that several commands share."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import reduce, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from jitgen.cli.output import Output
from jitgen.config import Arch, BLayout, DType, Layout, ScaleGranularity
from jitgen.config.format import IN_ROWS
from jitgen.config.operation import operation
from jitgen.config.plugins import OPERATIONS
from jitgen.errors import ConfigError
from jitgen.plans.shard import Shard
from jitgen.support.text import shown
from jitgen.support.values import MAX_WAIT_S, parse_size

P = ParamSpec("P")
R = TypeVar("R")

_MOST_DIGITS = 20
"""
Most digits of a number. No size has more, and Python refuses to parse thousands of digits, with an
error of its own.
"""


def with_output(function: Callable[Concatenate[Output, P], R]) -> Callable[..., R]:
    """Give a command the option ``--json``, and pass it the Output as first argument."""

    @click.option("--json", "is_json", is_flag=True, help="Print one JSON document.")
    @wraps(function)
    def command(*arguments: Any, is_json: bool, **options: Any) -> R:
        return function(Output(is_json=is_json), *arguments, **options)

    return command


def stacked(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that gives a command several options, the first one first."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


class Parsed(click.ParamType[Any]):
    """
    Type of an argument whose text a function parses.

    Args:
        name: Name of the value in the help.
        parse: Returns the value; raises ConfigError or ValueError, whose message is printed.
    """

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value, or fail with the message of the error that the function raises."""
        if not isinstance(value, str):
            return value  # a default
        try:
            return self._parse(value)
        except (ConfigError, ValueError) as error:
            self.fail(str(error), param, ctx)


def _archs(text: str) -> tuple[Arch, ...]:
    """Parse targets that are separated by commas; return each once."""
    return tuple(dict.fromkeys(Arch.parse(part.strip()) for part in text.split(",")))


def _bytes(text: str) -> int:
    """Parse a size such as ``500MiB``; return bytes."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not {error}") from None


class Word(click.Choice[str]):
    """Type of an argument that is the value of a member of an enumeration."""

    def __init__(self, kind: type[StrEnum]) -> None:
        super().__init__([member.value for member in kind])
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the member, or fail with the allowed values."""
        return self._kind(super().convert(value, param, ctx))


class NumberType(click.FloatRange):
    """Type of a number from `least` to `most`, both allowed; ``nan`` is refused."""

    def __init__(self, name: str, least: float, most: float | None = None) -> None:
        super().__init__(least, most)
        self.name = name

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number, or fail with the allowed range."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is no number of {self.name}", param, ctx)
        return number


def with_stage(**texts: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """
    Give a command a flag for each name in `texts`, which has their help; at most one may be given,
    and its name, or None, is the argument `stage`.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        @wraps(function)
        def command(*arguments: Any, **options: Any) -> R:
            chosen = [name for name in texts if options.pop(name)]
            if len(chosen) > 1:
                raise click.UsageError(f"--{' and --'.join(chosen)}: give one of them")
            return function(*arguments, stage=chosen[0] if chosen else None, **options)

        flags = (click.option(f"--{name}", is_flag=True, help=texts[name]) for name in texts)
        made: Callable[..., R] = stacked(*flags)(command)
        return made

    return decorate


def with_sizes(*, is_required: bool) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """
    Give a command options for fields of a `GroupedGemmProblem`, as arguments of the fields' names.

    There are none for ``min_latency`` and ``numerics``, which only some commands have.
    """
    return stacked(
        _size("--groups", "-g", "Number of groups (experts).", is_required),
        _size("--m", "-m", "Rows of a, over all groups.", is_required),
        _size("--n", "-n", "Columns of the output.", is_required),
        _size("--k", "-k", "Length of the sums.", is_required),
        _word("--layout", "layout", Layout, "ragged"),
        click.option(
            "--scales", "scale_granularity", type=SCALES, default="block128", show_default=True
        ),
        _word("--dtype", "a_dtype", DType, "e4m3"),
        click.option("--b-dtype", type=Word(DType), help="Type of b; default: that of a."),
        _word("--out-dtype", "out_dtype", DType, "bf16"),
        click.option(
            "--a-scales",
            "a_scale_granularity",
            type=Word(ScaleGranularity),
            help="Scales of a; default: those of --scales.",
        ),
        _word("--b-layout", "b_layout", BLayout, "plain"),
        click.option("--bias", is_flag=True, help="Add a bias."),
    )


def with_fields(command: Callable[..., R]) -> Callable[..., R]:
    """
    Give a command the options ``--op`` and ``--set``: an operation, and fields of its problem, as a
    dictionary of texts.
    """
    command = click.option(
        "--set",
        "fields",
        metavar="FIELD=VALUE",
        multiple=True,
        callback=_read_fields,
        help="A field of the operation, by name; may be given several times.",
    )(command)
    return click.option(
        "--op", type=OP, default="grouped_gemm", show_default=True, help="Operation."
    )(command)


def given(*names: str) -> list[str]:
    """Return those of the parameters `names` that the command line has, as it writes them."""
    context = click.get_current_context()
    return [
        max(each.opts, key=len)
        for each in context.command.params
        if each.name in names
        and context.get_parameter_source(each.name) is click.core.ParameterSource.COMMANDLINE
    ]


def refuse(why: str, *names: str) -> None:
    """Raise click.UsageError if the command line has one of the options `names`."""
    if found := given(*names):
        raise click.UsageError(f"{', '.join(found)}: {why}")


def refuse_twice(fields: Mapping[str, str]) -> None:
    """Raise click.UsageError if a field of ``--set`` has an option of its own, which is given."""
    for name in fields:
        if found := given(name):
            raise click.UsageError(f"{name} is given twice: {found[0]} and --set {name}; give one")


def _read_fields(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise click.BadParameter(f"{text!r} is not FIELD=VALUE", ctx, param)
        if name in found:
            raise click.BadParameter(f"{name} is given twice; give one value", ctx, param)
        found[name] = value
    return found


def problem_of(op: str, sizes: dict[str, Any], fields: dict[str, str]) -> Any:
    """
    Return the problem of operation `op` from a command's options: `sizes` are separate options,
    `fields` come from ``--set``. If an option is not given and the operation needs the field, its
    default is used.

    Raises:
        ConfigError: `op` has no such field, or a value is not allowed.
        click.UsageError: A field is missing, or given twice.
    """
    refuse_twice(fields)
    kind, specs = operation(op).problem_type, _fields(op)
    source = click.get_current_context().get_parameter_source
    needed = {name for name, spec in specs.items() if spec.default is dataclasses.MISSING}
    given = {
        name: value
        for name, value in sizes.items()
        if value is not None
        and (name in needed or source(name) is not click.core.ParameterSource.DEFAULT)
    }
    given |= {name: _value(text) for name, text in fields.items()}
    if unknown := sorted(given.keys() - specs.keys()):
        name = unknown[0]
        owners = [other for other in OPERATIONS.names() if name in _fields(other)]
        whose = f": it belongs to {' and '.join(owners)}" if owners else ""
        raise ConfigError(f"{op} has no field {shown(name)}{whose}; {op} has {', '.join(specs)}")
    missing = [name for name in specs if name in needed - given.keys()]
    if missing:
        raise click.UsageError(
            f"{op} needs {', '.join(missing)}; give it as an option, or with --set {missing[0]}=..."
        )
    return kind.from_json(given)


def _fields(op: str) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields of an operation's problem, by their names."""
    return {spec.name: spec for spec in dataclasses.fields(operation(op).problem_type)}


def _value(text: str) -> Any:
    """Convert a text to an integer or a bool if possible; otherwise return it."""
    if text.removeprefix("-").isdecimal() and len(text) <= _MOST_DIGITS:
        return int(text)
    return {"true": True, "false": False}.get(text, text)


def _size(name: str, short: str, text: str, is_required: bool) -> Callable[..., Any]:
    return click.option(name, short, type=int, required=is_required, help=text)


def _word(name: str, field: str, kind: type[StrEnum], default: str) -> Callable[..., Any]:
    return click.option(name, field, type=Word(kind), default=default, show_default=True)


ARCH = Parsed("arch", Arch.parse)
ARCHS = Parsed("arch,...", _archs)
OP = Parsed("op", lambda name: operation(name).name)
SHARD = Parsed("i/n", Shard.parse)
SIZE = Parsed("size", _bytes)
SCALES = click.Choice([*dict.fromkeys(map(str, (*ScaleGranularity, *IN_ROWS)))])
"""Scale granularities of all operations; each operation checks its own."""

DEVICE = click.option(
    "--device",
    metavar="NAME",
    help="Device to choose for, such as 'NVIDIA H200'; default: JITGEN_DEVICE, else the GPU, else "
    "the target's first.",
)
DEVICES = click.option(
    "--device",
    "devices",
    metavar="NAME",
    multiple=True,
    help="Device to choose for; may be repeated. Default: JITGEN_DEVICE, else all of the target.",
)
SECONDS = NumberType("seconds", 1, MAX_WAIT_S)
TIME_LIMIT = click.option(
    "--time-limit",
    type=SECONDS,
    default=300.0,
    show_default=True,
    help="Time limit in seconds for one mode of one problem.",
)


def confirm(question: str, *, is_agreed: bool) -> bool:
    """
    Return whether something may be destroyed; unless `is_agreed`, the user is asked.

    Raises:
        click.UsageError: Standard input is no terminal, so that the user cannot be asked.
    """
    if is_agreed:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError(
            "standard input is no terminal, so no question can be asked; add --yes"
        )
    return click.confirm(question, err=True)
