# SPDX-License-Identifier: Apache-2.0
"""A kernel's source has its constants first, then the kernel, its main loop, the helpers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from jitgen.codegen.render import render
from jitgen.config import Arch, Config
from tests.pinned import NAMES
from tests.unit.test_specialise import KERNELS

FEW = 2
"""Functions that may stand before the kernel: those that compute a constant."""


def _at_once(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement reads when the module is loaded."""
    for child in ast.iter_child_nodes(node):
        is_body = isinstance(node, ast.FunctionDef) and child in node.body
        if not is_body and not isinstance(node, ast.Lambda):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load):
                yield child.id
            yield from _at_once(child)


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    stored = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    names = {each.id for each in stored if isinstance(each.ctx, ast.Store)}
    return names if isinstance(node, ast.Assign) else set()


@pytest.mark.parametrize("name", sorted({*KERNELS, *NAMES}))
def test_what_is_read_at_once_stands_before(name: str) -> None:
    """Names in functions are looked up when they are called; constants and decorators are not."""
    tree = ast.parse(render(*Config.parse(name)).text)
    every = {name for node in tree.body for name in _defined(node)}
    before: set[str] = set()
    early = []
    for node in tree.body:
        own = _defined(node) if isinstance(node, ast.Assign) else set()
        early += [word for word in _at_once(node) if word in every - before - own]
        before |= _defined(node)

    assert early == []


@pytest.mark.parametrize("name", KERNELS)
def test_the_kernel_stands_before_its_helpers(name: str) -> None:
    """On a GPU what it launches, on a CPU the entry."""
    config, arch = Config.parse(name)
    tree = ast.parse(render(config, arch).text)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    wanted = "cute.kernel" if Arch.parse(arch).is_gpu else "cute.jit"
    first = next(
        number
        for number, node in enumerate(functions)
        if any(ast.unparse(each) == wanted for each in node.decorator_list)
        and (Arch.parse(arch).is_gpu or node.name == config.op)
    )

    assert first <= FEW, [node.name for node in functions[:first]]
