# SPDX-License-Identifier: Apache-2.0
"""
A recording on the disk: one JSON file for each process, which is replaced as a whole.

::

    {"recording": 1, "jitgen": "0.1.0", "began": "2026-11-20T09:00:00+00:00",
     "written": "2026-11-20T09:31:10+00:00",
     "calls": [
       {"arch": "sm_90a", "op": "grouped_gemm", "problem": {"layout": "ragged", "groups": 8, ...},
        "rows_per_group": {"1": 70214, "64": 12}}],
     "kernels": {"grouped_gemm_..._sm_90a": 3},
     "others": 0}

``problem`` has no m: calls are counted by the mean rows per group, rounded up, because kernels are
chosen by it. ``kernels`` are explicit configs (``config=``). ``others`` are calls beyond the number
of different ones that a recording holds.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from jitgen.config import Arch
from jitgen.config.operation import operation
from jitgen.config.problem import Problem
from jitgen.errors import ConfigError, PlanError
from jitgen.support.documents import BadDocument, parse_json, read_bounded
from jitgen.support.frozen import frozen
from jitgen.support.moved import kernel_renamed
from jitgen.support.text import shown

SCHEMA = 1
MAX_BYTES = 2**23
"""Limit in bytes for a file: 65,536 different calls have under 2 MB."""

_KEYS = {"recording", "jitgen", "began", "written", "calls", "kernels", "others"}
_CALL_KEYS = {"arch", "op", "problem", "rows_per_group"}


@frozen
class Calls:
    """
    Calls that differ in their rows only.

    Attributes:
        arch: The target that served them.
        problem: Problem of the calls, with a mean of one row per group.
        rows: Number of calls for each mean of rows per group.
    """

    arch: Arch
    problem: Problem
    rows: Mapping[int, int]

    @property
    def total(self) -> int:
        """Number of all calls, over all numbers of rows."""
        return sum(self.rows.values())


@frozen
class Recording:
    """
    The calls of one process, or of several together.

    Attributes:
        calls: The calls by target and problem, in no particular order.
        kernels: Number of calls with an explicit config, by the name of the kernel.
        others: Number of calls beyond the largest number of different calls of a recording.
        began, written: ISO 8601 times; empty where several files were added up.
        jitgen: The version that wrote it; empty where several files were added up.
    """

    calls: tuple[Calls, ...]
    kernels: Mapping[str, int]
    others: int = 0
    began: str = ""
    written: str = ""
    jitgen: str = ""

    @property
    def total(self) -> int:
        """Number of all calls that were counted."""
        return sum(each.total for each in self.calls) + sum(self.kernels.values()) + self.others

    def lines(self) -> Iterator[str]:
        """Yield the lines of the file; one for each problem, so that each is made quickly."""
        head = {"recording": SCHEMA, "jitgen": self.jitgen}
        head |= {"began": self.began, "written": self.written}
        yield f'{json.dumps(head)[:-1]}, "calls": ['
        last = len(self.calls) - 1
        for number, each in enumerate(self.calls):
            document = {
                "arch": str(each.arch),
                "op": each.problem.op,
                "problem": {k: v for k, v in each.problem.to_json().items() if k != "m"},
                "rows_per_group": {str(rows): count for rows, count in each.rows.items()},
            }
            yield json.dumps(document) + "," * (number != last)
        yield f'], "kernels": {json.dumps(dict(self.kernels))}, "others": {self.others}}}'

    def save(self, path: Path) -> None:
        """
        Write the recording to `path` atomically.

        Raises:
            OSError: It cannot be written.
        """
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            with beside.open("x", encoding="ascii") as stream:
                stream.writelines(f"{line}\n" for line in self.lines())
            beside.replace(path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise


def read(path: Path) -> Recording:
    """
    Return the recording in a file.

    Raises:
        PlanError: It cannot be read, or is not a recording; the message names file and field.
    """
    try:
        document = parse_json(read_bounded(path, MAX_BYTES), max_bytes=MAX_BYTES)
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror or error}") from error
    except BadDocument as error:
        raise PlanError(f"{path} is no recording: {error}") from error
    try:
        return _recording(document)
    except ConfigError as error:
        raise PlanError(f"{path} is no recording: {error}") from None


def added(recordings: Iterable[Recording]) -> Recording:
    """Return the sum of several recordings."""
    rows: dict[tuple[Arch, Problem], dict[int, int]] = {}
    kernels: dict[str, int] = {}
    others = 0
    for recording in recordings:
        others += recording.others
        for each in recording.calls:
            counts = rows.setdefault((each.arch, each.problem), {})
            for mean, count in each.rows.items():
                counts[mean] = counts.get(mean, 0) + count
        for name, count in recording.kernels.items():
            kernels[name] = kernels.get(name, 0) + count
    calls = tuple(
        Calls(arch=arch, problem=problem, rows=counts) for (arch, problem), counts in rows.items()
    )
    return Recording(calls=calls, kernels=kernels, others=others)


def parts(path: Path) -> list[Path]:
    """
    Return the paths of the files that JITGEN_RECORD=`path` wrote, one of each process; or `path`
    itself if it exists.
    """
    if path.exists():
        return [path]
    suffix = path.suffix
    found = path.parent.glob(f"{_escaped(path.name.removesuffix(suffix))}.*-*{_escaped(suffix)}")
    return sorted(each for each in found if each.is_file())


def part(path: Path) -> Path:
    """Return a new path for this process's own file of JITGEN_RECORD=`path`."""
    stem = path.name.removesuffix(path.suffix)
    return path.with_name(f"{stem}.{os.getpid()}-{secrets.token_hex(4)}{path.suffix}")


