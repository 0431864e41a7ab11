# SPDX-License-Identifier: Apache-2.0
"""Documents of dataclasses: what is written is what the schema says and what is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field, fields
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitgen.support.codec import (
    Rule,
    absent,
    from_json,
    inline,
    like,
    named,
    of,
    one_of,
    read,
    schema,
    to_json,
)
from jitgen.support.documents import BadDocument
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.support import vocabulary as v


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Own:
    """A class that writes and reads itself."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and other.number == self.number

    __hash__ = None  # type: ignore[assignment]

    def to_json(self) -> dict[str, Any]:
        return {"number": self.number}

    @classmethod
    def from_json(cls, document: Any) -> Self:
        if document.get("number") is None:
            raise BadDocument("it has no number")
        return cls(document["number"])


def _moment(text: Any) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise ValueError("a time") from None


Moment = Annotated[datetime, Rule(_moment, datetime.isoformat, type="string", format="date-time")]
Port = Annotated[int, Rule(minimum=0, maximum=65535, description="TCP port")]
Word = Annotated[str, Rule(pattern="^[a-z]+$", maxLength=5)]


@frozen
class Part:
    name: Word
    ports: Annotated[tuple[Port, ...], Rule(minItems=1, maxItems=3)]


@frozen
class Whole:
    """One field of each kind."""

    text: str
    number: float
    is_on: bool
    colour: Colour
    side: Annotated[str, one_of("left", "right")]
    since: Moment
    where: Path
    parts: tuple[Part, ...]
    counts: Mapping[str, int]
    own: Own
    anything: Any
    from_: str = named("from")
    maybe: Part | None = None
    names: list[str] = field(default_factory=list)
    note: str | None = absent()
    _private: int = 0


WHOLE = {
    "text": "a",
    "number": 1.5,
    "is_on": True,
    "colour": "red",
    "side": "left",
    "since": "2026-01-02T03:04:05+00:00",
    "where": "/tmp",
    "parts": [{"name": "ab", "ports": [1, 2]}],
    "counts": {"x": 1},
    "own": {"number": 3},
    "anything": [1, {"a": None}],
    "from": "here",
}


def test_what_was_written_is_read() -> None:
    whole = from_json(Whole, WHOLE)

    assert whole.since == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert whole.colour is Colour.RED
    assert whole.where == Path("/tmp")
    assert whole.parts == (Part(name="ab", ports=(1, 2)),)
    assert whole.own == Own(3)
    assert to_json(whole) == {**WHOLE, "maybe": None, "names": []}
    assert [*to_json(whole)][-3:] == ["from", "maybe", "names"]
    assert from_json(Whole, to_json(whole)) == whole


@frozen
class Opaque:
    value: object


def test_an_object_is_any_value() -> None:
    document = {"value": [1, {"a": None}]}

    assert to_json(from_json(Opaque, document)) == document
    assert schema(Opaque)["properties"] == {"value": {}}


def test_a_field_may_be_absent() -> None:
    assert to_json(from_json(Whole, {**WHOLE, "note": "n"}))["note"] == "n"
    with pytest.raises(BadDocument, match=r"note must be a text \(got None\)"):
        from_json(Whole, {**WHOLE, "note": None})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": 1}, r"text must be a text \(got 1\)"),
        ({"number": True}, "number must be a number"),
        ({"is_on": 1}, "is_on must be true or false"),
        ({"colour": "green"}, r"colour must be red or blue \(got 'green'\)"),
        ({"colour": ["red"]}, "colour must be a text"),
        ({"side": "up"}, "side must be left or right"),
        ({"since": "yesterday"}, "since must be a time"),
        ({"where": 3}, "where must be a text"),
        ({"parts": {}}, "parts must be a list"),
        ({"parts": [1]}, r"parts\[0\] must be an object with name, ports"),
        ({"parts": [{"name": "ab"}]}, r"parts\[0\].ports is missing"),
        ({"parts": [{"name": "A", "ports": [1]}]}, r"parts\[0\].name must be a text that matches"),
        ({"parts": [{"name": "abcdef", "ports": [1]}]}, "of at most 5 characters"),
        ({"parts": [{"name": "a", "ports": []}]}, "ports must be a list from 1 to 3 items"),
        (
            {"parts": [WHOLE["parts"][0], {"name": "a", "ports": [1, 70000]}]},  # type: ignore[index]
            r"parts\[1\].ports\[1\] must be an integer from 0 to 65535 \(got 70000\)",
        ),
        ({"counts": {"x": "1"}}, r"counts.x must be an integer"),
        ({"own": {}}, "own is wrong: it has no number"),
        ({"maybe": 1}, "maybe must be an object with name, ports"),
        ({"more": 1}, "more is not known; allowed here: text, number"),
        ({"_private": 1}, "_private is not known"),
    ],
    ids=str,
)
def test_what_is_not_allowed_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadDocument, match=message):
        from_json(Whole, WHOLE | change)


