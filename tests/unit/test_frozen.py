# SPDX-License-Identifier: Apache-2.0
"""`jitgen.support.frozen`: what it makes is a frozen dataclass in every way."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, dataclass, field

import pytest

from jitgen.support.frozen import frozen


@frozen
class Point:
    """One that is made here."""

    x: int
    y: int = 2
    note: str = field(default="", repr=False, compare=False)


@frozen
class Other:
    """Another class with the same fields."""

    x: int
    y: int = 2
    note: str = field(default="", repr=False, compare=False)


@frozen
class Empty:
    """One without fields."""


@frozen
class Line(Point):
    """One with its parent's fields, checked when it is made."""

    length: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", float(self.length))


def standard(name: str) -> type:
    """Return what the standard library makes of the same fields."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Point:
        x: int
        y: int = 2
        note: str = field(default="", repr=False, compare=False)

    Point.__qualname__ = name
    Point.__init__.__qualname__ = f"{name}.__init__"
    return Point


def test_fields_are_written_once() -> None:
    """Neither assignment, nor deletion, nor a name that is no field."""
    point = Point(x=1)
    for name in ("x", "y", "z"):
        with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(point, name, 3)
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x
    assert (point.x, point.y) == (1, 2)
    assert not hasattr(point, "__dict__")


def test_equality_and_hash() -> None:
    """Of the same class and with equal fields, but for those that are left out."""
    assert Point(x=1, note="a") == Point(x=1, note="b")
    assert hash(Point(x=1, note="a")) == hash(Point(x=1, note="b"))
    assert Point(x=1) != Point(x=2)
    assert Point(x=1) != Other(x=1)
    assert Point(x=1) != (1, 2)
    assert Empty() == Empty()
    assert len({Point(x=1), Point(x=1), Point(x=2), Empty(), Empty()}) == 3


def test_words_are_the_standard_librarys() -> None:
    """The same text, and the same errors for arguments."""
    made = standard("Point")
    assert repr(Point(x=1)) == repr(made(x=1)) == "Point(x=1, y=2)"
    for arguments in ({}, {"x": 1, "z": 2}):
        with pytest.raises(TypeError) as ours:
            Point(**arguments)
        with pytest.raises(TypeError) as theirs:
            made(**arguments)
        assert str(ours.value) == str(theirs.value)
    with pytest.raises(TypeError, match="positional"):
        Point(1)  # type: ignore[misc]


def test_dataclasses_copy_and_pickle() -> None:
    """Whatever works with dataclasses works with these."""
    point = Point(x=1, note="a")
    assert dataclasses.is_dataclass(point)
    assert dataclasses.asdict(point) == {"x": 1, "y": 2, "note": "a"}
    assert dataclasses.replace(point, y=5) == Point(x=1, y=5)
    for twin in (copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point))):  # noqa: S301
        assert twin == point
        assert twin.note == "a"


def test_inheritance_and_checks() -> None:
    """A child has its parent's fields, and may set its own in ``__post_init__``."""
    line = Line(x=1, length=3)
    assert repr(line) == "Line(x=1, y=2, length=3.0)"
    assert line == Line(x=1, length=3.0)
    assert line != Point(x=1)
    with pytest.raises(FrozenInstanceError):
        line.length = 2.0  # type: ignore[misc]
