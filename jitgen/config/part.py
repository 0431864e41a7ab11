# SPDX-License-Identifier: Apache-2.0
"""Data with types that are checked when it is made, and one exact JSON form."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import field
from enum import StrEnum
from typing import Any, Self

from jitgen.errors import ConfigError
from jitgen.text import shown


class Part:
    """What all parts of a config share: type checks at construction and an exact JSON form."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for spec in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, spec.name)
            if value is not None or not spec.metadata["is_optional"]:
                object.__setattr__(self, spec.name, _checked(spec.name, spec.metadata, value))

    def to_json(self) -> dict[str, Any]:
        """Return the exact JSON form: only objects, strings, ints, booleans and null."""
        document: dict[str, Any] = {}
        for spec in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, spec.name)
            document[spec.name] = value.to_json() if isinstance(value, Part) else _plain(value)
        return document

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """
        Return the part that `to_json` wrote; a field with a default may be left out.

        Raises:
            ConfigError: `document` is no object, or has an unknown, missing or bad field.
        """
        specs = {spec.name: spec for spec in dataclasses.fields(cls)}  # type: ignore[arg-type]
        if not isinstance(document, dict):
            raise ConfigError(f"{cls.__name__} must be a JSON object with {', '.join(specs)}")
        if unknown := sorted(set(document) - set(specs)):
            raise ConfigError(
                f"{cls.__name__} has no field {shown(unknown[0])}; allowed: {', '.join(specs)}"
            )
        values = {
            name: specs[name].metadata["type"].from_json(value)
            if _is_part(specs[name].metadata["type"])
            else value
            for name, value in document.items()
        }
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"{cls.__name__}: {error}") from None


def _is_part(kind: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, Part)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, StrEnum) else value


def _checked(name: str, rules: Any, value: Any) -> Any:
    """Return `value` as what `rules` ask for, or raise the ConfigError that names the field."""
    kind = rules["type"]
    if kind is int:
        return _size(name, value, rules["least"], rules["most"])
    if kind is bool or _is_part(kind):
        if type(value) is not kind:
            raise ConfigError(f"{name} must be a {kind.__name__} (got {shown(value)})")
        return value
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{name} must be one of {', '.join(kind)} (got {shown(value)})") from None


def _size(name: str, value: Any, least: int, most: int | None) -> int:
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} must be an integer of at least {least} (got {shown(value)})")
    if most is not None and value > most:
        limit = f"{most:,}" if most >= 10_000 else most
        raise ConfigError(f"{name} must be at most {limit} (got {value})")
    return value


def of(
    kind: type,
    *,
    is_optional: bool = False,
    least: int = 1,
    most: int | None = None,
    **options: Any,
) -> Any:
    """
    A dataclass field whose value is checked to be a `kind` (or None where `is_optional`); an
    integer lies between `least` and `most`.
    """
    rules = {"type": kind, "is_optional": is_optional, "least": least, "most": most}
    return field(metadata=rules, **options)


def canonical_json(document: Any) -> str:
    """
    Return the one JSON text of `document`: sorted keys, no spaces, ASCII. Digests are taken of it.
    """
    return json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
