# SPDX-License-Identifier: Apache-2.0
"""
Functions of PTX: each call is replaced by the statements of the function, with new names.

So there is no stack, and a function that calls itself is refused. Parameters of a call are
registers: what ``st.param`` writes at an offset, ``ld.param`` reads there. ``ret`` in a function
continues after the call.

PTX ISA, sections "Kernel and Function Directives: .func", "call", "ret" and "Parameter State
Space".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from jitgen.emulator.program.instruction import split_operands
from jitgen.emulator.program.statements import Scope, Statement, scan
from jitgen.errors import UnsupportedPtx

_FUNCTION = re.compile(
    r"\.func\s+(?:\.\w+\s+)*(?:\(([^()]*)\)\s*)?([\w$]+)\s*(?:\(([^()]*)\))?"
    r"\s*(?:\.\w+(?:\s+\d+)?\s*)*([{;])"
)
_PARAM = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.\w+\s+([\w$]+)")
_CALL = re.compile(
    r"(?:@(!?)\s*(%?[\w$]+)\s+)?call(?:\.uni)?\s+"
    r"(?:\(([^()]*)\)\s*,\s*)?([\w$%]+)\s*(?:,\s*\(([^()]*)\))?\s*(?:,\s*([\w$]+))?"
)
_RETURN = re.compile(r"(@!?\s*%?[\w$]+\s+)?ret(?:\.uni)?")
_FAILURE = "__assertfail"
"""The function that device code calls where an assertion does not hold; it never returns."""


_PRINT = "vprintf"
"""
The function that device code prints with. Nothing is shown, and its result says that nothing was
printed.
"""


@dataclass(frozen=True, slots=True)
class Function:
    """
    A function of PTX.

    Attributes:
        name: Its name.
        params: Names of its results, then of its parameters.
        start, end: Indices at which its braces open and close; equal for a function without a body.
    """

    name: str
    params: tuple[str, ...]
    start: int
    end: int


@dataclass(slots=True)
class Caller:
    """
    The statements of a kernel, with those of the functions that it calls in place of the calls.

    Attributes:
        text: The PTX, without comments.
        functions: The functions by name.
        params: Unique names of all parameters of calls.
    """

    text: str
    functions: dict[str, Function]
    params: set[str] = field(default_factory=set)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def statements(self, start: int, end: int) -> Iterator[Statement]:
        """Yield the statements of the kernel in ``text[start:end]``."""
        return self._expanded(scan(self.text, start, end, Scope(), self._numbers), ())

    def _expanded(
        self, statements: Iterator[Statement], inside: tuple[str, ...]
    ) -> Iterator[Statement]:
        for statement in statements:
            if statement.is_label:
                yield statement
            elif found := _PARAM.match(statement.text):
                self.params.add(statement.scope.declare(found[1], is_register=False))
            elif call := _CALL.fullmatch(statement.text):
                yield from self._inlined(statement, call, inside)
            else:
                yield statement

    def _inlined(
        self, statement: Statement, call: re.Match[str], inside: tuple[str, ...]
    ) -> Iterator[Statement]:
        negation, guard, results, name, arguments, _ = call.groups()
        line, outer = statement.line, statement.scope
        guarded = f"@{negation}{guard} " if guard else ""
        if name == _FAILURE:
            yield Statement(f"{guarded}trap", False, line, outer)
            return
        if name == _PRINT:
            if results:
                text = f"{guarded}st.param.b32 [{results.strip()}], 0"
                yield Statement(text, False, line, outer)
            return
        function = self._function(name, line, inside)
        actual = split_operands(results or "") + split_operands(arguments or "")
        if len(actual) != len(function.params):
            raise UnsupportedPtx(f"PTX line {line}: {name} takes other parameters: {call[0]}")
        inner = Scope(next(self._numbers))
        for formal, given in zip(function.params, actual, strict=True):
            inner.unique[formal] = outer.resolve(given)
        done = f"$done@{inner.number}"
        if guard:
            yield Statement(f"@{'' if negation else '!'}{guard} bra {done}", False, line, outer)
        body = scan(self.text, function.start + 1, function.end, inner, self._numbers)
        for each in self._expanded(body, (*inside, name)):
            is_own = not each.is_label and each.scope.root is inner
            left = _RETURN.fullmatch(each.text) if is_own else None
            if left:
                yield Statement(f"{left[1] or ''}bra {done}", False, each.line, each.scope)
            else:
                yield each
        yield Statement(done, True, line, outer)

    def _function(self, name: str, line: int, inside: tuple[str, ...]) -> Function:
        """Return the function `name`; raises UnsupportedPtx if it calls itself or has no body."""
        function = self.functions.get(name)
        if name in inside:
            raise UnsupportedPtx(f"PTX line {line}: {name} calls itself, which is not emulated")
        if function is None or function.start == function.end:
            raise UnsupportedPtx(
                f"PTX line {line}: a call of {name}, whose code is not here", unknown=(name,)
            )
        return function


def functions(text: str) -> dict[str, Function]:
    """
    Return the functions in PTX without comments, by name.

    Raises:
        UnsupportedPtx: The text ends within one.
    """
    found = {}
    for match in _FUNCTION.finditer(text):
        results, name, params, last = match.groups()
        names = tuple(_PARAM.findall(results or "") + _PARAM.findall(params or ""))
        start = match.end() - 1
        end = start if last == ";" else closing(text, start)
        if name not in found or end > start:  # a declaration may stand before or behind
            found[name] = Function(name, names, start, end)
    return found


_BRACE = re.compile(r"[{}]")


def closing(text: str, start: int) -> int:
    """
    Return where the brace closes that opens at `start`.

    Raises:
        UnsupportedPtx: It does not.
    """
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.start()
    raise UnsupportedPtx("the PTX ends within a kernel or a function")
