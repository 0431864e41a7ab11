# SPDX-License-Identifier: Apache-2.0
"""
Mistakes in correct kernels: edits of their PTX, or source, and what must be found in what comes of
them.

An edit of PTX is a pattern that survives another compiler: opcodes and what stands next to them,
never a register or a label. See `swap` for how to write one, and `rewrite` for edits of sources.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

Edit = Callable[[str], str]
Replacement = str | Callable[[str], str]

_NEXT = r"\s*\n(?:[ \t]*(?:\.loc|//)[^\n]*\n|[ \t]*\n)*[ \t]*"
"""From the end of an instruction to the next one, over line information, comments, empty lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """
    A mistake.

    Attributes:
        name: Description of the mistake.
        program: Name of the program in which it is made.
        edit: Function that makes it.
        kind: Kind of the finding that it must give; ``fault`` or ``deadlock`` if the kernel does
            not come to its end, ``wrong`` if only the result shows it.
        names: Texts that the finding must contain, in this order.
        of_source: Whether the edit is one of the source, which is compiled again, not of the PTX.
    """

    name: str
    program: str
    edit: Edit
    kind: str
    names: tuple[str, ...] = ()
    of_source: bool = False


@cache
def _pattern(text: str) -> re.Pattern[str]:
    """Return what a pattern of `swap` means as a regular expression."""
    found = re.escape(text)
    for written, meant in {
        r"\#": r"\d+",
        r"\(": "(",
        r"\)": ")",
        r"\.\.\.": r"(?:(?!try_wait)[\s\S])*?",
        "\\\n": _NEXT,
        r"\ ": r"[ \t]+",
    }.items():
        found = found.replace(written, meant)
    return re.compile(found)


def swap(pattern: str, *new: Replacement, count: int = 0) -> Edit:
    r"""
    Return an edit that replaces parts of every match.

    Args:
        pattern: PTX, in which ``#`` is a number, ``...`` whatever comes up to the next match but no
            wait for an mbarrier, a line break the way to the next instruction, and parentheses
            surround the parts to replace.
        new: Text for each part, in which ``\1`` stands for what the first part was, or a function
            of the old text.
        count: Matches to edit, from the first on; 0 for all.
    """
    compiled = _pattern(pattern)
    assert compiled.groups == len(new)

    def edit(text: str) -> str:
        def replaced(match: re.Match[str]) -> str:
            parts, at = [], match.start()
            for group, each in enumerate(new, 1):
                parts.append(text[at : match.start(group)])
                parts.append(match.expand(each) if isinstance(each, str) else each(match[group]))
                at = match.end(group)
            return "".join([*parts, text[at : match.end()]])

        edited, found = compiled.subn(replaced, text, count)
        assert found, f"nothing looks like {pattern!r}"
        assert edited != text
        return edited

    return edit


def drop(pattern: str, count: int = 0) -> Edit:
    """Return an edit that leaves out the one part of a pattern of `swap`."""
    return swap(pattern, "", count=count)


def rewrite(*pairs: tuple[str, str]) -> Edit:
    """Return an edit that replaces each of some texts, which occurs once, by another."""

    def edit(text: str) -> str:
        for old, new in pairs:
            assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
            text = text.replace(old, new)
        return text

    return edit


def plus(number: int) -> Replacement:
    """Return how to replace a number by one that is larger."""
    return lambda text: str(int(text) + number)


def masked(name: str, edit: Edit, kind: str, *names: str) -> Mutation:
    """Return a mistake in a kernel of the masked layout."""
    return Mutation(name=name, program="masked", edit=edit, kind=kind, names=names)


def ragged(name: str, edit: Edit, kind: str, *names: str) -> Mutation:
    """Return a mistake in a kernel of the ragged layout."""
    return Mutation(name=name, program="ragged", edit=edit, kind=kind, names=names)


def ragged_of_many(name: str, edit: Edit, kind: str, *names: str) -> Mutation:
    """Return a mistake in a kernel of the ragged layout that only many groups show."""
    return Mutation(name=name, program="ragged, many groups", edit=edit, kind=kind, names=names)


def contiguous(name: str, edit: Edit, kind: str, *names: str) -> Mutation:
    """Return a mistake in a kernel of the contiguous layout."""
    return Mutation(name=name, program="contiguous", edit=edit, kind=kind, names=names)


WAIT = "mbarrier.try_wait...bra.uni LAB_WAIT;"
"""A loop that waits for an mbarrier."""

LOAD, STORE = "cp.async.bulk.tensor", "cp.async.bulk.tensor.2d.global"
"""Opcodes of copies by the TMA unit."""

_SOME_WARPS = """{
.reg .pred some;
.reg .b32 thread;
mov.u32 thread, %tid.x;
setp.OF.u32 some, thread, 31;
@some \\1
}"""
FIRST_WARP, OTHER_WARPS = _SOME_WARPS.replace("OF", "le"), _SOME_WARPS.replace("OF", "gt")
"""Replacements for `swap` that leave an instruction to the first warp, or to the others."""
