# SPDX-License-Identifier: Apache-2.0
"""
Removes from a rendered kernel everything that its config does not need.

Partials are written for many configs: they test constants of the generated file, and pass values
that only some of them use. In a rendered kernel the constants are known. So tests of constants are
decided, loops of one pass are replaced by their bodies, parameters that always have one value are
replaced by it, and unused parameters, functions, constants and imports are removed. The compiler
would do the same; this makes the source readable.

It works on text instead of a syntax tree, so that comments and lines stay as in the templates, and
because up to Python 3.11.7 two threads that build a tree at the same time raise SystemError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from jitgen.codegen.functions import (
    NEXT_TOP,
    OPENING,
    argument_for,
    bracket_end,
    functions_in,
    is_read,
    parts_of,
    uses_of,
    without_parts,
    without_span,
)
from jitgen.codegen.known import constants, decided, dedented, end_of_block, indent_of, masked
from jitgen.codegen.loops import without_loops
from jitgen.codegen.settled import settled, without_ones

LINE_LENGTH = 100

RECORDS = ("WorkTile", "Schedule", "Copies", "TileCoord", "Cta", "Choice", "Lane", "Product")
"""Named tuples whose fields templates read only by name."""

_QUOTED = re.compile(r"[\"'](\w+)[\"']")
_IF = re.compile(r"( *)(if|elif) (.+):(?:  #.*)?")
_OTHERWISE = re.compile(r"( *)(elif .+|else):(?:  #.*)?")
_TOP = re.compile(r"^(?:def|class) (\w+)|^([A-Za-z_]\w*(?:, [A-Za-z_]\w*)*) = ", re.MULTILINE)
_IMPORT = re.compile(r"^(?:from [\w.]+ )?import (?!\()(.+)$", re.MULTILINE)
_VARIABLE = re.compile(r"^ +(\w+) = ([^\n]+)\n", re.MULTILINE)
_CALLED = re.compile(r"([\w.]*)\((\)?)")
_HARMLESS = frozenset(
    f"{module}.{name}".removeprefix(".")
    for module, names in (
        ("", ("", "Int32", "Int64", "min", "max", "flat", "load_bias")),
        ("cute", ("size", "ceil_div", "make_rmem_tensor")),
        ("cutlass", ("min", "max")),
        ("cute.arch", ("lane_idx", "make_warp_uniform", "block_idx_in_cluster")),
    )
    for name in names
)
"""Functions without side effects: a call whose result is not read may be removed."""
_UNUSED = "  # noqa: ARG001"
_COMMENT = re.compile(r"^#[^\n]*", re.MULTILINE)
_FIELD = re.compile(r"^    (\w+): [^\n]*\n", re.MULTILINE)
_COVERED = re.compile(r"\*\(.* in range\((\d+)\)\)")
_CHOICE = re.compile(r"(?<=[^\n ]) if ")
_REPLACES_NOTHING = re.compile(r"\._replace\(\)")
_PURE_VALUE = re.compile(r"(?:[\w.\[\], +*/<>=&|-]|(?:Int\d+)?[()])+")
_PURE = re.compile(r"[\w.\[\], +*/-]+")


def specialised(text: str, kept: frozenset[str]) -> str:
    """
    Return `text`, the source of a kernel, without unused code.

    Args:
        text: A Python module, formatted.
        kept: Names that callers of the module use; these are not changed.
    """
    known = constants(text)
    text = without_ones(without_loops(text, known), known)
    text, plain, before = *_decided(text, known), ""
    while text != before:
        before = text
        if (found := settled(text, plain, RECORDS, kept)) != text:
            text, plain = _decided(found, known)
        text, plain = _without_parameters(text, plain, kept)
        text, plain = _without_fields(text, plain)
        text, plain = _without_variables(text, plain, kept)
        text, plain = _without_definitions(text, plain, kept)
    return _joined(_without_notes(text, plain))


def _decided(text: str, known: dict[str, object]) -> tuple[str, str]:
    """
    Return `text` with one branch of each condition that constants decide, and its `masked` form.
    """
    lines = text.split("\n")
    plain = masked(text).split("\n")
    i = 0
    while i < len(lines):
        match = _IF.fullmatch(lines[i]) if plain[i].strip() else None
        holds = decided(match[3], known) if match else None
        if match is None or holds is None or not _decide(lines, plain, i, match, holds=holds):
            i += 1
    return _without_choices("\n".join(lines), "\n".join(plain), known)


def _decide(  # noqa: C901, PLR0912  # a case for each form of the statement
    lines: list[str], plain: list[str], i: int, match: re.Match[str], *, holds: bool
) -> bool:
    """
    Replace the conditional statement in line `i` by the branch that runs, as `holds` says, in
    `lines` and `plain`; return whether that was possible.
    """
    indent, word = match[1], match[2]
    end = end_of_block(plain, i)
    other = _OTHERWISE.fullmatch(lines[end]) if end < len(lines) else None
    if other is not None and other[1] != indent:
        other = None
    if holds:
        last = end
        while other is not None and other[1] == indent:
            last = end_of_block(plain, last)
            other = _OTHERWISE.fullmatch(lines[last]) if last < len(lines) else None
        if word == "elif":
            _replace(lines, plain, end, last, [])
            _replace(lines, plain, i, i + 1, [f"{indent}else:"])
        else:
            _replace(lines, plain, i, last, dedented(lines[i + 1 : end]))
        return True
    if other is not None and other[2] == "else":
        if word == "elif":
            _replace(lines, plain, i, end, [])
            return True
        last = end_of_block(plain, end)
        _replace(lines, plain, i, last, dedented(lines[end + 1 : last]))
        return True
    if other is not None or word == "elif":
        rest = [lines[end].replace("elif ", "if ", 1)] if word == "if" else None
        if rest is not None:
            _replace(lines, plain, end, end + 1, rest)
        _replace(lines, plain, i, end, [])
        return True
    start = i
    while start > 0 and lines[start - 1].startswith(f"{indent}#"):
        start -= 1
    opens = start > 0 and plain[start - 1].rstrip().endswith(":")
    closes = end >= len(lines) or indent_of(_next(plain, end)) < len(indent)
    if opens and closes:
        return False
    _replace(lines, plain, start, end, [])
    while start < len(lines) and not lines[start] and (opens or not lines[start - 1] or closes):
        _replace(lines, plain, start, start + 1, [])
        if closes:
            break
    return True


def _replace(lines: list[str], plain: list[str], start: int, end: int, new: list[str]) -> None:
    lines[start:end] = new
    plain[start:end] = masked("\n".join(new)).split("\n") if new else []


def _next(plain: list[str], i: int) -> str:
    return next((line for line in plain[i:] if line.strip()), "")


def _without_choices(text: str, plain: str, known: dict[str, object]) -> tuple[str, str]:
    """
    Return `text` and `plain` with one side of each conditional expression that constants decide.
    """
    place = 0
    while (match := _CHOICE.search(plain, place)) is not None:
        place = match.end()
        start = _scan(plain, match.start() - 1, -1)
        middle = _scan(plain, match.end(), 1, " else ")
        if start is None or middle is None or not plain.startswith(" else ", middle):
            continue
        end = _scan(plain, middle + 6, 1)
        holds = decided(text[match.end() : middle], known)
        if end is None or holds is None:
            continue
        new = text[start : match.start()] if holds else text[middle + 6 : end]
        in_brackets = f"{plain[start - 2 : start]}{new}{plain[end : end + 1]}"
        if re.fullmatch(r"[^\w\])]\([\w.]+\)", in_brackets):
            start, end = start - 1, end + 1
        text = text[:start] + new + text[end:]
        plain = plain[:start] + masked(new) + plain[end:]
        place = start
    return text, plain


def _scan(plain: str, place: int, step: int, stop: str = "") -> int | None:
    """
    Return where the operand of a conditional expression ends, from `place` on, or begins if `step`
    is -1; None if no end is found.
    """
    depth = 0
    opening, closing = ("([{", ")]}") if step > 0 else (")]}", "([{")
    while 0 <= place < len(plain):
        letter = plain[place]
        if depth == 0:
            if letter in closing or letter in ",\n":
                return (
                    place if step > 0 else place + 1 + (plain[place + 1] == " " and letter == ",")
                )
            if step > 0 and (letter == ":" or plain.startswith(stop or " for ", place)):
                return place
            if step < 0 and (letter == ":" or _assigns(plain, place)):
                return place + 2 if plain[place + 1] == " " else place + 1
            if step < 0 and plain.startswith("return ", place):
                return place + len("return ")
            if step < 0 and letter == " " and plain[place - 4 : place] in ("    ", "\n   "):
                return place + 1
        depth += (letter in opening) - (letter in closing)
        place += step
    return None


def _assigns(plain: str, place: int) -> bool:
    return plain[place] == "=" and plain[place - 1] not in "=!<>" and plain[place + 1] != "="


def _without_parameters(text: str, plain: str, kept: frozenset[str]) -> tuple[str, str]:
    """Return `text` and `plain` without parameters that their functions do not read."""
    names = uses_of(plain)
    cuts: list[tuple[int, int]] = []
    for function in functions_in(text, plain, kept):
        if function.is_kept:
            continue
        unused = [
            (k, part)
            for k, part in enumerate(function.parameters)
            if not is_read(plain, names, re.split("[:=]", plain[slice(*part)])[0].strip(), function)
        ]
        if not unused:
            continue
        calls = [place for place in names[function.name] if place != function.at]
        after = {place: plain[place + len(function.name)] for place in calls}
        if set(after.values()) - {"("}:
            continue  # passed on as a value
        given = [parts_of(plain, place + len(function.name)) for place in calls]
        if any(plain[slice(*part)].strip().startswith("*") for parts in given for part in parts):
            continue
        for k, part in unused:
            name = re.split("[:=]", plain[slice(*part)])[0].strip()
            found = [argument_for(plain, parts, k, name) for parts in given]
            handed = [each for each in found if each is not None]
            values = {text[slice(*each)].strip().removeprefix(f"{name}=") for each in handed}
            if name.startswith("*") or not all(map(_PURE.fullmatch, values)):
                continue
            if function.is_kernel and values != {"None"}:
                continue
            cuts += [part, *handed]
    return without_parts(text, plain, cuts)


def _without_notes(text: str, plain: str) -> str:
    """
    Return `text` without comments on unused parameters in functions that now use all of their
    parameters.
    """
    names = uses_of(plain)
    for function in reversed(functions_in(text, plain, frozenset())):
        close = function.body[0]
        end = text.index("\n", close)
        note = text.find(_UNUSED, close, end)
        parameters = (re.split("[:=]", plain[slice(*each)])[0] for each in function.parameters)
        if note >= 0 and all(
            is_read(plain, names, each.strip(" *\n"), function) for each in parameters
        ):
            text = text[:note] + text[note + len(_UNUSED) :]
    return text


def _without_fields(text: str, plain: str) -> tuple[str, str]:
    """Return `text` and `plain` without the fields of records that nothing reads."""
    for record in RECORDS:
        while (found := _unread(text, plain, record)) is not None:
            line, handed = found
            later = [part for part in handed if part[0] > line[0]]
            text, plain = without_span(*without_parts(text, plain, later), line)
            text, plain = without_parts(text, plain, [part for part in handed if part not in later])
    for match in reversed([*_REPLACES_NOTHING.finditer(plain)]):
        text, plain = without_span(text, plain, match.span())
    return text, plain


def _unread(
    text: str, plain: str, record: str
) -> tuple[tuple[int, int], list[tuple[int, int]]] | None:
    """
    Return the span of a field of `record` that is never read, and the spans of its values; None if
    no field can be removed.
    """
    start = plain.find(f"\nclass {record}(NamedTuple):\n") + 1
    end = NEXT_TOP.search(plain, start)
    if not start or end is None:
        return None
    made = (*_places(plain, f"{record}("), *_places(plain, "._replace("))
    calls = [
        parts_of(plain, place) for place in made if not plain.startswith("(NamedTuple)", place)
    ]
    starred = [
        _COVERED.fullmatch(plain[slice(*part)].strip())
        for parts in calls
        for part in parts
        if plain[slice(*part)].strip().startswith("*")
    ]
    if None in starred:
        return None
    covered = max((int(match[1]) for match in starred if match), default=0)
    for k, field in enumerate(_FIELD.finditer(plain, start, end.start() + 1)):
        if k < covered:
            continue
        found = [argument_for(plain, parts, k, field[1]) for parts in calls]
        handed = [each for each in found if each is not None]
        reads = [match.start() for match in re.finditer(rf"\.{field[1]}\b", plain)]
        if any(not any(start <= read < end for start, end in handed) for read in reads):
            continue  # what only hands the field on is no read
        if all(_is_plain(text, each, field[1]) for each in handed):
            return field.span(), handed
    return None


def _places(plain: str, call: str) -> Iterator[int]:
    """
    Yield the position of the bracket of each `call`, a text such as ``name(`` or ``.name(``; calls
    of longer names do not count.
    """
    place = plain.find(call)
    while place >= 0:
        if call[0] == "." or not (plain[place - 1].isalnum() or plain[place - 1] in "_."):
            yield place + len(call) - 1
        place = plain.find(call, place + 1)


def _is_plain(text: str, part: tuple[int, int], name: str) -> bool:
    value = text[slice(*part)].strip().removeprefix(f"{name}=")
    return _PURE_VALUE.fullmatch(value) is not None


def _without_variables(text: str, plain: str, kept: frozenset[str]) -> tuple[str, str]:
    """
    Return `text` and `plain` without local variables that are never read and whose values have no
    side effects.
    """
    names = uses_of(plain)
    cuts: list[tuple[int, int]] = []
    for function in functions_in(text, plain, kept):
        start, end = function.body
        found: dict[str, list[re.Match[str]]] = {}
        for match in _VARIABLE.finditer(plain, start, end):
            found.setdefault(match[1], []).append(match)
        for name, matches in found.items():
            uses = {place for place in names[name] if start < place < end}
            if uses == {match.start(1) for match in matches} and all(
                _is_harmless(match[2]) and not _alone(plain, match.start(), match.end())
                for match in matches
            ):
                for match in matches:
                    is_between = plain[: match.start()].endswith("\n\n")
                    blank = is_between and plain.startswith("\n", match.end())
                    cuts.append((match.start(), match.end() + blank))
    for cut in sorted(cuts, reverse=True):
        text, plain = without_span(text, plain, cut)
    return text, plain


def _is_harmless(value: str) -> bool:
    """Return whether a value ends in its line, and computing it has no side effects."""
    is_whole = all(value.count(each) == value.count(OPENING[each]) for each in OPENING)
    return is_whole and all(name in _HARMLESS or empty for name, empty in _CALLED.findall(value))


def _alone(plain: str, start: int, end: int) -> bool:
    """Return whether a line is the only one of its block."""
    before, after = plain[:start].rstrip(), plain[end:].lstrip("\n")
    indent = indent_of(plain[start:end])
    return before.endswith(":") and indent_of(after.split("\n", 1)[0]) < indent


def _without_definitions(text: str, plain: str, kept: frozenset[str]) -> tuple[str, str]:
    """
    Return `text` and `plain` without constants, functions, classes and imports that nothing uses.
    """
    names = uses_of(plain)
    quoted = set(_QUOTED.findall(_COMMENT.sub("", text)))
    cuts: list[tuple[int, int]] = []
    for match in _TOP.finditer(plain):
        start, end = _span(text, plain, match)
        words = (match[1] or match[2]).split(", ")
        if not any(
            word in kept
            or word in quoted
            or any(not start <= place < end for place in names.get(word, ()))
            for word in words
        ):
            cuts.append((start, end))
    for cut in reversed(cuts):
        text, plain = without_span(text, plain, cut)
    for match in reversed([*re.finditer(r"(?<=\n\n\n)\n+", text)] if cuts else []):
        text, plain = without_span(text, plain, match.span())
    return _without_imports(text, plain, names if not cuts else uses_of(plain))


def _span(text: str, plain: str, match: re.Match[str]) -> tuple[int, int]:
    """
    Return where a definition at the top level begins and ends, with its decorators and the comments
    above it.
    """
    start = match.start()
    while re.match("[@#]", previous := text[text.rfind("\n", 0, start - 1) + 1 : start]):
        note = previous.startswith("#")
        if previous.endswith(".jinja\n"):
            break  # it names the partial of all that follows
        if note and (match[1] is None or not text[: start - len(previous)].endswith("\n\n")):
            break
        start -= len(previous)
    if match[1] is None:
        end = match.end()
        while plain[end] != "\n":
            end = bracket_end(plain, end) + 1 if plain[end] in OPENING else end + 1
        return start, end + 1
    found = NEXT_TOP.search(  # in the text, where the comment of what follows is not masked
        text, plain.index("(" if plain[match.start()] == "d" else "\n", match.end())
    )
    return start, found.end() if found else len(text)


def _without_imports(text: str, plain: str, names: Mapping[str, list[int]]) -> tuple[str, str]:
    for match in reversed([*_IMPORT.finditer(plain)]):
        words = match[1].split(", ")
        used = [
            word
            for word in words
            if any(
                not match.start() <= place < match.end()
                for place in names.get(word.split(" as ")[-1].split(".")[0], ())
            )
        ]
        if used != words:
            new = f"{match[0][: match.start(1) - match.start()]}{', '.join(used)}\n" if used else ""
            span = match.start(), match.end() + 1
            text, plain = (each[: span[0]] + new + each[span[1] :] for each in (text, plain))
    return text, plain


_OPENED = re.compile(r"[(\[]\n")
_GROUP = re.compile(r"^( *)(.*[\w\]])?([(\[])\n +([^\n]*[^,\n])\n\1([)\]].*)$", re.MULTILINE)
_WRAPPED = re.compile(r"^( *)(.*(?:= |return ))\(\n +([^\n]*[^,\n])\n\1\)$", re.MULTILINE)


def _joined(text: str) -> str:
    """Return `text` with lines joined that fit into one, as the formatter does."""

    def one(match: re.Match[str]) -> str:
        line = f"{match[1]}{match[2] or ''}{match[3]}{match[4]}{match[5]}"
        return line if len(line) <= LINE_LENGTH and "#" not in match[4] else match[0]

    def plain(match: re.Match[str]) -> str:
        line = f"{match[1]}{match[2]}{match[3]}"
        return line if len(line) <= LINE_LENGTH and "#" not in match[3] else match[0]

    return _each(_GROUP, one, _each(_WRAPPED, plain, text))


def _each(pattern: re.Pattern[str], new: Callable[[re.Match[str]], str], text: str) -> str:
    """
    Return ``pattern.sub(new, text)`` for a pattern whose matches begin in a line that ends with an
    opening bracket.
    """
    parts, done = [], 0
    for opened in _OPENED.finditer(text):
        start = text.rfind("\n", 0, opened.start()) + 1
        if start >= done and (match := pattern.match(text, start)):
            parts += [text[done:start], new(match)]
            done = match.end()
    return "".join((*parts, text[done:]))
