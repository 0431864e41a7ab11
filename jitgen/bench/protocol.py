# SPDX-License-Identifier: Apache-2.0
"""Common parts of suites: records and rows, fresh processes and caches, conditions of figures."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

from jitgen.autotune.measure.errors import WrongResult
from jitgen.autotune.measure.times import Times
from jitgen.runtime.session import current
from jitgen.selection.device import cpu_name
from jitgen.settings import settings
from jitgen.support.frozen import frozen

_ABSENT = "not installed"
_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"


class Record:
    """
    A dataclass that can be written as a JSON object and read from it.

    Attributes:
        JSON: The names in the object in their order, ``name=attribute`` where the attribute has
            another one; empty: those of all fields. Properties are written, and not read.
    """

    __slots__ = ()
    JSON: ClassVar[str] = ""

    def derived(self) -> dict[str, Any]:
        """
        Return further values for readers, computed from the others: none, unless a subclass has
        some.
        """
        return {}

    def to_json(self) -> dict[str, Any]:
        """Return the attributes in `JSON`, and the values of `derived`, as a JSON object."""
        names = self._attributes().items()
        return {name: _encoded(getattr(self, each)) for name, each in names} | self.derived()

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """
        Return the object from the document that `to_json` returned.

        Raises:
            KeyError, TypeError, ValueError, AttributeError, IndexError: `document` is not one that
                `to_json` returned.
            ConfigError: `document` is not one that `to_json` returned, and the message says which
                part is wrong.
        """
        made: Any = cls
        kinds, stored = get_type_hints(cls), {spec.name for spec in fields(made)}
        names = [(name, each) for name, each in cls._attributes().items() if each in stored]
        return cls(**{each: _decoded(kinds[each], document[name]) for name, each in names})

    @classmethod
    def _attributes(cls) -> dict[str, str]:
        """Return for each name in the object the attribute that it holds."""
        made: Any = cls
        words = cls.JSON.split() or [spec.name for spec in fields(made)]
        parts = (word.partition("=") for word in words)
        return {name: attribute or name for name, _, attribute in parts}


def _encoded(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, Mapping):
        return {name: _encoded(each) for name, each in value.items()}
    return [_encoded(each) for each in value] if isinstance(value, (list, tuple)) else value


def _decoded(kind: Any, value: Any) -> Any:
    if hasattr(kind, "from_json"):
        return kind.from_json(value)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:  # of a kind and None
        (some,) = (each for each in inner if each is not NoneType)
        return None if value is None else _decoded(some, value)
    if origin is None:
        return value if kind in (Any, object) else kind(value)
    if issubclass(origin, Mapping):
        return {str(name): _decoded(inner[1], each) for name, each in value.items()}
    return origin(_decoded(inner[0], each) for each in value)


@frozen
class Row(Record):
    """
    One measured figure.

    Attributes:
        suite: The suite that it belongs to.
        what: What was measured.
        value: The figure, a median unless `detail` says otherwise.
        unit: Its unit.
        budget: The largest allowed figure, or with `is_rate` the smallest; None if there is no
            budget.
        is_rate: Whether more is better.
        detail: Spread, repetitions, sizes.
    """

    JSON: ClassVar[str] = "suite what value unit budget is_rate ok detail"

    suite: str
    what: str
    value: float
    unit: str
    budget: float | None = None
    is_rate: bool = False
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether the budget was kept; true without a budget."""
        if self.budget is None:
            return True
        return self.value >= self.budget if self.is_rate else self.value <= self.budget


_SCALES = {"s": 1.0, "ms": 1e3, "us": 1e6}


def row_of(
    suite: str, what: str, times: Times, unit: str, budget: float | None = None, more: str = ""
) -> Row:
    """Return the row of the median of `times`; its detail is the spread, followed by `more`."""
    scale = _SCALES[unit]
    return Row(
        suite=suite,
        what=what,
        value=times.median * scale,
        unit=unit,
        budget=budget,
        detail=times.detail(scale, unit) + more,
    )


@contextmanager
def temporary_cache() -> Iterator[Path]:
    """Return a context in which this process uses a new, empty cache."""
    with tempfile.TemporaryDirectory(prefix="jitgen-bench-") as folder:
        try:
            with settings.scope(cache_dir=folder, cache="rw", on_miss="compile"):
                current.get().reset()
                yield Path(folder)
        finally:
            current.get().reset()


def python(script: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """
    Run `script` in a fresh Python process and return its output.

    Raises:
        WrongResult: The process failed; the message contains the last line of its output for
            errors.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, *arguments],
        env=python_environment(environment or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        complaint = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise WrongResult(f"a measured process failed: {complaint}")
    return done.stdout


def python_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """
    Return the environment of a measured process: that of this process with its import path and
    `changes`.

    Byte code is cached, as in an installed package, even if this process does not cache it.
    """
    path = os.pathsep.join(folder for folder in sys.path if folder)
    inherited = {name: text for name, text in os.environ.items() if name != _NO_BYTECODE}
    return {**inherited, "PYTHONPATH": path, **changes}


def conditions(distributions: Sequence[str] = ()) -> dict[str, str]:
    """
    Return the conditions of a figure: the processor, its load, versions, and the GPU if there is
    one.

    Args:
        distributions: Python distributions of other sides; the versions of installed ones are
            returned.
    """
    found = {
        "cpu": cpu_name(),
        "cores": str(len(os.sched_getaffinity(0))),
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
    }
    for name in ("jitgen", "torch", "nvidia-cutlass-dsl", "apache-tvm-ffi"):
        found[name] = _version(name)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    others = {name: _version(name) for name in distributions}
    return found | {name: version for name, version in others.items() if version != _ABSENT}


def _version(name: str) -> str:
    if name == "jitgen":
        from jitgen._version import __version__

        return __version__
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return _ABSENT
