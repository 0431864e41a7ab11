# SPDX-License-Identifier: Apache-2.0
"""
Makes the name of a config from its fields, and the parameters of its template.

The middle of a kernel's name has a word for each field, in their order, joined by ``_``. The word
follows from the field as `jitgen.config.config.of` declares it:

    of(Layout)                                    ragged        its value
    of(int, default=4, word="r")                  r8            unless it is the default
    of(int, default=256, word="e", always=True)   e256
    of(bool, default=True, word="nopdl")          nopdl         unless it is the default
    of(int, ..., default=None, word="ab")         ab3           unless it is None
    of(Tile, word="t")                            t128x64x128   the sides of a part
    of(Tiling, default=Tiling())                  r8_nopdl      the words of a part's own fields

Names are keys of caches and symbols of C: every config has exactly one name, and parsing it gives
the config.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import MISSING
from enum import StrEnum
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple


class Vocabulary(StrEnum):
    """
    Base of enumerations that several operations share; an error about an unknown word lists the
    members.
    """


_NUMBER = r"\d{1,9}"


class Word(NamedTuple):
    """
    Form of a field in a name.

    Attributes:
        path: Path of the field in a config: ``tiling.rows``.
        kind: Its type.
        text: Prefix of the value; the whole word for a flag.
        sides: Fields of a part whose numbers are one word, as 128x64x128; none of other fields.
        usual: The value that names leave out; `MISSING` if names have every value.
        default: The field's default; `MISSING` if it has none.
        reads: Regular expression of the values that names may have; empty: of all.
        get: Returns the value of a config; of `sides`, their values.
    """

    path: str
    kind: type
    text: str
    sides: tuple[str, ...]
    usual: Any
    default: Any
    reads: str
    get: Callable[[Any], Any]

    @property
    def name(self) -> str:
        """Name of the field in its part."""
        return self.path.rpartition(".")[2]

    @property
    def group(self) -> str:
        """Name of the group that matches the value, in the regular expression of a part's name."""
        return self.path.replace(".", "__")

    @property
    def is_parameter(self) -> bool:
        """
        Whether the field is a parameter of templates; a number that the target's rules derive is
        not.
        """
        return not (self.kind is int and self.default is None)

    @property
    def pattern(self) -> str:
        """Regular expression that matches the value."""
        if self.reads:
            return self.reads
        if self.sides:
            return "x".join([_NUMBER] * len(self.sides))
        if self.kind is int:
            return _NUMBER
        words = [str(each) for each in self.kind]  # type: ignore[attr-defined]
        if self.text or (self.usual is MISSING and issubclass(self.kind, Vocabulary)):
            return "[a-z]+" if all(word.isalpha() for word in words) else "[a-z0-9]+"
        return "|".join(sorted(words, key=len, reverse=True))

    def value(self, text: str | None) -> Any:
        """
        Return the value, in JSON form, of `text` in a name. `text` is None for a name without the
        word, which means the default.
        """
        if self.kind is bool:
            return (text is not None) is not self.default
        if text is None:
            return self.default
        if self.sides:
            return dict(zip(self.sides, map(int, text.split("x")), strict=True))
        return int(text) if self.kind is int else text


@cache
def grammar(part: type, *, as_declared: bool = False) -> tuple[Word, ...]:
    """
    Return the words of a part's name in the order of names, or, if `as_declared`, in that of the
    fields.
    """
    fields: list[dataclasses.Field[Any]] = []
    for spec in dataclasses.fields(part):
        after = "" if as_declared else spec.metadata["after"]
        names = [each.name for each in fields]
        fields.insert(names.index(after) + 1 if after else len(fields), spec)
    words: list[Word] = []
    for spec in fields:
        kind: Any = spec.metadata["type"]
        is_nested = dataclasses.is_dataclass(kind) and not spec.metadata["word"]
        if is_nested:
            words += [
                word._replace(
                    path=f"{spec.name}.{word.path}", get=_getter(spec.name, word.path, word.sides)
                )
                for word in grammar(kind, as_declared=as_declared)
            ]
        else:
            words.append(_word(part, spec))
    return tuple(words)


def _word(part: type, spec: dataclasses.Field[Any]) -> Word:
    rules = spec.metadata
    kind = rules["type"]
    if not rules["word"] and kind in (int, bool):
        raise TypeError(f"{part.__name__}.{spec.name} has no word for names; see {__name__}")
    always = rules["always"]
    if always is None:
        always = kind not in (int, bool) and not rules["is_optional"]
    is_part = dataclasses.is_dataclass(kind)
    sides = tuple(side.name for side in dataclasses.fields(kind)) if is_part else ()
    return Word(
        path=spec.name,
        kind=kind,
        text=rules["word"],
        sides=sides,
        usual=MISSING if always else spec.default,
        default=spec.default,
        reads=rules["reads"],
        get=_getter("", spec.name, sides),
    )


def _getter(prefix: str, path: str, sides: tuple[str, ...]) -> Callable[[Any], Any]:
    path = f"{prefix}.{path}" if prefix else path
    return attrgetter(*(f"{path}.{side}" for side in sides)) if sides else attrgetter(path)


def name_of(part: object, prefix: str = "") -> str:
    """Return the words of a part's name, joined by ``_``, behind `prefix` if there is one."""
    found = [prefix] if prefix else []
    owner: Any = type(part)
    for _, kind, text, sides, usual, *_, get in grammar(owner):
        value = get(part)
        if value == usual:
            continue
        if sides:
            found.append(text + "x".join(map(str, value)))
        else:
            found.append(text if kind is bool else f"{text}{value}")
    return "_".join(found)


@cache
def _expression(part: type, prefix: str) -> re.Pattern[str]:
    return re.compile((f"_{prefix}" if prefix else "") + "".join(map(_pattern, grammar(part))))


def _pattern(word: Word) -> str:
    if word.kind is bool:
        return f"(?P<{word.group}>_{word.text})?"
    pattern = f"_{word.text}(?P<{word.group}>{word.pattern})"
    return pattern if word.usual is MISSING else f"(?:{pattern})?"


def parsed(part: type, name: str, prefix: str = "") -> dict[str, Any] | None:
    """
    Return the JSON form of the `part` called `name`; None if `name` is not a name of this class.
    """
    match = _expression(part, prefix).fullmatch(f"_{name}")
    if match is None:
        return None
    document: dict[str, Any] = {}
    for word in grammar(part):
        *parts, name = word.path.split(".")
        place = document
        for each in parts:
            place = place.setdefault(each, {})
        place[name] = word.value(match[word.group])
    return document


def parameters(part: object) -> dict[str, Any]:
    """Return the template's parameters from a part, by name: integers, booleans and words."""
    found: dict[str, Any] = {}
    owner: Any = type(part)
    for word in grammar(owner, as_declared=True):
        value = word.get(part)
        if word.sides:
            found |= zip((f"{word.name}_{side}" for side in word.sides), value, strict=True)
        elif word.is_parameter:
            found[word.name] = value if word.kind in (int, bool) else str(value)
    return found
