# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document, made from the table of resources."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from jitgen._version import __version__
from jitgen.remote.wire import TAR
from jitgen.server.resources import TABLE, Resource

_HEX = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_BODIES: dict[str, dict[str, Any]] = {
    "compile": {
        "config": {"type": "object", "description": "a config in its JSON form, never source"},
        "arch": {"type": "string", "description": "a target that ``jitgen configs`` knows"},
        "key": _HEX,
        "toolchain": _TEXTS,
    },
    "prewarm": {
        "plan": {"type": ["string", "object"], "description": "a shipped plan, or its table"},
        "arch": {"type": "string"},
        "toolchain": _TEXTS,
    },
    "missing": {"keys": {"type": "array", "items": _HEX}},
    "revoke": {"revoked": _TEXTS},
}
_QUERIES: dict[str, list[dict[str, Any]]] = {
    "entry": [
        {
            "name": "unattested",
            "in": "query",
            "schema": {"type": "string", "enum": ["1"]},
            "description": "what a client gave will do, where the service has nothing of its own",
        }
    ]
}
_ERROR = {
    "type": "object",
    "required": ["code", "reason"],
    "properties": {"code": {"type": "string"}, "reason": {"type": "string"}},
}


@cache
def document() -> dict[str, Any]:
    """Return the document."""
    paths: dict[str, dict[str, Any]] = {}
    for resource in TABLE:
        for method in resource.methods:
            paths.setdefault(resource.path, {})[method.lower()] = _operation(resource, method)
    return {
        "openapi": "3.1.0",
        "info": {"title": "jitgen compile service", "version": __version__},
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _ERROR},
        },
    }


def _operation(resource: Resource, method: str) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{resource.name}_{method.lower()}",
        "summary": resource.summary,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": _HEX}
            for name in re.findall(r"{(\w+)}", resource.path)
        ],
        "responses": {
            str(status): _response(resource, status, words)
            for status, words in sorted(resource.all_answers.items())
        },
    }
    if resource.name in _QUERIES:
        operation["parameters"] += _QUERIES[resource.name]
    if resource.scope:
        operation["security"] = [{"token": []}]
        operation["x-scope"] = resource.scope
    if resource.name in _BODIES:
        fields = _BODIES[resource.name]
        schema = {"type": "object", "properties": fields, "required": sorted(fields)}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": {**schema, "additionalProperties": False}}},
        }
    elif resource.name == "upload":
        operation["requestBody"] = {"required": True, "content": {TAR: {}}}
    return operation


def _response(resource: Resource, status: int, words: str) -> dict[str, Any]:
    response: dict[str, Any] = {"description": words}
    if status >= 400:
        schema = {"$ref": "#/components/schemas/Error"}
        response["content"] = {"application/json": {"schema": schema}}
    elif status == 200 and resource.name in ("entry", "compile"):
        response["content"] = {TAR: {}}
    return response
