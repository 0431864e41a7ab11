# SPDX-License-Identifier: Apache-2.0
"""
The rooms that grow: targets and operations, each found by its name and loaded when it is asked for.

A built-in one is a folder of `jitgen.targets` or `jitgen.ops` whose package holds an object under a
fixed name. One of somebody else's is an entry point of an installed distribution, and is looked for
only where JITGEN_PLUGINS names that distribution: loading it runs its code, and reading the entry
points of everything that is installed takes a start 30 ms.
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jitgen.errors import ConfigError
from jitgen.settings import settings
from jitgen.text import shown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_PACKAGE = Path(__file__).resolve().parents[1]


class Room(NamedTuple):
    """
    One kind of thing that grows.

    Attributes:
        word: What one of them is called in errors.
        package: Folder of the built-in ones, below jitgen's; also the group of entry points,
            ``jitgen.PACKAGE``.
        attribute: Name of the object in a built-in one's package.
    """

    word: str
    package: str
    attribute: str

    def names(self) -> tuple[str, ...]:
        """Return the names of all there are, sorted: the built-in ones, then others'."""
        return (*_built_in(self.package), *sorted(_others(self.package, settings.plugins)))

    def get(self, name: str) -> Any:
        """
        Return the object called `name`.

        Raises:
            ConfigError: There is none of this name, or it cannot be loaded.
        """
        return _load(self, name, settings.plugins)

    def origin(self, name: str) -> dict[str, str] | None:
        """Return distribution and version of what somebody else made; None where it is built in."""
        point = _others(self.package, settings.plugins).get(name)
        if point is None or point.dist is None:
            return None
        return {"distribution": point.dist.name, "version": point.dist.version}


@cache
def _built_in(package: str) -> tuple[str, ...]:
    folder = _PACKAGE / package
    return tuple(sorted(path.parent.name for path in folder.glob("*/__init__.py")))


@cache
def _others(package: str, trusted: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Return the entry points of the distributions that are trusted, by name."""
    if not trusted:
        return {}
    from importlib.metadata import entry_points

    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=f"jitgen.{package}"):
        owner = point.dist.name if point.dist else ""
        if owner not in trusted:
            continue
        if point.name in _built_in(package) or point.name in found:
            other = "jitgen itself" if point.name in _built_in(package) else "another distribution"
            raise ConfigError(
                f"{owner} brings {point.name} to jitgen.{package}, and so does {other}"
            )
        found[point.name] = point
    return found


@cache
def _load(room: Room, name: str, trusted: tuple[str, ...]) -> Any:
    if name in _built_in(room.package):
        return getattr(importlib.import_module(f"jitgen.{room.package}.{name}"), room.attribute)
    point = _others(room.package, trusted).get(name)
    if point is None:
        raise ConfigError(
            f"{room.word} {shown(name)} is not known; allowed: {', '.join(room.names())}"
        )
    try:
        return point.load()
    except Exception as error:
        owner = point.dist.name if point.dist else "its distribution"
        raise ConfigError(
            f"{room.word} {name} of {owner} cannot be loaded: {type(error).__name__}: {error}"
        ) from error


TARGETS = Room("arch", "targets", "TARGET")
OPERATIONS = Room("operation", "ops", "OPERATION")
