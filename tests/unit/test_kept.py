# SPDX-License-Identifier: Apache-2.0
"""
What the rooms that others' tensors come into keep beyond a call: each place is known here, and how
it finds out that what it was made of has changed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import jitgen

ROOT = Path(jitgen.__file__).parent

KEPT = {
    "integrations/sizes.py _seen": "sizes whose kernels are in the store: no tensor",
    "integrations/sglang_experts.py chains": "references: Places of weights and scales",
    "integrations/transformers_chains.py _kept": "references: Places of weights and scales",
    "integrations/transformers_chains.py _held": "copies that were asked for: Versions of weights",
    "integrations/vllm_experts.py self._kept": "references: Places of weights and scales",
    "torch/operands.py _of_arch()": "a number of each target",
}
"""A new place belongs here, with `jitgen.ops.versions` or a reason why it needs none."""

ROOMS = ("integrations", "torch")


def kept(name: str, tree: ast.Module) -> Iterator[str]:
    """Yield what a module fills while it runs: empty containers, attributes, memories of calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            if any("cache" in ast.unparse(each) for each in node.decorator_list):
                yield f"{name} {node.name}()"
            if any(isinstance(each, ast.FunctionDef) for each in node.body):  # which may fill it
                yield from (f"{name} {each}" for each in _empty(node.body))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield f"{name} {ast.unparse(node)}"
        elif isinstance(node, ast.Global):
            yield from (f"{name} {each}" for each in node.names)
    yield from (f"{name} {each}" for each in _empty(tree.body))


def _empty(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Assign):
            targets = node.targets
        else:
            continue
        value = node.value
        is_empty = (isinstance(value, ast.Dict) and not value.keys) or (
            isinstance(value, (ast.List, ast.Set)) and not value.elts
        )
        if is_empty or (isinstance(value, ast.Call) and not value.args and not value.keywords):
            yield from (ast.unparse(target) for target in targets)


def test_every_place_is_known() -> None:
    found = set()
    for room in ROOMS:
        for path in sorted((ROOT / room).glob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            found |= set(kept(name, ast.parse(path.read_text(encoding="utf-8"))))

    assert found == KEPT.keys() | {
        # set once, when vLLM and SGLang are told of jitgen, and no tensor
        "integrations/vllm.py oracle.backend_to_kernel_cls",
    }


def test_places_are_found() -> None:
    """Of every kind that the search knows."""
    text = """
_a = {}
_b: dict[int, int] = WeakKeyDictionary()
_c = {1: 2}

@cache
def made(): ...

def outer():
    d = set()
    def inner(): d.add(1)

class Layer:
    def run(self): self.e = 1
"""
    assert set(kept("m", ast.parse(text))) == {"m _a", "m _b", "m made()", "m d", "m self.e"}
