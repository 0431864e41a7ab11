# SPDX-License-Identifier: Apache-2.0
"""
The ``problems`` of a plan file to sweeps, with an error that names file, key and what is allowed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

from jitgen.config import DType, Layout, ScaleGranularity
from jitgen.errors import PlanError
from jitgen.ops.grouped_gemm.problem import Problem
from jitgen.plans.sweep import Sweep
from jitgen.text import shown

_REQUIRED = ("layout", "groups", "rows_per_group", "matrix")
_MAX_SWEEPS = 1000
"""Each is searched for its kernels, a millisecond for many rows; real plans have dozens."""

_DEFAULTS = {"dtype": "e4m3", "out_dtype": "bf16", "scale_granularity": "block128"}


def read_sweeps(problems: Any, file: str) -> Iterator[Sweep]:
    """
    Yield the sweeps of the list `problems`, the product of all lists in each of its entries.

    Raises:
        PlanError: A key is unknown, missing, or has a value that is not allowed, or the lists stand
            for more sweeps than any service has.
    """
    if not isinstance(problems, list) or not problems:
        raise PlanError(f"{file}: problems must be a list of tables, at least one [[problems]]")
    entries = [_values(entry, f"{file}: problem {n}") for n, entry in enumerate(problems, start=1)]
    total = sum(math.prod(map(len, values)) for values in entries)
    if total > _MAX_SWEEPS:
        raise PlanError(
            f"{file}: its lists stand for {total:,} combinations, and {_MAX_SWEEPS:,} are the most "
            "that a plan may have; split it"
        )
    for values in entries:
        yield from _sweeps(values)


def _values(entry: Any, where: str) -> list[list[Any]]:
    """Return for each key of an entry, in the order of `_READERS`, the values that it lists."""
    allowed = (*_REQUIRED, *_DEFAULTS)
    if not isinstance(entry, dict):
        raise PlanError(f"{where}: must be a table with {', '.join(allowed)} (got {shown(entry)})")
    if unknown := sorted(set(entry) - set(allowed)):
        raise PlanError(f"{where}: no key {shown(unknown[0])}; allowed: {', '.join(allowed)}")
    if missing := [key for key in _REQUIRED if key not in entry]:
        raise PlanError(f"{where}: {missing[0]} is required")
    return [
        _each(entry.get(key, _DEFAULTS.get(key)), read, f"{where}: {key}")
        for key, read in _READERS.items()
    ]


def _sweeps(values: list[list[Any]]) -> Iterator[Sweep]:
    """Yield the product of `values`."""
    for layout, groups, rows, matrix, dtype, out_dtype, scales in itertools.product(*values):
        yield Sweep(
            problem=Problem(
                layout=layout,
                groups=groups,
                m=rows[0] * groups,
                n=matrix[0],
                k=matrix[1],
                a_dtype=dtype,
                out_dtype=out_dtype,
                scale_granularity=scales,
            ),
            min_rows=rows[0],
            max_rows=rows[1],
        )


def _each(value: Any, read: Callable[[Any, str], Any], where: str) -> list[Any]:
    """Return every value of a list, or the one value."""
    if isinstance(value, list):
        if not value:
            raise PlanError(f"{where}: the list is empty")
        return [read(item, where) for item in value]
    return [read(value, where)]


def _size(value: Any, where: str) -> int:
    if type(value) is not int or value < 1:
        raise PlanError(f"{where}: must be an integer of at least 1 (got {shown(value)})")
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


def _word(kind: type[StrEnum]) -> Callable[[Any, str], Any]:
    def read(value: Any, where: str) -> StrEnum:
        try:
            return kind(value)
        except ValueError:
            raise PlanError(
                f"{where}: must be one of {', '.join(kind)} (got {shown(value)})"
            ) from None

    return read


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "layout": _word(Layout),
    "groups": _size,
    "rows_per_group": _rows,
    "matrix": _matrix,
    "dtype": _word(DType),
    "out_dtype": _word(DType),
    "scale_granularity": _word(ScaleGranularity),
}
