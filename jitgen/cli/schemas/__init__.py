# SPDX-License-Identifier: Apache-2.0
"""
What ``--json`` prints, as JSON Schema (draft 2020-12): the one place where it is written down.

Every command has the documents that it may print, and beside them the one that says what failed. A
schema tells what is there in this version of jitgen; a later one may add fields, so none forbids
others. Tests check every document that any of them makes against it, and then nothing else is
allowed.
"""

from __future__ import annotations

from collections.abc import Iterable

from jitgen.cli.output import SCHEMA
from jitgen.cli.schemas import bench, caches, kernels, others
from jitgen.cli.schemas.words import TEXT, Schema, record, told

DIALECT = "https://json-schema.org/draft/2020-12/schema"

DOCUMENTS: dict[str, tuple[Schema, ...]] = {
    **kernels.DOCUMENTS,
    **caches.DOCUMENTS,
    **bench.DOCUMENTS,
    **others.DOCUMENTS,
}
"""What each command may print."""

_ERROR = record({"error": told(record({"type": TEXT, "message": TEXT}), "what failed")})


def schema_of(commands: Iterable[str]) -> Schema:
    """Return the schema of what commands print, each named by its words: ``cache ls``."""
    names = list(commands)
    variants = [_begun(name, each) for name in names for each in DOCUMENTS[name]]
    return {
        "$schema": DIALECT,
        "title": f"jitgen {names[0]} --json" if len(names) == 1 else "jitgen --json",
        "anyOf": [*variants, _begun("error", _ERROR)],
    }


def _begun(command: str, document: Schema) -> Schema:
    """Return a document with the fields that all begin with."""
    begin = {"schema": {"const": SCHEMA}, "command": {"const": command}}
    return {
        **document,
        "properties": {**begin, **document["properties"]},
        "required": [*begin, *document["required"]],
    }
