# SPDX-License-Identifier: Apache-2.0
"""What was measured, to JSON and back; anything else is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from jitgen.config import Layout
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.selection.packed import Packed, pack
from jitgen.selection.record import SCHEMA, BadRecord, Table, TuningRecord
from tests.unit.tuned_fakes import GPU, NAMES, PROBLEM, record


class TestRecords:
    """JSON and back."""

    def test_round_trip(self) -> None:
        there = json.loads(json.dumps(record(excluded={"a": "hung"}).to_json()))

        assert TuningRecord.from_json(there).to_json() == there
        assert TuningRecord.from_json(there) == record(excluded={"a": "hung"})

    def test_table_round_trip(self) -> None:
        table = Table(device="X", arch=GPU, conditions={"driver": "1"}, records=(record(),))
        there = json.loads(json.dumps(table.to_json()))

        assert Table.from_json(there) == table

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("schema", SCHEMA + 1),
            ("problem", None),
            ("problem", {**record().to_json()["problem"], "groups": "8"}),
            ("problem", {**record().to_json()["problem"], "groups": True}),
            ("problem", {**record().to_json()["problem"], "groups": 0}),
            ("problem", {**record().to_json()["problem"], "layout": "diagonal"}),
            ("problem", {**record().to_json()["problem"], "more": 1}),
            ("winner", "unknown"),
            ("winner", 3),
            ("times_us", {}),
            ("times_us", []),
            ("times_us", {NAMES[2]: "fast"}),
            ("times_us", {NAMES[2]: -1.0}),
            ("times_us", {NAMES[2]: 10**400}),
            ("times_us", {NAMES[2]: float("nan")}),
            ("times_us", {NAMES[2]: True}),
            ("excluded", None),
            ("excluded", {"a": 1}),
            ("date", 5),
        ],
    )
    def test_anything_else_is_refused(self, field: str, value: Any) -> None:
        with pytest.raises(BadRecord):
            TuningRecord.from_json({**record().to_json(), field: value})

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("schema", None),
            ("device", ""),
            ("arch", "sm_1"),
            ("conditions", 1),
            ("records", {}),
            ("records", [{}]),
        ],
    )
    def test_other_tables_are_refused(self, field: str, value: Any) -> None:
        table = Table(device="X", arch=GPU, conditions={}, records=(record(),)).to_json()

        with pytest.raises(BadRecord):
            Table.from_json({**table, field: value})

    def test_slugs_tell_problems_apart(self) -> None:
        names = {PROBLEM.slug}
        for field, value in (
            ("layout", Layout.MASKED),
            ("groups", 9),
            ("m", 1),
            ("n", 8),
            ("k", 16),
            ("a_dtype", "bf16"),
            ("out_dtype", "f32"),
            ("scale_granularity", "row"),
        ):
            values = {name: getattr(PROBLEM, name) for name in PROBLEM.__slots__}
            names.add(GroupedGemmProblem(**{**values, field: value}).slug)

        assert len(names) == 9
        assert all(name.replace("_", "").isalnum() for name in names)


class TestPacked:
    """The form in which tables come with jitgen."""

    def packed(self, *records: TuningRecord) -> bytes:
        return pack(Table(device="X", arch=GPU, conditions={"driver": "1"}, records=records))

    def test_round_trip(self) -> None:
        whole = record(excluded={"a": "hung"})
        other = replace(whole, problem=replace(PROBLEM, groups=9))
        data = self.packed(whole, other)
        found = Packed(data)

        assert dict(found) == {PROBLEM.slug: whole, other.problem.slug: other}
        assert (found.shell.device, found.shell.conditions) == ("X", {"driver": "1"})
        assert [*json.loads(data)["records"]] == [*found]
        assert found.get("x") is None

    def test_of_one_slug_in_another(self) -> None:
        """`_m64_` is the beginning of `_m640_`, and must not be found there."""
        long = replace(record(), problem=replace(PROBLEM, k=16384))
        short = replace(PROBLEM, k=1638)

        assert Packed(self.packed(long)).get(short.slug) is None

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (b'"schema": 2', b'"schema": 1'),
            (b'"records": {', b'"records": ['),
            (b'"kernels": [', b'"grains": ['),
            (b'"device": "X"', b'"device": ""'),
            (b'"arch": "sm_90a"', b'"arch": "sm_1"'),
            (
                b"{",
                b"[",
            ),
        ],
    )
    def test_other_documents_are_refused(self, old: bytes, new: bytes) -> None:
        data = self.packed(record())
        assert old in data
        with pytest.raises(ValueError, match=r"must|JSON|known"):
            Packed(data.replace(old, new, 1))

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (b'"winner":2', b'"winner":99'),
            (b'"winner":2', b'"winner":-1'),
            (b'"winner":2', b'"winner":"fast"'),
            (b'"times_us":{"', b'"times_us":{"-'),
            (b'"times_us":{', b'"times_us":['),
            (b'"groups":8', b'"groups":9'),
        ],
    )
    def test_a_damaged_record_is_none(
        self, old: bytes, new: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: Any
    ) -> None:
        monkeypatch.setattr("jitgen.events._warned", set())
        data = re.sub(rb'"winner":\d', b'"winner":2', self.packed(record()))
        assert old in data

        assert Packed(data.replace(old, new)).get(PROBLEM.slug) is None
        assert f"ignoring the shipped record {PROBLEM.slug}" in caplog.text