def _escaped(text: str) -> str:
    import glob

    return glob.escape(text)


def _recording(document: object) -> Recording:
    found = _table("the document", document, _KEYS)
    if found["recording"] != SCHEMA:
        raise ConfigError(
            f"recording must be {SCHEMA}, the format that this version reads "
            f"(got {shown(found['recording'])})"
        )
    if not isinstance(found["calls"], list):
        raise ConfigError(f"calls must be a list (got {shown(found['calls'])})")
    if not isinstance(found["kernels"], dict):
        raise ConfigError(f"kernels must be a table of counts (got {shown(found['kernels'])})")
    jitgen, began, written = (_text(name, found[name]) for name in ("jitgen", "began", "written"))
    return Recording(
        calls=tuple(_calls(each) for each in found["calls"]),
        kernels={
            kernel_renamed(name): _count(name, count) for name, count in found["kernels"].items()
        },
        others=_count("others", found["others"]),
        jitgen=jitgen,
        began=began,
        written=written,
    )


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a text (got {shown(value)})")
    return value


def _calls(document: object) -> Calls:
    found = _table("a call", document, _CALL_KEYS)
    if not isinstance(found["op"], str) or not isinstance(found["arch"], str):
        raise ConfigError(f"arch and op of a call must be texts (got {shown(document)})")
    kind = operation(found["op"]).problem_type
    rows = found["rows_per_group"]
    if not isinstance(rows, dict) or not isinstance(found["problem"], dict):
        raise ConfigError(f"problem and rows_per_group must be tables (got {shown(document)})")
    problem = kind.from_json({**found["problem"], "m": 1}).with_mean(1)
    counts = {}
    for text, count in rows.items():
        if not (text.isdecimal() and text.isascii() and 0 < len(text) <= 15 and int(text)):
            raise ConfigError(f"rows_per_group counts by whole numbers from 1 (got {shown(text)})")
        counts[int(text)] = _count(text, count)
    return Calls(arch=Arch.parse(found["arch"]), problem=problem, rows=counts)


def _table(what: str, document: object, keys: set[str]) -> dict[str, object]:
    if not isinstance(document, dict) or set(document) != keys:
        raise ConfigError(f"{what} must have {', '.join(sorted(keys))} (got {shown(document)})")
    return document


def _count(name: str, value: object) -> int:
    if type(value) is not int or value < 0:
        raise ConfigError(f"{shown(name)}: must be a whole number (got {shown(value)})")
    return value
