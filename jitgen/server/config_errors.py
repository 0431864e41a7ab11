# SPDX-License-Identifier: Apache-2.0
"""
A TOML table to a frozen dataclass, with one clear line for each mistake in it.

The field of a section is made by `of`: it says how its value is read, what is allowed, and what it
is for. An operator who wrote three things wrong hears of all three.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, field
from pathlib import Path
from typing import Any, TypeVar

from jitgen.support.text import shown
from jitgen.support.values import parse_size

T = TypeVar("T")
Reader = Callable[[Any], Any]
"""Returns what a TOML value stands for; raises ValueError with what is allowed."""


def of(read: Reader, default: Any, help: str) -> Any:  # noqa: A002 - the word that tables use
    """Return a field that `read` reads, with its default and one line on what it is for."""
    return field(default=default, metadata={"read": read, "help": help})


class ConfigErrors:
    """The mistakes of one document, in the order in which they were found."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, where: str, what: str) -> None:
        """Note that `where` is wrong."""
        self.lines.append(f"{where}: {what}")

    def table(self, kind: type[T], values: Any, where: str) -> T:
        """Return `values` as a `kind`; what is wrong is noted, and has its default."""
        specs = {spec.name: spec for spec in dataclasses.fields(kind)}  # type: ignore[arg-type]
        read: dict[str, Any] = {}
        if not isinstance(values, dict):
            self.add(where, f"must be a table (got {shown(values)})")
            values = {}
        for name, value in values.items():
            place = f"{where}.{name}" if where else name
            if name not in specs or "read" not in specs[name].metadata:
                allowed = ", ".join(n for n, spec in specs.items() if "read" in spec.metadata)
                self.add(place, f"is not known; allowed here: {allowed}")
                continue
            try:
                read[name] = specs[name].metadata["read"](value)
            except ValueError as error:
                self.add(place, f"must be {error} (got {shown(value)})")
        for name, spec in specs.items():
            if spec.default is MISSING and spec.default_factory is MISSING and name not in values:
                self.add(f"{where}.{name}" if where else name, "is missing")
        known = {
            name: read.get(name, None if spec.default is MISSING else spec.default)
            for name, spec in specs.items()
            if spec.default_factory is MISSING
        }
        return kind(**known)


def text(value: Any) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("a text that is not empty")
    return value


MAX_NAME = 200
"""Characters of a name: those of a builder's name in a statement, and a lease has room for them."""


def short(value: Any) -> str:
    """Read a name, which ends in signed statements, leases, logs and pages."""
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= MAX_NAME:
        raise ValueError(f"a text of 1 to {MAX_NAME} printable characters")
    return value


def path(value: Any) -> Path:
    """Read an absolute path."""
    if not isinstance(value, str) or not Path(value).is_absolute() or "\0" in value:
        raise ValueError("an absolute path")
    return Path(value)


def whole(least: int, most: int) -> Reader:
    """Read an integer between `least` and `most`."""

    def read(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"an integer from {least} to {most}")
        return value

    return read


def seconds(least: float, most: float) -> Reader:
    """Read a number of seconds between `least` and `most`."""

    def read(value: Any) -> float:
        if type(value) not in (int, float) or not least <= value <= most:
            raise ValueError(f"seconds, from {least:g} to {most:g}")
        return float(value)

    return read


def size(value: Any) -> int:
    """Read a size: an integer of bytes, or a text such as ``128MiB``."""
    if type(value) is int and value >= 0:
        return value
    if not isinstance(value, str):
        raise ValueError("a size such as 128MiB")
    return parse_size(value)


def choice(*allowed: str) -> Reader:
    """Read one of some words."""

    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError(" or ".join(allowed))
        return str(value)

    return read


def choices(*allowed: str) -> Reader:
    """Read a list of some words, each once."""

    def read(value: Any) -> tuple[str, ...]:
        is_list = isinstance(value, list) and all(item in allowed for item in value)
        if not is_list or len(set(value)) != len(value):
            raise ValueError(f"a list of some of {', '.join(allowed)}, each once")
        return tuple(value)

    return read


def flag(value: Any) -> bool:
    """Read true or false."""
    if type(value) is not bool:
        raise ValueError("true or false")
    return value
