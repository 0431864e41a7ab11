# SPDX-License-Identifier: Apache-2.0
"""What was measured, to JSON and back; anything else is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jitgen.config import Layout
from jitgen.ops.grouped_gemm.config import Problem
from jitgen.tuning.packed import Packed, pack
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


class TestPacked:
    """The form in which tables come with jitgen."""

    def packed(self, **changes: Any) -> Any:
        table = Table(device="X", arch=GPU, conditions={"driver": "1"}, records=(record(),))
        return {**json.loads(json.dumps(pack(table))), **changes}

    def test_round_trip(self) -> None:
        whole = record(excluded={"a": "hung"})
        table = Table(device="X", arch=GPU, conditions={"driver": "1"}, records=(whole,))
        found = Packed(json.loads(json.dumps(pack(table))))

        assert dict(found) == {PROBLEM.slug: whole}
        assert (found.shell.device, found.shell.conditions) == ("X", {"driver": "1"})

    @pytest.mark.parametrize(
        "changes",
        [{"schema": SCHEMA}, {"records": []}, {"kernels": {}}, {"device": ""}, {"arch": "sm_1"}],
        ids=str,
    )
    def test_other_documents_are_refused(self, changes: Any) -> None:
        with pytest.raises(BadRecord):
            Packed(self.packed(**changes))

    @pytest.mark.parametrize(
        "changes",
        [
            {"winner": 99},
            {"winner": -1},
            {"winner": "fast"},
            {"times_us": {"-1": 1.0}},
            {"times_us": []},
            {"problem": {**record().to_json()["problem"], "groups": 9}},
        ],
        ids=str,
    )
    def test_a_damaged_record_is_none(
        self, changes: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("jitgen.events._warned", set())
        document = self.packed()
        document["records"][PROBLEM.slug] |= changes

        assert Packed(document).get(PROBLEM.slug) is None
        assert f"ignoring the shipped record {PROBLEM.slug}" in caplog.text
