# SPDX-License-Identifier: Apache-2.0
"""The words that schemas are written with, and the fields that mean one thing in all documents."""

from __future__ import annotations

from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
WHOLE: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
NULL: Schema = {"type": "null"}
ANY: Schema = {}
"""Whatever JSON can say: values of key documents, fields of problems."""


def told(kind: Schema, text: str) -> Schema:
    """Return `kind` with a description."""
    return {**kind, "description": text}


def record(fields: dict[str, Schema], **maybe: Schema) -> Schema:
    """Return an object with `fields`, which are there always, and those of `maybe`."""
    return {"type": "object", "properties": {**fields, **maybe}, "required": [*fields]}


def items(kind: Schema) -> Schema:
    """Return a list of any length."""
    return {"type": "array", "items": kind}


def named(kind: Schema, names: str = "") -> Schema:
    """Return an object whose keys are `names` of something, each with a value of one kind."""
    found: Schema = {"type": "object", "additionalProperties": kind}
    return told(found, f"by {names}") if names else found


def nullable(kind: Schema) -> Schema:
    """Return `kind`, or null."""
    return {"anyOf": [kind, NULL]}


def one_of(*values: str) -> Schema:
    """Return a text that is one of `values`."""
    return {"enum": [*values]}


COUNT = {"type": "integer", "minimum": 0}
SECONDS = told({"type": "number", "minimum": 0}, "seconds")
US = told({"type": "number", "minimum": 0}, "microseconds")
BYTES = told(COUNT, "bytes")
WHEN = told({"type": "string", "format": "date-time"}, "ISO 8601 in UTC")
OK = told(FLAG, "whether what was asked for is so; the exit code says the same")
NAME = told(TEXT, "the readable name of a kernel")
ARCH = told(TEXT, "a target, as JITGEN_ARCH names it")
KEY = told(TEXT, "the digest of a kernel's key document")
REASON = told(TEXT, "why not, in a sentence; empty where there is nothing to tell")
FILE = told(TEXT, "the path of a file that was read or written")
CONFIG = told(
    record({"op": TEXT}) | {"additionalProperties": True},
    "the exact form that the from_json of its operation's config reads",
)
DERIVED = told(named(ANY), "the numbers that follow from a config")
PROBLEM = told(named(ANY), "the fields of a problem of its operation")
ID = {"name": NAME, "arch": ARCH, "key": KEY}
"""With what documents about one kernel begin."""
