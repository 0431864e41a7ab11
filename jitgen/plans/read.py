# SPDX-License-Identifier: Apache-2.0
"""
Reads the ``problems`` of a plan file; an error names file, key and what is allowed.

An entry has the fields of its operation's problem under their names, except that rows are counted
per group. Of a GEMM, ``matrix`` is N and K, and ``dtype`` the type of a, and of b without
``b_dtype``.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from jitgen.config.config import members_of
from jitgen.config.operation import operation
from jitgen.config.plugins import OPERATIONS
from jitgen.errors import ConfigError, PlanError
from jitgen.plans.sweep import Sweep
from jitgen.support.text import shown

OP, USUAL_OP = "op", "grouped_gemm"
OPTIONAL, CALLS, EARLY = "optional", "calls", "early"
"""Keys of an entry that are not fields of its operation's problem."""

ROWS = "rows_per_group"
MAX_SWEEPS = 1000
"""
Largest number of sweeps. Finding the kernels of a sweep takes about a millisecond, and real plans
have dozens of sweeps.
"""

_REQUIRED = object()


class Key(NamedTuple):
    """
    A key of an entry.

    Attributes:
        fields: Fields of the problem that the key sets.
        read: Returns the values of these fields; raises a PlanError that begins with a given text.
        default: Values of these fields if the key is left out.
    """

    fields: tuple[str, ...]
    read: Callable[[Any, str], tuple[Any, ...]]
    default: Any = _REQUIRED


class _Entry(NamedTuple):
    """
    One entry of a plan.

    Attributes:
        op: Its operation.
        is_optional: Whether targets without a kernel for its types leave it out.
        calls: Number of times each of its combinations was called; 0 if that was not counted.
        is_early: Whether a chain of launches, whose kernels start early, calls its problems.
        values: For each of its keys the values that it lists.
    """

    op: str
    is_optional: bool
    calls: int
    is_early: bool
    values: dict[str, list[Any]]


def read_sweeps(problems: Any, file: str) -> Iterator[Sweep]:
    """
    Yield the sweeps of the list `problems`, the product of all lists in each of its entries.

    Raises:
        PlanError: A key is unknown, missing, or has a value that is not allowed, or the lists give
            too many sweeps.
    """
    if not isinstance(problems, list) or not problems:
        raise PlanError(f"{file}: problems must be a list of tables, at least one [[problems]]")
    entries = [_entry(entry, f"{file}: problem {n}") for n, entry in enumerate(problems, start=1)]
    total = sum(math.prod(map(len, entry.values.values())) for entry in entries)
    if total > MAX_SWEEPS:
        raise PlanError(
            f"{file}: its lists stand for {total:,} combinations, and {MAX_SWEEPS:,} are the most "
            "that a plan may have; split it"
        )
    for number, entry in enumerate(entries, start=1):
        try:
            yield from _sweeps(entry, number)
        except ConfigError as error:  # fields that are right one by one
            raise PlanError(f"{file}: problem {number}: {error}") from None


def _entry(entry: Any, where: str) -> _Entry:
    op = USUAL_OP
    if isinstance(entry, dict):
        op = _op(entry.get(OP, USUAL_OP), where)
    keys = keys_of(op)
    allowed = ", ".join((*keys, OP, OPTIONAL, CALLS, EARLY))
    if not isinstance(entry, dict):
        raise PlanError(f"{where}: must be a table with {allowed} (got {shown(entry)})")
    if unknown := sorted(entry.keys() - keys.keys() - {OP, OPTIONAL, CALLS, EARLY}):
        raise PlanError(
            f"{where}: no key {shown(unknown[0])}{_owner(unknown[0], op)}; allowed: {allowed}"
        )
    for name, key in keys.items():
        if name not in entry and key.default is _REQUIRED:
            raise PlanError(f"{where}: {name} is required")
    values = {
        name: _each(entry[name], key.read, f"{where}: {name}") if name in entry else [key.default]
        for name, key in keys.items()
    }
    is_optional = _flag(entry.get(OPTIONAL, False), f"{where}: {OPTIONAL}")
    calls = _size(entry[CALLS], f"{where}: {CALLS}") if CALLS in entry else 0
    is_early = _flag(entry.get(EARLY, False), f"{where}: {EARLY}")
    return _Entry(op=op, is_optional=is_optional, calls=calls, is_early=is_early, values=values)


