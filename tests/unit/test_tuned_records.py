# SPDX-License-Identifier: Apache-2.0
"""What was measured, to JSON and back; anything else is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jitgen.config import Layout
from jitgen.ops.grouped_gemm.config import Problem
from jitgen.tuning.record import SCHEMA, BadRecord, Table, TuningRecord
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
            ("winner", "nobody"),
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
            names.add(Problem(**{**values, field: value}).slug)

        assert len(names) == 9
        assert all(name.replace("_", "").isalnum() for name in names)
