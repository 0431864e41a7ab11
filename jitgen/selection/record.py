# SPDX-License-Identifier: Apache-2.0
"""
Records: measurements of one problem, and tables of records, in JSON that is checked when it is
read.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import field
from types import MappingProxyType
from typing import Any, Self

from jitgen.config import Arch
from jitgen.config.operation import operation
from jitgen.config.problem import Problem
from jitgen.errors import ConfigError
from jitgen.support.frozen import frozen
from jitgen.support.text import shown

SCHEMA = 1
"""Version of records and tables; another one is not read."""

MAX_TABLE_BYTES = 2**22
"""No table is larger; the shipped one, of some hundred problems, has 40 KB."""

_MOST_US = 1e12
"""Largest time of a record in microseconds, eleven days: nothing that takes longer was measured."""

_DEFAULT_OP = "grouped_gemm"
"""Operation of a problem that does not name one."""


class BadRecord(ConfigError):
    """A document is no record, or no table of them; the message says where it is wrong."""


@frozen
class TuningRecord:
    """
    Measurements of the kernels of one problem.

    Attributes:
        problem: The problem that represents its bucket.
        winner: Name of the fastest kernel.
        times_us: Microseconds of each kernel that was measured, by name. Of several batches it is
            the time of the best kernels, longer by the part by which the kernel is slower.
        excluded: Why a kernel must not be chosen, by name: it failed, hung, or was wrong.
        date: Time of the measurements, in ISO 8601.
    """

    problem: Problem
    winner: str
    times_us: Mapping[str, float] = field(hash=False)
    excluded: Mapping[str, str] = field(hash=False)
    date: str

    def fastest(self, usable: Set[str]) -> str | None:
        """
        Return the winner; if it is not usable, the fastest of `usable`; None if one of those was
        never measured.
        """
        if self.winner in usable:
            return self.winner
        if not self.times_us.keys() >= usable:
            return None
        return min(usable, key=self.times_us.__getitem__, default=None)

    def to_json(self) -> dict[str, Any]:
        """Return the exact JSON form."""
        return {
            "schema": SCHEMA,
            "problem": problem_json(self.problem),
            "winner": self.winner,
            "times_us": dict(self.times_us),
            "excluded": dict(self.excluded),
            "date": self.date,
        }

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """
        Return the record that `to_json` wrote.

        Raises:
            BadRecord: `document` is something else.
        """
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise BadRecord(f"a record must be a JSON object of schema {SCHEMA}")
        times = _mapping(document, "times_us")
        for name, time in times.items():
            if type(time) not in (int, float) or not 0 < time < _MOST_US:
                raise BadRecord(
                    f"times_us of {shown(name)} must be microseconds (got {shown(time)})"
                )
        excluded = _mapping(document, "excluded")
        if not all(isinstance(reason, str) for reason in excluded.values()):
            raise BadRecord("excluded must give a reason for each kernel")
        winner, date = document.get("winner"), document.get("date")
        if not isinstance(winner, str) or winner not in times:
            raise BadRecord(f"winner must be one of the kernels in times_us (got {shown(winner)})")
        if not isinstance(date, str):
            raise BadRecord(f"date must be a string (got {shown(date)})")
        return cls(
            problem=parse_problem(document.get("problem")),
            winner=winner,
            times_us=MappingProxyType({name: float(time) for name, time in times.items()}),
            excluded=MappingProxyType(excluded),
            date=date,
        )


@frozen
class Table:
    """
    Records of one device.

    Attributes:
        device: Its name.
        arch: The target of the kernels.
        conditions: Further conditions of the measurements: driver, versions, date of the table.
        records: One record for each problem.
    """

    device: str
    arch: Arch
    conditions: Mapping[str, Any] = field(hash=False)
    records: tuple[TuningRecord, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the exact JSON form."""
        return {
            "schema": SCHEMA,
            "device": self.device,
            "arch": str(self.arch),
            "conditions": dict(self.conditions),
            "records": [record.to_json() for record in self.records],
        }

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """
        Return the table that `to_json` wrote.

        Raises:
            BadRecord: `document` is something else.
        """
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise BadRecord(f"a table must be a JSON object of schema {SCHEMA}")
        device, records = document.get("device"), document.get("records")
        if not isinstance(device, str) or not device:
            raise BadRecord(f"device must be a name (got {shown(device)})")
        if not isinstance(records, list):
            raise BadRecord("records must be a list")
        try:
            arch = Arch.parse(str(document.get("arch")))
        except ConfigError as error:
            raise BadRecord(str(error)) from None
        return cls(
            device=device,
            arch=arch,
            conditions=MappingProxyType(_mapping(document, "conditions")),
            records=tuple(_numbered(records)),
        )


def _numbered(records: list[Any]) -> list[TuningRecord]:
    found = []
    for number, record in enumerate(records, start=1):
        try:
            found.append(TuningRecord.from_json(record))
        except BadRecord as error:
            raise BadRecord(f"record {number}: {error}") from None
    return found


def _mapping(document: dict[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name)
    if not isinstance(value, dict):
        raise BadRecord(f"{name} must be a JSON object (got {shown(value)})")
    return value


def problem_json(problem: Problem) -> dict[str, Any]:
    """Return the exact JSON form of `problem`: strings, integers, booleans and null."""
    document = problem.to_json()
    return document if problem.op == _DEFAULT_OP else {"op": problem.op, **document}


def parse_problem(document: Any) -> Problem:
    """
    Return the problem that `problem_json` wrote.

    Raises:
        BadRecord: `document` is something else.
    """
    if not isinstance(document, dict):
        raise BadRecord(f"problem must be a JSON object (got {shown(document)})")
    fields = dict(document)
    try:
        kind = operation(str(fields.pop("op", _DEFAULT_OP))).problem_type
        problem = kind.from_json(fields)
    except ConfigError as error:
        raise BadRecord(f"problem: {error}") from None
    if missing := sorted(set(problem.to_json()) - set(fields)):
        raise BadRecord(f"problem must have {missing[0]}")
    return problem