def _op(value: Any, where: str) -> str:
    try:
        return operation(value).name
    except (ConfigError, TypeError) as error:
        names = ", ".join(OPERATIONS.names())
        raise PlanError(f"{where}: op: must be one of {names} (got {shown(value)})") from error


def _owner(name: str, op: str) -> str:
    """Return a hint if the key belongs to another operation."""
    owners = [other for other in OPERATIONS.names() if other != op and name in keys_of(other)]
    return f" in one of {op}: it belongs to {' and '.join(owners)}" if owners else ""


def keys_of(op: str) -> dict[str, Key]:
    """Return the allowed keys of an operation's entry, in the order of its problem's fields."""
    specs = {spec.name: spec for spec in dataclasses.fields(operation(op).problem_type)}
    found = {}
    for name, spec in specs.items():
        if name == "m":
            found[ROWS] = Key(fields=(), read=_rows)
        elif name in ("n", "k") and {"n", "k"} <= specs.keys():
            found["matrix"] = Key(fields=("n", "k"), read=_matrix)
        else:
            kind = spec.metadata["type"]
            is_left_out = spec.default is not dataclasses.MISSING
            found["dtype" if name == "a_dtype" else name] = Key(
                fields=(name,),
                read=_one(_READERS.get(kind) or _word(spec.metadata)),
                default=(spec.default,) if is_left_out else _REQUIRED,
            )
    return found


def _sweeps(entry: _Entry, number: int) -> Iterator[Sweep]:
    """Yield a sweep for every combination of the values of an entry's lists."""
    kind, keys = operation(entry.op).problem_type, keys_of(entry.op)
    values = dict(entry.values)
    names = [field for key in keys.values() for field in key.fields]
    ranges = values.pop(ROWS)
    for (least, most), *found in itertools.product(ranges, *values.values()):
        fields = dict(zip(names, itertools.chain(*found), strict=True))
        problem = kind(**fields, m=fields.get("groups", 1)).with_mean(least)
        yield Sweep(
            problem=problem,
            min_rows=least,
            max_rows=most,
            is_optional=entry.is_optional,
            calls=entry.calls,
            is_early=entry.is_early,
            entry=number,
        )


def _each(value: Any, read: Callable[[Any, str], Any], where: str) -> list[Any]:
    """Return what `read` makes of every item of a list, or of the one value."""
    if isinstance(value, list):
        if not value:
            raise PlanError(f"{where}: the list is empty")
        return [read(item, where) for item in value]
    return [read(value, where)]


def _one(read: Callable[[Any, str], Any]) -> Callable[[Any, str], tuple[Any, ...]]:
    return lambda value, where: (read(value, where),)


def _size(value: Any, where: str) -> int:
    if type(value) is not int or value < 1:
        raise PlanError(f"{where}: must be an integer of at least 1 (got {shown(value)})")
    return value


def _flag(value: Any, where: str) -> bool:
    if type(value) is not bool:
        raise PlanError(f"{where}: must be true or false (got {shown(value)})")
    return value


def _table(value: Any, keys: tuple[str, str], where: str) -> tuple[int, int]:
    form = f"{{ {keys[0]} = ..., {keys[1]} = ... }}"
    if not isinstance(value, dict):
        raise PlanError(f"{where}: must be a table {form} (got {shown(value)})")
    if unknown := sorted(set(value) - set(keys)):
        raise PlanError(f"{where}: no key {shown(unknown[0])}; allowed: {', '.join(keys)}")
    if missing := [key for key in keys if key not in value]:
        raise PlanError(f"{where}: {missing[0]} is required, as in {form}")
    first, second = (_size(value[key], f"{where}.{key}") for key in keys)
    return first, second


def _matrix(value: Any, where: str) -> tuple[int, int]:
    return _table(value, ("n", "k"), where)


def _rows(value: Any, where: str) -> tuple[int, int]:
    if not isinstance(value, dict):
        rows = _size(value, where)
        return rows, rows
    least, most = _table(value, ("min", "max"), where)
    if least > most:
        raise PlanError(f"{where}: min must not be above max (got {least} and {most})")
    return least, most


def _word(rules: Mapping[str, Any]) -> Callable[[Any, str], Any]:
    members = members_of(rules)

    def read(value: Any, where: str) -> StrEnum:
        for each in members:
            if each == value:
                return each
        raise PlanError(f"{where}: must be one of {', '.join(members)} (got {shown(value)})")

    return read


_READERS: dict[type, Callable[[Any, str], Any]] = {int: _size, bool: _flag}
