# SPDX-License-Identifier: Apache-2.0
"""
JSON documents of dataclasses: written, read and described by one declaration.

The class is the declaration. The type of a field says what its JSON value is, and a `Rule` in that
type says more: bounds, a description, or how a value of another type is written and read.

    Port = Annotated[int, Rule(minimum=0, maximum=65535, description="TCP port; 0: any")]

    @frozen
    class Server:
        host: str
        port: Port = 8555
        tags: tuple[str, ...] = ()

`to_json` writes an instance, `from_json` reads one strictly, and `schema` returns the JSON Schema
that both keep to. `read` is `from_json` for files that people write: it goes on after an error, so
that each wrong field is reported.

Types: ``str``, ``int``, ``float``, ``bool``, ``None``, ``object`` or ``Any`` for any value,
``Path``, enums of texts, ``X | None``, ``tuple[X, ...]``, ``list[X]``, ``Mapping[str, X]``,
dataclasses, and classes that have `to_json` and `from_json` of their own.
``Annotated[object, Server]`` has the schema of a class, and may be JSON already;
``Annotated[object, "module:Server"]`` is not imported before it is described.
"""

from __future__ import annotations

import enum
import importlib
import os
import re
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, field, fields, is_dataclass
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from jitgen.support.documents import BadDocument
from jitgen.support.text import shown

T = TypeVar("T")
Schema = dict[str, Any]


class Rule:
    """
    A rule about a value, in the annotation of its type.

    Args:
        read: Converts a JSON value; raises ValueError, whose message says what is allowed: "an
            absolute path".
        write: Returns the JSON value of a value.
        keywords: Keywords of JSON Schema. With ``type`` among them they describe the value
            completely, without it they are added to those of the type. Reading checks ``minimum``,
            ``maximum``, ``enum``, ``pattern``, ``minLength``, ``maxLength``, ``minItems`` and
            ``maxItems``.
    """

    __slots__ = ("keywords", "read", "write")

    def __init__(
        self,
        read: Callable[[Any], Any] | None = None,
        write: Callable[[Any], Any] | None = None,
        **keywords: Any,
    ) -> None:
        self.read = read
        self.write = write
        self.keywords = keywords


def one_of(*values: str) -> Rule:
    """Return the rule of a text that is one of `values`."""
    return Rule(type=None, enum=[*values])


def of(read: Callable[[Any], Any], default: Any, help: str) -> Any:  # noqa: A002  # as tables say
    """Return a field with a default whose JSON value `read` reads; `help` is a line for pages."""
    return field(default=default, metadata={"read": read, "help": help})


def named(key: str) -> Any:
    """Return a field that is called `key` in JSON."""
    return field(metadata={"key": key})


def absent() -> Any:
    """Return a field that a document leaves out where it is None, its default."""
    return field(default=None, metadata={"is_absent": True})


def inline() -> Any:
    """Return a field whose own keys stand in the document in its place; only for writing."""
    return field(metadata={"is_inline": True})


