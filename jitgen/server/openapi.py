# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document, made from the table of routes."""

from __future__ import annotations

import re
from functools import cache

from jitgen._version import __version__
from jitgen.remote.wire import TAR
from jitgen.server.routes import ROUTES, Route

_HEX = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_BODIES: dict[str, dict[str, object]] = {
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
    "unrevoke": {"revoked": _TEXTS},
}
_QUERIES: dict[str, list[dict[str, object]]] = {
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
def document() -> dict[str, object]:
    """Return the OpenAPI document of the service."""
    paths: dict[str, dict[str, object]] = {}
    for route in ROUTES:
        for method in route.methods:
            paths.setdefault(route.path, {})[method.lower()] = _operation(route, method)
    return {
        "openapi": "3.1.0",
        "info": {"title": "jitgen compile service", "version": __version__},
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _ERROR},
        },
    }


def _operation(route: Route, method: str) -> dict[str, object]:
    parameters: list[object] = [
        {"name": name, "in": "path", "required": True, "schema": _HEX}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    parameters += _QUERIES.get(route.name, [])
    operation: dict[str, object] = {
        "operationId": f"{route.name}_{method.lower()}",
        "summary": route.summary,
        "parameters": parameters,
        "responses": {
            str(status): _response(route, status, words)
            for status, words in sorted(route.all_answers.items())
        },
    }
    if route.scope:
        operation["security"] = [{"token": []}]
        operation["x-scope"] = route.scope
    if route.name in _BODIES:
        fields = _BODIES[route.name]
        schema = {"type": "object", "properties": fields, "required": sorted(fields)}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": {**schema, "additionalProperties": False}}},
        }
    elif route.name == "upload":
        operation["requestBody"] = {"required": True, "content": {TAR: {}}}
    return operation


def _response(route: Route, status: int, words: str) -> dict[str, object]:
    response: dict[str, object] = {"description": words}
    if status >= 400:
        schema = {"$ref": "#/components/schemas/Error"}
        response["content"] = {"application/json": {"schema": schema}}
    elif status == 200 and route.name in ("entry", "compile"):
        response["content"] = {TAR: {}}
    return response
