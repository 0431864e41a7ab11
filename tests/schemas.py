# SPDX-License-Identifier: Apache-2.0
"""What `jitgen schema` says, held against what commands print."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jitgen.cli.output import SCHEMA
from jitgen.cli.schemas import DOCUMENTS, schema_of
from jitgen.support.text import json_safe


def closed(schema: Any) -> Any:
    """Return a schema that allows no field that it does not name: else it could say nothing."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(value) for name, value in schema.items()}
    if "properties" in found and "required" in found:
        found.setdefault("additionalProperties", False)
    return found


@cache
def _validators(command: str) -> list[Any]:
    """Return a validator for each document that a command may print, or for that of errors."""
    from jsonschema import Draft202012Validator

    is_error = command == "error"
    *own, error = schema_of([next(iter(DOCUMENTS)) if is_error else command])["anyOf"]
    checker = Draft202012Validator.FORMAT_CHECKER
    return [
        Draft202012Validator(closed(each), format_checker=checker)
        for each in ([error] if is_error else own)
    ]


def mistakes(command: str, document: Any) -> list[str]:
    """
    Return where the output of a command breaks its schema; `document` lacks the fields with which
    every output begins.
    """
    whole = {"schema": SCHEMA, "command": command, **document}
    printed = json.loads(json_safe(json.dumps(whole)))
    if command != "error" and command not in DOCUMENTS:
        return [f"jitgen schema knows no command {command}"]
    found = [[*each.iter_errors(printed)] for each in _validators(command)]
    nearest = min(found, key=len)
    return [f"{command}: {error.json_path}: {error.message[:300]}" for error in nearest]
