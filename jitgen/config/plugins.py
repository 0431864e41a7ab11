# SPDX-License-Identifier: Apache-2.0
"""
Plug-ins: targets and operations, which are found by name and loaded when they are needed.

A built-in plug-in is a folder of `jitgen.targets` or `jitgen.ops` whose package has an object with
a fixed name. A plug-in of another distribution is an entry point. Only the distributions in
JITGEN_PLUGINS are searched, because loading a plug-in runs its code, and reading the entry points
of all installed distributions takes 30 ms. `Arch` is the name of a target of either kind.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from jitgen.errors import ConfigError
from jitgen.settings import settings
from jitgen.support.moved import KINDS, warn
from jitgen.support.text import nearest, shown

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

    from jitgen.config.operation import Operation
    from jitgen.targets.protocol import Target


_Plugin = TypeVar("_Plugin")

_NAME = r"[a-z][a-z0-9_]*"
_PACKAGE = Path(__file__).resolve().parents[1]


class PluginKind(NamedTuple, Generic[_Plugin]):
    """
    One kind of plug-in, with all plug-ins of that kind.

    Attributes:
        word: Noun for one plug-in in errors.
        package: Folder of the built-in ones, below jitgen's; also the group of entry points,
            ``jitgen.PACKAGE``.
        attribute: Name of the object in a built-in one's package.
        protocol: ``module:class`` of jitgen, which says what the object has.
    """

    word: str
    package: str
    attribute: str
    protocol: str

    def built_in(self) -> tuple[str, ...]:
        """Return the names of jitgen's own plug-ins of this kind, sorted."""
        return _built_in(self)

    def names(self) -> tuple[str, ...]:
        """Return all names, sorted: of the built-in ones, then of other distributions'."""
        return (*_built_in(self), *sorted(_others(self, settings.plugins)))

    def __contains__(self, name: object) -> bool:
        """
        Say whether there is a plug-in called `name`; entry points are not read for a built-in name.
        """
        return _is_built_in(self, name) or name in _others(self, settings.plugins)

    def get(self, name: str) -> _Plugin:
        """
        Return the object called `name`.

        Raises:
            ConfigError: There is no plug-in of this name, it cannot be loaded, or it does not have
                the attributes of the protocol.
        """
        name = self.present(name)
        trusted = () if _is_built_in(self, name) else settings.plugins
        found: _Plugin = _load(self, name, trusted)
        return found

    def present(self, name: str) -> str:
        """Return the name that `name`, which may be an old one, is now; warns of an old one."""
        new = KINDS.get(name)
        if new is None or self is not OPERATIONS or name in self:
            return name
        warn(f"{self.word} {name}", new, stacklevel=4)
        return new

    def origin(self, name: str) -> dict[str, str] | None:
        """Return distribution and version of a plug-in; None where it is built in."""
        point = _others(self, settings.plugins).get(name)
        if point is None or point.dist is None:
            return None
        return {"distribution": _normal(point.dist.name), "version": point.dist.version}

    def of(self, distribution: str) -> dict[str, _Plugin]:
        """
        Return the plug-ins of `distribution`, one of those in JITGEN_PLUGINS; raises as `get`.
        """
        return {
            name: self.get(name)
            for name, point in _others(self, settings.plugins).items()
            if point.dist is not None and _normal(point.dist.name) == _normal(distribution)
        }

    def lacks(self, found: object) -> tuple[str, ...]:
        """Return the names that the protocol has and `found` has not."""
        module, _, name = self.protocol.partition(":")
        return lacking(found, getattr(importlib.import_module(f"jitgen.{module}"), name))


def lacking(found: object, protocol: type) -> tuple[str, ...]:
    """Return the public names that `protocol` has and `found` has not."""
    names = (*protocol.__annotations__, *vars(protocol))
    public = dict.fromkeys(name for name in names if not name.startswith("_"))
    return tuple(name for name in public if not _has(found, name))


@cache
def _built_in(kind: PluginKind[Any]) -> tuple[str, ...]:
    """
    Return the names of the folders whose package has a plug-in's object; other folders have shared
    code.
    """
    return tuple(name for name in _folders(kind) if _holds(kind, name))


def _is_built_in(kind: PluginKind[Any], name: object) -> bool:
    """
    Return whether the package of a folder called `name` has a plug-in's object; looks at no other
    folder, which keeps a start fast.
    """
    return name in _folders(kind) and _holds(kind, str(name))


@cache
def _folders(kind: PluginKind[Any]) -> tuple[str, ...]:
    # Not by a pattern: for some versions of Python nothing is in a folder that cannot be read now.
    with os.scandir(_PACKAGE / kind.package) as entries:
        return tuple(sorted(entry.name for entry in entries if entry.is_dir()))


@cache
def _holds(kind: PluginKind[Any], folder: str) -> bool:
    path = _PACKAGE / kind.package / folder / "__init__.py"
    bound = re.compile(rf"^{kind.attribute}\b", re.MULTILINE)
    return path.is_file() and bound.search(path.read_text(encoding="utf-8")) is not None