def to_json(value: Any) -> Any:
    """Return the JSON value of `value`: of a dataclass an object of its public fields."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str(value)  # of an enum's member its text
    if is_dataclass(value) and not hasattr(value, "to_json"):
        return _write_object(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.to_json() if hasattr(value, "to_json") else [to_json(each) for each in value]


def from_json(kind: type[T], document: Any) -> T:
    """
    Return the instance of the dataclass `kind` that `to_json` wrote; fields with a default may be
    left out.

    Raises:
        BadDocument: A key is missing or unknown, or a value is not allowed. The message has the
            place of the first error, what is allowed there and what was found.
    """
    errors: list[str] = []
    found = read(kind, document, lambda place, what: errors.append(f"{place or 'it'} {what}"))
    if errors:
        raise BadDocument(errors[0])
    return found


def read(kind: type[T], document: Any, report: Callable[[str, str], None], where: str = "") -> T:
    """
    Return `document` as a `kind`, and report every field of it that is wrong.

    A field that is wrong, or missing, has its default in the result, or None if it has none: such
    a result is good for finding further errors only.

    Args:
        kind: A dataclass.
        document: A JSON or TOML value.
        report: Called for each error with its place, such as ``limits.jobs``, and what is wrong.
        where: The place of `document` in the file; empty: it is all of it.
    """
    specs = _specs(kind)
    found: dict[str, Any] = {}
    if not isinstance(document, Mapping):
        report(where, f"must be an object with {', '.join(specs)} (got {shown(document)})")
        document = {}
    for key, value in document.items():
        place = f"{where}.{key}" if where else str(key)
        if key not in specs:
            report(place, f"is not known; allowed here: {', '.join(specs)}")
            continue
        try:
            found[specs[key].name] = specs[key].kind.read(value)
        except _Refused as error:
            report(place + error.place, error.what)
    for key, spec in specs.items():
        if spec.is_required and key not in document:
            report(f"{where}.{key}" if where else key, "is missing")
        if spec.name not in found:
            found[spec.name] = spec.default()
    return kind(**found)


def schema(kind: Any) -> Schema:
    """Return the JSON Schema (draft 2020-12) of the JSON form of a type."""
    return _kind_of(kind).describe()


def like(kind: type[T], source: Any, **values: Any) -> T:
    """Return a `kind` of `values`; its other fields are the attributes of `source`."""
    names = [spec.name for spec in _specs(kind).values()]
    return kind(**{name: getattr(source, name) for name in names if name not in values} | values)


# types


class _Refused(ValueError):
    """A value is not allowed: `what` is wrong, at `place` within the field's value."""

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.place = place

    @classmethod
    def got(cls, value: Any, allowed: str) -> _Refused:
        return cls(f"must be {allowed} (got {shown(value)})")


class _Kind(NamedTuple):
    """
    Description of a type: its schema, and how it is read and written.

    Attributes:
        describe: Returns its JSON Schema.
        allowed: What is allowed, for errors: "a text".
        read: Returns the value of a JSON value; raises _Refused.
        write: Returns the JSON value of a value.
    """

    describe: Callable[[], Schema]
    allowed: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any] = to_json


