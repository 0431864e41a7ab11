# SPDX-License-Identifier: Apache-2.0
"""What a rendered kernel has and does not use, as its syntax tree tells."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple


class Unused(NamedTuple):
    """
    Something that a kernel could do without.

    Attributes:
        kind: ``parameter``, ``field`` of a named tuple, ``condition`` or ``choice`` that constants
            decide.
        where: The function, the class or the condition.
        name: The parameter or the field, or what the condition is.
    """

    kind: str
    where: str
    name: str


def unused(text: str) -> Iterator[Unused]:
    """Yield what the source of a kernel could do without."""
    tree = ast.parse(text)
    known = _constants(tree)
    read = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield from _parameters(node)
        elif isinstance(node, ast.ClassDef):
            fields = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
            for field in fields:
                if isinstance(field, ast.Name) and field.id not in read:
                    yield Unused("field", node.name, field.id)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("const_expr"):
            if (value := _value(node.args[0], known)) is not None:
                yield Unused("condition", ast.unparse(node.args[0]), str(value))
        elif isinstance(node, ast.IfExp) and (value := _value(node.test, known)) is not None:
            yield Unused("choice", ast.unparse(node.test), str(value))


def _parameters(function: ast.FunctionDef) -> Iterator[Unused]:
    names = {
        each.id for part in function.body for each in ast.walk(part) if isinstance(each, ast.Name)
    }
    for each in (*function.args.args, *function.args.kwonlyargs):
        if each.arg not in names:
            yield Unused("parameter", function.name, each.arg)


def _constants(tree: ast.Module) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = _evaluated(node.value, known)
            if value is not None:
                known[node.targets[0].id] = value
    return known


def _value(node: ast.expr, known: dict[str, Any]) -> bool | None:
    value = _evaluated(node, known)
    return None if value is None else bool(value)


def _evaluated(node: ast.expr, known: dict[str, Any]) -> Any:
    """Return what an expression of constants is; None if it has anything else."""
    code = compile(ast.Expression(node), "", "eval")
    try:
        return eval(code, {"__builtins__": {}, "min": min, "max": max}, known)  # noqa: S307
    except (NameError, AttributeError, TypeError):
        return None
