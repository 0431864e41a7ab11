# SPDX-License-Identifier: Apache-2.0
"""
Mistakes in values and indices, drawn from the source of a kernel by chance, for `jitgen verify`.

    python -m tests.mutants combine --arch sm_90a --count 20 --seed 1

A mistake changes one integer by one, one operator, one comparison or min to max. Those whose PTX is
that of the kernel are none; what else is called right is printed, to be read: it is equivalent, or
`verify` asks too little.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

from jitgen.codegen.render import render, source_of
from jitgen.config import Arch
from jitgen.config.plugins import OPERATIONS
from jitgen.errors import JitgenError
from jitgen.verify.artifacts import compiled
from jitgen.verify.verification import verify
from tests.cases import pool
from tests.covering import covering

TIME_LIMIT_S = 30
"""For one mode of one problem: a wrong bound may make a loop endless."""

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


class Mutant(NamedTuple):
    """One mistake: the text at `start` of line `line` to `end` is `new`."""

    line: int
    start: int
    end: int
    old: str
    new: str

    def applied(self, text: str) -> str:
        """Return `text` with the mistake."""
        lines = text.split("\n")
        line = lines[self.line - 1]
        lines[self.line - 1] = line[: self.start] + self.new + line[self.end :]
        return "\n".join(lines)

    def shown(self, text: str) -> str:
        """Return the line and the mistake in it."""
        line = text.split("\n")[self.line - 1]
        return f"line {self.line}: {line.strip()}   [{self.old} -> {self.new}]"


def mutants(text: str) -> Iterator[Mutant]:
    """Yield every mistake of the functions of a generated source."""
    tree = ast.parse(text)
    for function in ast.walk(tree):
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


def _of(node: ast.AST, text: str) -> Iterator[Mutant]:
    """Yield the mistakes of one node, if it stands on one line."""
    lines = text.split("\n")
    if isinstance(node, ast.Constant) and type(node.value) is int and node.end_col_offset:
        where = (node.lineno, node.col_offset, node.end_col_offset)
        for new in (node.value + 1, node.value - 1):
            yield Mutant(*where, str(node.value), str(new) if new >= 0 else f"({new})")
    elif isinstance(node, (ast.BinOp, ast.Compare)):
        left = node.left
        right = node.right if isinstance(node, ast.BinOp) else node.comparators[0]
        operator = node.op if isinstance(node, ast.BinOp) else node.ops[0]
        new_operator = _OPERATORS.get(type(operator))
        if new_operator and left.end_lineno == right.lineno and left.end_col_offset:
            between = lines[left.end_lineno - 1][left.end_col_offset : right.col_offset]
            if found := re.search(r"[^\s()]+", between):
                start = left.end_col_offset + found.start()
                end = left.end_col_offset + found.end()
                yield Mutant(left.end_lineno, start, end, found[0], new_operator)
    elif isinstance(node, ast.Call):
        name = node.func
        word = name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")
        if (new := _OTHER_NAMES.get(word)) and name.end_col_offset and name.end_lineno:
            start = name.end_col_offset - len(word)
            yield Mutant(name.end_lineno, start, name.end_col_offset, word, new)


def judged(name: str, op: str, arch: str, mutant: Mutant) -> tuple[str, str]:
    """Return the verdict on a mistake in the kernel `name`, one word, and why it was refused."""
    config = next(each.config for each in kernels(op, arch) if each.config.name(arch) == name)
    source = render(config, Arch.parse(arch))
    try:
        right = compiled(source)
        wrong = compiled(source_of(config, Arch.parse(arch), mutant.applied(source.text)))
    except JitgenError as error:
        return "refused", str(error)
    if _code(right.ptx) == _code(wrong.ptx):
        return "same", ""
    try:
        verdict = verify(config, arch, artifact=wrong, time_limit_s=TIME_LIMIT_S)
    except (TypeError, ValueError) as error:  # the entry takes no such tensors
        return "refused", str(error)
    return ("survived" if verdict.is_right else "found"), ""


def _code(ptx: str) -> str:
    """Return PTX without places of the source and sections of debugging."""
    return re.sub(r"(?m)^\s*(\.loc|\.file|//).*$", "", ptx).partition(".section")[0]


def kernels(op: str, arch: str) -> list[object]:
    """Return kernels of an operation that have between them every value of every field."""
    return covering(pool(Arch.parse(arch), op), lambda kernel: kernel.values)


def _worker() -> ProcessPoolExecutor:
    """Return a process for compilers, which may end it."""
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def main() -> int:
    """Draw mistakes, judge each, print those that survive, and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("op")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--kernel", type=int, default=0, help="which of the covering kernels")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.op not in OPERATIONS.names():
        parser.error(f"{given.op!r} is not one of {', '.join(OPERATIONS.names())}")
    config = kernels(given.op, given.arch)[given.kernel].config
    name, text = config.name(given.arch), render(config, Arch.parse(given.arch)).text
    all_of_them = sorted(set(mutants(text)))
    drawn = random.Random(given.seed).sample(all_of_them, min(given.count, len(all_of_them)))
    counts: Counter[str] = Counter()
    print(f"{name}: {len(drawn)} of {len(all_of_them)} mistakes", flush=True)
    worker = _worker()
    for mutant in drawn:
        try:
            word, reason = worker.submit(judged, name, given.op, given.arch, mutant).result()
        except BrokenExecutor:  # the compiler ended the process
            word, reason = "refused", ""
            worker = _worker()
        counts[word] += 1
        if word == "survived":
            print(f"  survived: {mutant.shown(text)} {reason}", flush=True)
    print(f"{name}: " + ", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
