# SPDX-License-Identifier: Apache-2.0
"""Mistakes in values and indices: an integer, an operator, a comparison, min or max."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.mutants.mutant import Mutant, Text

_OPERATORS = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.FloorDiv: "%",
    ast.Mod: "//",
    ast.RShift: "<<",
    ast.LShift: ">>",
    ast.BitAnd: "|",
    ast.BitXor: "&",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
}
"""What takes the place of an operator."""

_OTHER_NAMES = {"min": "max", "max": "min"}

_UNSEEN = ("unroll", "vectorize", "alignment", "assumed_align", "loc", "ip", "name")
"""Arguments of calls that change no value."""


def mutants(source: str) -> Iterator[Mutant]:
    """Yield every mistake of the functions of a generated source."""
    text = Text(source)
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body:
                for node in _seen(statement):
                    yield from _of(node, text)


def _seen(node: ast.AST) -> Iterator[ast.AST]:
    """Yield `node` and what is below it, without functions, annotations and hints."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Assert)):
        return
    if isinstance(node, ast.keyword) and node.arg in _UNSEEN:
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name != "annotation":
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.AST):
                    yield from _seen(each)


def _of(node: ast.AST, text: Text) -> Iterator[Mutant]:
    """Yield the mistakes of one node."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        for new in (node.value + 1, node.value - 1):
            yield text.mutant(node, str(new) if new >= 0 else f"({new})")
    elif isinstance(node, (ast.BinOp, ast.Compare)):
        left = node.left
        right = node.right if isinstance(node, ast.BinOp) else node.comparators[0]
        operator = node.op if isinstance(node, ast.BinOp) else node.ops[0]
        if new_operator := _OPERATORS.get(type(operator)):
            (_, first), (last, _) = text.span(left), text.span(right)
            if found := re.search(r"[^\s()]+", text.text[first:last]):
                start, end = first + found.start(), first + found.end()
                yield Mutant(start, end, found[0], new_operator)
    elif isinstance(node, ast.Call):
        name = node.func
        word = name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")
        if new_name := _OTHER_NAMES.get(word):
            _, end = text.span(name)
            yield Mutant(end - len(word), end, word, new_name)
