# SPDX-License-Identifier: Apache-2.0
"""JSON Schema written out, for the documents of ``jitgen bench``, which are no dataclasses yet."""

from __future__ import annotations

from jitgen.support import vocabulary as v
from jitgen.support.codec import Schema, schema

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
WHOLE: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
NULL: Schema = {"type": "null"}
ANY: Schema = {}
COUNT = schema(v.Count)
SECONDS = schema(v.Seconds)
US = schema(v.Microseconds)
BYTES = schema(v.Bytes)
OK = schema(v.Ok)
NAME = schema(v.Name)
ARCH = schema(v.ArchName)
KEY = schema(v.Key)
REASON = schema(v.Reason)
PROBLEM = schema(v.ProblemValues)


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
