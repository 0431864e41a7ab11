# SPDX-License-Identifier: Apache-2.0
"""
Mistakes in synchronisation: a wait, arrival, fence, commit or step to the next phase is left out,
or stands before or behind its neighbour; another number of arrivals is expected; the first phase is
that of the other side; all lanes do what one is elected for.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.mutants.mutant import Mutant, Text

_CALLS = re.compile(
    r"wait|acquire|commit|release|tail|sync|fence|barrier|arrive|advance|give_back"
    r"|(^|_)(allocate|free)$"
)
"""Calls that synchronise, by their names."""

_ARITHMETIC = ("ceil_div", "size", "mode", "Int32", "min", "max", "Cta", "producer_get_barrier")
"""Calls that access no memory."""

_SIDES = {"Producer": "Consumer", "Consumer": "Producer"}

_COUNTS = ("num_slots", "num_producers", "num_consumers")
"""Arguments of `make_pipeline` behind the first two."""


def mutants(source: str) -> Iterator[Mutant]:
    """Yield every mistake of the functions of a generated source."""
    text = Text(source)
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                yield from _of_block(getattr(node, "body", ()), text)
                yield from _of_block(getattr(node, "orelse", ()), text)
                yield from _of(node, text)


def _of_block(block: list[ast.stmt], text: Text) -> Iterator[Mutant]:
    """Yield what may be wrong with the order of statements: one lacks, or two change places."""
    if not isinstance(block, list):
        return
    for number, statement in enumerate(block):
        if not _synchronises(statement):
            continue
        yield text.mutant(statement, "pass")
        for one, other in ((number - 1, number), (number, number + 1)):
            if one >= 0 and other < len(block) and _may_move(block[one], block[other]):
                yield _swapped(block[one], block[other], text)


def _synchronises(statement: ast.stmt) -> bool:
    """Say whether a statement is a call that synchronises."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    return bool(_CALLS.search(_word(statement.value)))


def _word(call: ast.Call) -> str:
    name = call.func
    return name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")


def _may_move(one: ast.stmt, other: ast.stmt) -> bool:
    """Say whether it means something that two statements change places."""
    return not any(map(_is_still, (one, other))) and not isinstance(other, ast.Return)


def _is_still(statement: ast.stmt) -> bool:
    """Say whether a statement is a text, arithmetic of registers, or a hint about time."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return _word(statement.value) == "griddepcontrol_launch_dependents"
    if not isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign)):
        return False
    nodes = [*ast.walk(statement)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    reads = any(isinstance(node, ast.Subscript) for node in nodes)
    return not reads and all(_word(call) in _ARITHMETIC for call in calls)


def _swapped(one: ast.stmt, other: ast.stmt, text: Text) -> Mutant:
    """Return the mistake that two neighbours have changed places."""
    (start, first_end), (second, end) = text.span(one), text.span(other)
    between = text.text[first_end:second]
    new = text.of(other) + "\n" + " " * one.col_offset + text.of(one)
    if "#" in between:  # a comment goes with the statement that it stands beside
        new = text.of(other) + between + text.of(one)
    return Mutant(start, end, text.text[start:end], new)


def _of(node: ast.AST, text: Text) -> Iterator[Mutant]:
    """Yield the mistakes of one node."""
    if isinstance(node, ast.Attribute) and node.attr in _SIDES:
        _, end = text.span(node)
        yield Mutant(end - len(node.attr), end, node.attr, _SIDES[node.attr])
    elif isinstance(node, ast.Call) and _word(node) == "make_pipeline":
        for argument in node.args[2 : 2 + len(_COUNTS)]:
            for step in ("+ 1", "- 1"):
                yield text.mutant(argument, f"({text.of(argument)}) {step}")
    elif isinstance(node, ast.With) and "elect_one" in text.of(node.items[0].context_expr):
        start, end = text.at(node.lineno, node.col_offset), text.span(node.items[0].context_expr)[1]
        yield Mutant(start, end, text.text[start:end], "if True")
    elif isinstance(node, ast.keyword) and node.arg == "is_relaxed":
        yield text.mutant(node.value, str(text.of(node.value) != "True"))