def test_what_is_missing_is_refused() -> None:
    for name in WHOLE:
        with pytest.raises(BadDocument, match=f"{name} is missing"):
            from_json(Whole, {key: value for key, value in WHOLE.items() if key != name})
    with pytest.raises(BadDocument, match="it must be an object with text"):
        from_json(Whole, [])


def _port(value: Any) -> int:
    if type(value) is not int:
        raise ValueError("a port")
    return value


@frozen
class Settings:
    """Fields as a file of settings has them."""

    port: int = of(_port, 80, "port to listen on")
    folder: Path | None = None


def test_every_error_of_a_file_is_reported() -> None:
    errors: list[str] = []
    document = {"prot": 1, "port": "x", "folder": 3}
    found = read(
        Settings, document, lambda place, what: errors.append(f"{place}: {what}"), "listen"
    )

    assert found == Settings()
    assert fields(Settings)[0].metadata["help"] == "port to listen on"
    assert [line.partition(" (got")[0] for line in errors] == [
        "listen.prot: is not known; allowed here: port, folder",
        "listen.port: must be a port",
        "listen.folder: must be a text",
    ]


@frozen
class Joined:
    number: int
    part: Part = inline()
    verbatim: Annotated[Mapping[str, Any], Part]


def test_an_object_stands_in_another_one() -> None:
    part = Part(name="a", ports=(1,))
    made = Joined(number=1, part=part, verbatim={"name": "b", "ports": [2]})
    document = {"number": 1, "name": "a", "ports": [1], "verbatim": {"name": "b", "ports": [2]}}

    assert to_json(made) == document
    assert [*to_json(made)] == [*document] == schema(Joined)["required"]
    assert schema(Joined)["properties"]["name"] == schema(Part)["properties"]["name"]
    assert schema(Joined)["properties"]["verbatim"] == schema(Part)


@frozen
class Late:
    part: Annotated[Any, f"{__name__}:Part"]
    missing: Annotated[Any, "jitgen.no_such_module:Class"]
    seconds: v.Seconds  # as where it is imported for types alone


def test_a_class_may_be_named_and_is_not_imported_before_it_is_described() -> None:
    part = Part(name="a", ports=(1,))

    assert to_json(Late(part=part, missing=None, seconds=1.0)) == {
        "part": {"name": "a", "ports": [1]},
        "missing": None,
        "seconds": 1.0,
    }
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        schema(Late)
    assert schema(Annotated[Any, f"{__name__}:Part"]) == schema(Part)


def test_a_document_is_filled_from_another_object() -> None:
    made = like(Part, Path("/a/b"), ports=(1,))

    assert made == Part(name="b", ports=(1,))


def test_the_schema_is_that_of_the_types() -> None:
    part = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
            "ports": {
                "type": "array",
                "items": {
                    "type": "integer",
                    "minimum": 0,
                    "maximum": 65535,
                    "description": "TCP port",
                },
                "minItems": 1,
                "maxItems": 3,
            },
        },
        "required": ["name", "ports"],
    }
    whole = schema(Whole)

    assert schema(Part) == part
    assert whole["properties"]["parts"] == {"type": "array", "items": part}
    assert whole["properties"]["maybe"] == {"anyOf": [part, {"type": "null"}]}
    assert whole["properties"]["colour"] == {"enum": ["red", "blue"]}
    assert whole["properties"]["side"] == {"enum": ["left", "right"]}
    assert whole["properties"]["since"] == {"type": "string", "format": "date-time"}
    assert whole["properties"]["note"] == {"type": "string"}
    assert whole["properties"]["anything"] == {}
    assert set(whole["properties"]) - set(whole["required"]) == {"note"}
    assert schema(Annotated[str | Path, Rule(description="a file")]) == {
        "type": "string",
        "description": "a file",
    }


_PARTS = st.builds(
    Part,
    name=st.from_regex("^[a-z]{1,5}$", fullmatch=True),
    ports=st.lists(st.integers(0, 65535), min_size=1, max_size=3).map(tuple),
)


@given(
    st.builds(
        Whole,
        text=st.text(),
        number=st.floats(allow_nan=False, allow_infinity=False),
        is_on=st.booleans(),
        colour=st.sampled_from(Colour),
        side=st.sampled_from(["left", "right"]),
        since=st.datetimes(timezones=st.just(UTC)),
        where=st.just(Path("/a")),
        parts=st.lists(_PARTS, max_size=3).map(tuple),
        counts=st.dictionaries(st.text(), st.integers()),
        own=st.builds(Own, st.integers()),
        anything=st.none() | st.lists(st.integers()),
        from_=st.text(),
        maybe=st.none() | _PARTS,
        names=st.lists(st.text()),
        note=st.none() | st.text(),
    )
)
def test_writing_and_reading_are_inverse_and_keep_to_the_schema(whole: Whole) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="needs jitgen[dev]")
    document = json.loads(json.dumps(to_json(whole)))

    assert from_json(Whole, document) == whole
    jsonschema.Draft202012Validator(schema(Whole)).validate(document)
