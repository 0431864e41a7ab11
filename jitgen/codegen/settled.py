# SPDX-License-Identifier: Apache-2.0
"""
Replaces parameters and fields that always have the same value in a rendered kernel by constants.

These are parameters for which every call passes the same constant, and fields of records that
always have their default. Factors of 1 are removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from jitgen.codegen.functions import (
    KEYWORD,
    Function,
    argument_for,
    functions_in,
    parts_of,
    uses_of,
)
from jitgen.codegen.known import masked

_WORDS = frozenset({"None", "True", "False"})
_CONSTANT = re.compile(r"None|True|False|\d+")
_PARAMETER = re.compile(r"\s*(\w+)\s*(?::[^=]*)?(?:=(.*))?", re.DOTALL)
_DEFAULT = re.compile(r"^    (\w+): [^=\n]*= (None|True|False|\d+) *$", re.MULTILINE)
_NOTHING = re.compile(r"\b(?:False or|True and) | (?:or False|and True)\b")
_CTAS = ("CLUSTER_M", "CLUSTER_N", "CLUSTER_SIZE", "CTAS", "SPLIT_K")
_BRACKETED = re.compile(r"(?<![\w\])])\((\w+)\)")


def settled(text: str, plain: str, records: Iterable[str], kept: frozenset[str]) -> str:
    """
    Return `text` with constants instead of parameters and fields that always have one value.

    Args:
        text: A Python module, formatted.
        plain: The same without strings and comments, as `masked` returns it.
        records: Named tuples whose fields are read by their names alone.
        kept: Names of functions that callers of the module use; these are not changed.
    """
    while found := [*_parameters(text, plain, kept)]:
        text = _with(text, found)
        plain = masked(text)
    for record in records:
        if found := [*_fields(plain, record)]:
            text = _with(text, found)
            plain = masked(text)
    return text


def _parameters(text: str, plain: str, kept: frozenset[str]) -> Iterator[tuple[int, int, str]]:
    """
    Yield each place that reads a parameter for which every call passes the same constant, with this
    constant.
    """
    names = uses_of(plain)
    for function in functions_in(text, plain, kept):
        calls = [place for place in names[function.name] if place != function.at]
        after = {plain[place + len(function.name)] for place in calls}
        if function.is_kept or after != {"("}:
            continue
        given = [parts_of(plain, place + len(function.name)) for place in calls]
        if any(plain[slice(*part)].strip().startswith("*") for parts in given for part in parts):
            continue
        for k, part in enumerate(function.parameters):
            match = _PARAMETER.fullmatch(plain[slice(*part)])
            if match is None:
                continue  # a star
            name, default = match[1], (match[2] or "").strip()
            handed = [argument_for(plain, parts, k, name) for parts in given]
            values = {
                default if each is None else text[slice(*each)].strip().removeprefix(f"{name}=")
                for each in handed
            }
            value = values.pop()
            is_constant = _CONSTANT.fullmatch(value) if {*handed} == {None} else value in _WORDS
            if is_constant and not values:
                reads = _reads(plain, names.get(name, ()), name, function)
                yield from ((*read, value) for read in reads)


def _reads(
    plain: str, places: Iterable[int], name: str, function: Function
) -> list[tuple[int, int]]:
    """
    Return the spans in which the body of a function reads its parameter `name`; none if the body
    sets the parameter, calls it, or takes an attribute or an item of it.
    """
    start, end = function.body
    found = [
        (place, place + len(name))
        for place in places
        if start < place < end and not KEYWORD.match(plain, place)
    ]
    bound = (
        rf"^ *(?:[\w, ]+, )?{name}(?:, [\w, ]+)? [-+*/&|]?= "
        rf"|\b(?:for|lambda|def)\b[^:\n]*\b{name}\b"
    )
    is_bound = re.search(bound, plain[start:end], re.MULTILINE) is not None
    return [] if is_bound or any(plain[after] in ".[(" for _, after in found) else found


def _fields(plain: str, record: str) -> Iterator[tuple[int, int, str]]:
    """
    Yield each place that reads the first field of a record whose value is always its constant
    default, with this default.
    """
    start = plain.find(f"\nclass {record}(NamedTuple):\n")
    if start < 0:
        return
    body = plain[start : plain.find("\n\n\n", start)]
    for name, value in _DEFAULT.findall(body):
        # Patterns that begin with the letters, and look back then, are found ten times as fast.
        ends = [match.span() for match in re.finditer(rf"\.(?<=\w\.){name}\b", plain)]
        reads = [(_start_of_word(plain, start), end) for start, end in ends]
        is_set = re.search(rf"{name}(?<!\w{name})=[^=]", plain) is not None
        is_of_another = plain.count(f"\n    {name}: ") > 1
        if reads and not is_set and not is_of_another and not _is_filled(plain, record, body, name):
            yield from ((*read, value) for read in reads)
            return  # one field of a record at a time


def _start_of_word(plain: str, end: int) -> int:
    """Return the position at which the word that ends at `end` begins."""
    while plain[end - 1].isalnum() or plain[end - 1] == "_":
        end -= 1
    return end


def _is_filled(plain: str, record: str, body: str, name: str) -> bool:
    """Return whether any call that makes a record may pass a value for field `name` by position."""
    fields = re.findall(r"^    (\w+): ", body, re.MULTILINE)
    for match in re.finditer(rf"(?<![\w.]){record}\(", plain):
        parts = [plain[slice(*part)].strip() for part in parts_of(plain, match.end() - 1)]
        if plain.startswith("NamedTuple", match.end()):
            continue
        stars = [re.search(r"in range\((\d+)\)\)$", part) for part in parts if part[0] == "*"]
        if None in stars:
            return True
        in_a_row = sum(not re.match(r"\*|\w+=[^=]", part) for part in parts)
        if fields.index(name) < in_a_row + sum(int(star[1]) for star in stars if star):
            return True
    return False


def _with(text: str, places: list[tuple[int, int, str]]) -> str:
    """
    Return `text` with each span of `places` replaced by its value, and without conditions that have
    become trivial.
    """
    for start, end, value in sorted(places, reverse=True):
        text = text[:start] + value + text[end:]
    return _without(text, _NOTHING)


def _without(text: str, pattern: re.Pattern[str]) -> str:
    """Return `text` without the matches of `pattern`, which is searched in code only."""
    for match in reversed([*pattern.finditer(masked(text))]):
        text = text[: match.start()] + text[match.end() :]
    return text


def without_ones(text: str, known: dict[str, object]) -> str:
    """
    Return `text` without products with and quotients by numbers of CTAs that are 1.

    Args:
        text: A Python module, formatted.
        known: Its constants.
    """
    names = [name for name in _CTAS if known.get(name) == 1]
    if not names:
        return text
    ones = "|".join(names)
    factor = re.compile(
        "|".join(
            (
                rf" (?:\*|//) (?:{ones})\b(?![.\[(]| \*\*)",
                *(
                    rf"{each}(?:(?<=[(\[]{each})|(?<=[=,] {each})|(?<=return {each})) \* "
                    for each in names
                ),
            )
        )
    )
    was, before = {*text.split("\n")}, ""
    while text != before:  # the factor before one is the first then
        before, text = text, _without(text, factor)
    text = re.sub(rf"^(\w+) = (?:{ones})(?=\n|  #)", r"\1 = 1", text, flags=re.MULTILINE)
    return "\n".join(
        line if line in was else _BRACKETED.sub(r"\1", line) for line in text.split("\n")
    )