def _kind_of(hint: Any) -> _Kind:
    """Return the description of a type annotation."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind = _kind_of(arguments[0])
        for rule in arguments[1:]:
            if isinstance(rule, Rule):
                kind = _ruled(kind, rule)
            else:
                kind = kind._replace(describe=partial(_schema_of, rule))
        return kind
    if origin in (Union, UnionType):
        return _union([_kind_of(each) for each in arguments])
    if origin in _CONTAINERS:
        return _CONTAINERS[origin](_kind_of(arguments[-1 if origin in _MAPPINGS else 0]))
    return _PLAIN[hint] if hint in _PLAIN else _class(hint)


def _class(kind: Any) -> _Kind:
    if issubclass(kind, enum.Enum):
        word = _ruled(_PLAIN[str], one_of(*(each.value for each in kind)))
        return word._replace(read=lambda value: kind(word.read(value)))
    if issubclass(kind, os.PathLike):
        return _PLAIN[str]._replace(read=lambda value: kind(_PLAIN[str].read(value)))
    if hasattr(kind, "to_json") or not is_dataclass(kind):  # other types can have a Rule
        describe = _constant({"type": "object"})
        return _Kind(describe, "an object", partial(_foreign, kind))
    return _Kind(partial(_object_schema, kind), "an object", partial(_nested, kind), _write_object)


def _plain(allowed: str, name: str, *kinds: type) -> _Kind:
    """Return the kind of the JSON type `name`; values are of one of the Python types `kinds`."""

    def check(value: Any) -> Any:
        if type(value) not in kinds:
            raise _Refused.got(value, allowed)
        return value

    return _Kind(lambda: {"type": name}, allowed, check)


_ANYTHING = _Kind(dict, "any value", lambda value: value)

_PLAIN: dict[Any, _Kind] = {
    Any: _ANYTHING,
    object: _ANYTHING,
    str: _plain("a text", "string", str),
    bool: _plain("true or false", "boolean", bool),
    int: _plain("an integer", "integer", int),
    float: _plain("a number", "number", int, float),
    type(None): _plain("null", "null", type(None)),
}


def _ruled(kind: _Kind, rule: Rule) -> _Kind:
    """Return `kind` with a rule added."""
    words = rule.keywords
    allowed = f"{kind.allowed}{_bounds(words)}"
    if "enum" in words:
        allowed = " or ".join(map(str, words["enum"]))

    def describe() -> Schema:
        found = words if "type" in words else {**kind.describe(), **words}
        return {name: value for name, value in found.items() if value is not None}

    def read_by_rule(value: Any) -> Any:
        if rule.read is not None:
            try:
                return rule.read(value)
            except ValueError as error:
                raise _Refused.got(value, str(error)) from None
        found = kind.read(value)
        if not _is_within(value, words):
            raise _Refused.got(value, allowed)
        return found

    return _Kind(describe, allowed, read_by_rule, rule.write or kind.write)


_BOUNDS = (
    ("minimum", "maximum", ""),
    ("minLength", "maxLength", " characters"),
    ("minItems", "maxItems", " items"),
)


def _bounds(words: Mapping[str, Any]) -> str:
    """Return the bounds that keywords set, as errors say them: "from 0 to 65535"."""
    text = f" that matches {words['pattern']}" if "pattern" in words else ""
    for least, most, unit in _BOUNDS:
        if least in words and most in words:
            text += f" from {words[least]} to {words[most]}{unit}"
        elif least in words or most in words:
            which = f"least {words[least]}" if least in words else f"most {words[most]}"
            text += f" of at {which}{unit}"
    return text


def _is_within(value: Any, words: Mapping[str, Any]) -> bool:
    """Return whether a JSON value of the right type keeps to the keywords that `Rule` names."""
    if "enum" in words:
        return value in words["enum"]
    if isinstance(value, str) and not re.search(words.get("pattern", ""), value):
        return False
    index = 0 if isinstance(value, (int, float)) else 1 if isinstance(value, str) else 2
    least, most, _ = _BOUNDS[index]
    if least not in words and most not in words:
        return True
    size = value if index == 0 else len(value)
    return bool(words.get(least, size) <= size <= words.get(most, size))


def _union(kinds: list[_Kind]) -> _Kind:
    """
    Return the kind of a union; if a value fits no member, the first member's error is reported.
    """
    null = _PLAIN[type(None)]
    is_optional = len(kinds) == 2 and kinds[1] is null

    def read_any(value: Any) -> Any:
        errors = []
        for kind in kinds:
            try:
                return kind.read(value)
            except _Refused as error:
                errors.append(error)
        raise errors[0]

    def write_any(value: Any) -> Any:
        return kinds[0].write(value) if is_optional and value is not None else to_json(value)

    def describe() -> Schema:
        schemas = [kind.describe() for kind in kinds]
        return schemas[0] if all(each == schemas[0] for each in schemas) else {"anyOf": schemas}

    allowed = " or ".join(dict.fromkeys(kind.allowed for kind in kinds))
    return _Kind(describe, allowed, read_any, write_any)


def _sequence(item: _Kind, make: Callable[[list[Any]], Any] = tuple) -> _Kind:
    def read_all(value: Any) -> Any:
        if type(value) is not list:
            raise _Refused.got(value, "a list")
        return make([_within(item, each, f"[{number}]") for number, each in enumerate(value)])

    return _Kind(
        describe=lambda: {"type": "array", "items": item.describe()},
        allowed="a list",
        read=read_all,
        write=lambda value: [item.write(each) for each in value],
    )


def _mapping(item: _Kind) -> _Kind:
    def read_all(value: Any) -> Any:
        if type(value) is not dict:
            raise _Refused.got(value, "an object")
        return {key: _within(item, each, f".{key}") for key, each in value.items()}

    return _Kind(
        describe=lambda: {"type": "object", "additionalProperties": item.describe()},
        allowed="an object",
        read=read_all,
        write=lambda value: {str(key): item.write(each) for key, each in value.items()},
    )


_MAPPINGS = (dict, Mapping)
_CONTAINERS: dict[Any, Callable[[_Kind], _Kind]] = {
    tuple: _sequence,
    Sequence: _sequence,
    list: lambda item: _sequence(item, list),
    **dict.fromkeys(_MAPPINGS, _mapping),
}


def _schema_of(kind: Any) -> Schema:
    """Return the schema of a class, or of the one that ``module:Class`` names."""
    if isinstance(kind, str):
        module, _, name = kind.partition(":")
        kind = getattr(importlib.import_module(module), name)
    return schema(kind)


def _within(item: _Kind, value: Any, place: str) -> Any:
    """Read a value that is at `place` within another one; an error has this place."""
    try:
        return item.read(value)
    except _Refused as error:
        raise _Refused(error.what, place + error.place) from None


def _nested(kind: Any, value: Any) -> Any:
    errors: list[_Refused] = []
    found = read(kind, value, lambda place, what: errors.append(_Refused(what, f".{place}")))
    if errors:
        raise _Refused(errors[0].what, errors[0].place.rstrip("."))
    return found


def _foreign(kind: Any, value: Any) -> Any:
    """Read `value` by the ``from_json`` of a class that has one."""
    try:
        return kind.from_json(value)
    except ValueError as error:
        raise _Refused(f"is wrong: {error}") from None


# dataclasses


class _Spec(NamedTuple):
    """Description of a field of a dataclass."""

    name: str
    kind: _Kind
    default: Callable[[], Any]
    is_required: bool
    is_absent: bool
    is_inline: bool


def _specs(kind: Any) -> dict[str, _Spec]:
    """Return the public fields of a dataclass by their keys in JSON; absent ones come last."""
    return _specs_of(kind)


@cache
def _specs_of(kind: Any) -> dict[str, _Spec]:
    hints = get_type_hints(kind, localns=_names_in(kind), include_extras=True)
    found: dict[str, _Spec] = {}
    for each in fields(kind):
        if each.name.startswith("_"):
            continue
        hint, reader = hints[each.name], each.metadata.get("read")
        is_absent = "is_absent" in each.metadata
        if is_absent:
            hint = Union[tuple(get_args(hint)[:-1])]  # noqa: UP007  # without the None behind it
        value = None if each.default is MISSING else each.default
        found[each.metadata.get("key", each.name)] = _Spec(
            name=each.name,
            kind=_ruled(_ANYTHING, Rule(reader)) if reader else _kind_of(hint),
            default=_constant(value) if each.default_factory is MISSING else each.default_factory,
            is_required=each.default is MISSING and each.default_factory is MISSING,
            is_absent=is_absent,
            is_inline="is_inline" in each.metadata,
        )
    return dict(sorted(found.items(), key=lambda item: item[1].is_absent))


def _names_in(kind: Any) -> Mapping[str, Any]:
    """
    Return the objects behind the names in a class's annotations: first of its module, then of the
    vocabulary, then of this module.
    """
    from jitgen.support import vocabulary

    own = vars(sys.modules[kind.__module__])
    return ChainMap(own, vars(vocabulary), {"v": vocabulary}, globals())


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _write_object(value: Any) -> Schema:
    found: Schema = {}
    for key, spec in _specs(type(value)).items():
        each = getattr(value, spec.name)
        if spec.is_inline:
            found |= spec.kind.write(each)
        elif not (spec.is_absent and each is None):
            found[key] = spec.kind.write(each)
    return found


def _object_schema(kind: Any) -> Schema:
    properties: Schema = {}
    required: list[str] = []
    for key, spec in _specs(kind).items():
        described = spec.kind.describe()
        properties |= described["properties"] if spec.is_inline else {key: described}
        if not spec.is_absent:
            required += described["required"] if spec.is_inline else [key]
    return {"type": "object", "properties": properties, "required": required}