@cache
def _others(kind: PluginKind[Any], trusted: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Return the entry points of the distributions that are trusted, by name."""
    found: dict[str, EntryPoint] = {}
    if not trusted:
        return found
    owners = dict.fromkeys(_built_in(kind), "jitgen itself")
    for distribution in map(_distribution, dict.fromkeys(map(_normal, trusted))):
        for point in distribution.entry_points.select(group=f"jitgen.{kind.package}"):
            if other := owners.get(point.name):
                raise ConfigError(
                    f"{distribution.name} brings {point.name} to jitgen.{kind.package}, and so "
                    f"does {other}; leave one out of JITGEN_PLUGINS, or have it renamed"
                )
            if not re.fullmatch(_NAME, point.name):
                raise ConfigError(
                    f"{distribution.name} brings {shown(point.name)} to jitgen.{kind.package}: a "
                    "name becomes part of symbols and files, so it must be of a-z, 0-9 and _"
                )
            owners[point.name] = distribution.name
            found[point.name] = point
    return found


def _distribution(name: str) -> Distribution:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution(name)
    except (PackageNotFoundError, ValueError):
        raise ConfigError(
            f"JITGEN_PLUGINS names {shown(name)}, which is not installed; install it, or leave it "
            "out"
        ) from None


def _normal(name: str) -> str:
    """Return the one spelling of a distribution's name: ``Jitgen_Acme`` is ``jitgen-acme``."""
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def _load(kind: PluginKind[Any], name: str, trusted: tuple[str, ...]) -> Any:
    if _is_built_in(kind, name):
        own = getattr(importlib.import_module(f"jitgen.{kind.package}.{name}"), kind.attribute)
        if own.name != name:
            raise ConfigError(
                f"{kind.attribute} of jitgen/{kind.package}/{name} calls itself {shown(own.name)}; "
                "it must have the name of its folder"
            )
        return own
    point = _others(kind, trusted).get(name)
    if point is None:
        raise ConfigError(
            f"{kind.word} {shown(name)} is not known; allowed: {', '.join(kind.names())}"
            f"{nearest(name, kind.names())}"
        )
    what = f"{kind.word} {name} of {point.dist.name if point.dist else 'another distribution'}"
    try:
        found = point.load()
    except Exception as error:
        raise ConfigError(f"{what} cannot be loaded: {type(error).__name__}: {error}") from error
    asked = f"jitgen.{kind.protocol.replace(':', '.')}"
    if inspect.isclass(found) or inspect.ismodule(found):
        wrong = "class" if inspect.isclass(found) else "module"
        raise ConfigError(f"{what}: {point.value} is a {wrong}, and must be an object as {asked}")
    if missing := kind.lacks(found):
        raise ConfigError(f"{what}: {point.value} is no {asked}: it lacks {', '.join(missing)}")
    if found.name != name:
        raise ConfigError(
            f"{what}: {point.value} calls itself {shown(found.name)}; its entry point must have "
            "the same name"
        )
    return found


def _has(found: object, name: str) -> bool:
    """Return whether an object has an attribute, without running a property of that name."""
    try:
        inspect.getattr_static(found, name)
    except AttributeError:
        return False
    return True


TARGETS: PluginKind[Target] = PluginKind("arch", "targets", "TARGET", "targets.protocol:Target")
OPERATIONS: PluginKind[Operation] = PluginKind(
    "operation", "ops", "OPERATION", "config.operation:Operation"
)


_made: dict[str, Arch] = {}


class _Names(type):
    """Metaclass that makes ``for arch in Arch`` walk over every target."""

    def __iter__(cls) -> Iterator[Arch]:
        return map(Arch, TARGETS.names())

    def __contains__(cls, name: object) -> bool:
        return name in TARGETS

    def __len__(cls) -> int:
        return len(TARGETS.names())


class Arch(str, metaclass=_Names):
    """
    A target, with the compiler's spelling; there is one object for each name.

    The suffix ``a`` is part of the name: WGMMA and setmaxnreg exist in ``sm_90a`` and not in
    ``sm_90``. The folder of a target in `jitgen.targets` describes it.
    """

    __slots__ = ()

    CPU: ClassVar[Arch]
    SM_90A: ClassVar[Arch]

    def __new__(cls, name: str) -> Self:  # noqa: D102  # see the class
        known = _made.get(name)
        if known is None:
            if name not in TARGETS:
                raise ValueError(name)
            known = _made[name] = super().__new__(cls, name)
        return known  # type: ignore[return-value]

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    @property
    def family(self) -> str:
        """The folder of templates that serves this target, for example ``sm90``."""
        return str(TARGETS.get(self).family)

    @property
    def is_gpu(self) -> bool:
        """Whether kernels of this target run on a GPU."""
        return bool(TARGETS.get(self).is_gpu)

    @classmethod
    def parse(cls, text: str) -> Arch:
        """
        Return the target that `text` names.

        Raises:
            ConfigError: `text` is not a target; the message lists all targets.
        """
        try:
            return cls(text)
        except (ValueError, TypeError):
            TARGETS.get(text if isinstance(text, str) else repr(text))  # tells which there are
            raise ConfigError(f"arch {text!r} is no text") from None

    @classmethod
    def of_capability(cls, major: int, minor: int) -> Arch | None:
        """Return the target of a CUDA compute capability; None if jitgen has no kernels for it."""
        return next((arch for arch in Arch if TARGETS.get(arch).runs_on(major, minor)), None)


Arch.CPU = Arch("cpu")
Arch.SM_90A = Arch("sm_90a")
