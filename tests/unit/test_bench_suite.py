# SPDX-License-Identifier: Apache-2.0
"""Suites without a GPU: cases, plan, reports, targets, and the run itself on a CPU."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from jitgen import bench, reference
from jitgen.autotune.measure import clock
from jitgen.autotune.measure.clock import Batch, Call
from jitgen.autotune.measure.rotation import rotation
from jitgen.autotune.measure.times import Times
from jitgen.autotune.measure.workload import Workload
from jitgen.bench import REPORTS, cases, gpu, grouped, grouped_targets, kernel, runner
from jitgen.bench.cases import Case
from jitgen.bench.grouped_records import Section
from jitgen.bench.grouped_report import GroupedReport, geometric_mean
from jitgen.bench.peers import Peer
from jitgen.bench.protocol import Record, Row
from jitgen.bench.runner import Ready
from jitgen.config import Layout
from jitgen.errors import ConfigError
from tests.bench_report import DECODE, PREFILL, RAGGED, SMALL, TINY, measured, report


def test_public_cases() -> None:
    found = cases.load()

    assert len(found) == 41
    assert len(set(found)) == 41
    assert {case.layout for case in found} == {*Layout}
    assert all(case.problem.groups == len(case.row_counts) for case in found)


def test_the_cases_of_blackwell() -> None:
    """Experts, rows, N and K each with each, DeepSeek-V3's matrices first; then other layouts."""
    found = cases.load(cases.file_of("blackwell"))
    grid = [case for case in found if case.layout is Layout.RAGGED]
    sizes = {(each.groups, each.rows_per_group, each.n, each.k) for each in grid}

    assert len(grid) == len(sizes) == 81
    assert [len({size[axis] for size in sizes}) for axis in range(4)] == [3, 3, 3, 3]
    assert {(case.n, case.k) for case in found[:18]} == {*cases.MATRICES}
    assert {case.layout for case in found[81:]} == {Layout.MASKED, Layout.CONTIGUOUS}


def test_suites_are_found_by_their_names() -> None:
    assert [bench.find(name).name for name in REPORTS] == [*REPORTS]
    assert cases.file_of("hopper") == cases.PUBLIC
    assert not list(replace(report(), suite="blackwell").targets())
    with pytest.raises(KeyError):
        bench.find("gemm")


@pytest.mark.parametrize(
    "record",
    [
        Row(suite="gemm", what="a rate", value=2.5, unit="GB/s", budget=2.0, is_rate=True),
        Row(suite="gemm", what="a time", value=1.0, unit="us", detail="5 rounds"),
        kernel.Checked(title="mine", rows=({"right": True},)),
    ],
)
def test_a_record_with_derived_values_is_read_again(record: Record) -> None:
    """Properties that a record writes, and values that may be None, were no keys of a field."""
    document = json.loads(json.dumps(record.to_json()))

    assert type(record).from_json(document) == record


def test_rows_of_groups_vary_with_the_spread_and_never_between_runs() -> None:
    loose = replace(DECODE, rows_per_group=100)

    assert SMALL.row_counts == (64,) * 8
    assert loose.row_counts == loose.row_counts
    assert len(set(loose.row_counts)) > 10
    assert min(loose.row_counts) >= 70
    assert max(loose.row_counts) <= 130
    assert 0 <= min(replace(loose, spread=1.0).row_counts) < 30
    assert set(replace(DECODE, rows_per_group=1).row_counts) == {1}


def test_rows_of_groups_by_rank() -> None:
    """Their sum is exact, and their order is drawn once."""
    rows = replace(RAGGED, spread=0, zipf=1.0).row_counts
    ranked = sorted(rows, reverse=True)

    assert sum(rows) == 32 * 150
    assert list(rows) != ranked
    assert ranked[0] == pytest.approx(2 * ranked[1], abs=1)
    assert ranked[0] == pytest.approx(4 * ranked[3], abs=3)


def test_a_case_survives_json() -> None:
    for case in (*cases.load(), *cases.load(cases.KNEE), *cases.ONE_TOKEN):
        assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 3}, "a case has no field 'rows'"),
        ({"k": None}, "k must be of type int"),
        ({"k": 0}, "must be at least 1"),
        ({"groups": True}, "groups must be of type int"),
        ({"layout": "loose"}, "layout must be ragged, contiguous, masked"),
        ({"layout": ["ragged"]}, "layout must be"),
        ({"max_rows": 9}, "max_rows is for the masked layout"),
        ({"layout": "masked", "max_rows": 2}, "max_rows must be at least 3"),
        ({"layout": "masked"}, "max_rows is for the masked layout, which needs it"),
        ({"spread": 1.5}, "spread must be from 0 to 1"),
        ({"spread": "much"}, "spread must be of type int or float"),
        ({"zipf": 5}, "zipf must be from 0 to 4"),
        ({"zipf": 1, "spread": 0.3}, "a spread or a zipf, not both"),
    ],
)
def test_bad_cases_are_refused(changes: dict[str, object], message: str) -> None:
    document = {"layout": "ragged", "groups": 2, "rows_per_group": 3, "n": 128, "k": 128}

    assert Case.from_json(document).groups == 2
    with pytest.raises(ConfigError, match=message):
        Case.from_json({**document, **changes})


def test_bad_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    for text, message in (
        ("[", "does not hold cases"),
        ("[]", "needs an object with a list 'cases'"),
        ('{"cases": [], "dtype": "f16"}', "dtype must be 'e4m3'"),
        ('{"cases": [{"n": 1}]}', "cases.json: a case needs 'layout'"),
        ('{"cases": [7]}', "a case must be an object"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            cases.load(path)
    with pytest.raises(ConfigError, match="No such file"):
        cases.load(tmp_path / "none.json")


def test_the_plan_and_what_only_leaves() -> None:
    found = cases.load()
    steps = grouped.plan(found)

    kinds = [step.kind for step in steps]
    assert kinds[:3] == ["kernels"] * 3
    assert kinds.count("public") == 41
    assert kinds.count("one_token") == 4
    assert kinds.count("accuracy") == 3
    assert kinds.count("host") == 1
    assert kinds.count("sustained") == 5
    only = grouped.plan(found, ["masked", " 32 x 8 "])
    assert [str(step) for step in only] == [
        "public masked 32 x 8 N4096 K7168 +-30%",
        "public masked 32 x 8 N7168 K2048 +-30%",
    ]


def test_ratios_and_means() -> None:
    found = report()

    assert found.found[0].ratio("deep_gemm") == pytest.approx(1.2)
    assert found.found[0].ratio("triton") is None
    assert found.geometric_mean("deep_gemm") == pytest.approx((1.2 * 1.2 * 1.25) ** (1 / 3))
    assert found.geometric_mean("triton") is None
    assert found.peers == ["deep_gemm"]
    assert found.noise == pytest.approx(0.02)
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    assert geometric_mean([]) is None
    assert found.found[0].rate(3.0) == pytest.approx(3.0 / 100e-6)


def test_slower_means_slower_in_every_round() -> None:
    assert measured(SMALL, 100, 90).is_slower("deep_gemm")
    assert not measured(
        SMALL,
        100,
        99.9,
        times={"jitgen": Times(seconds=(1.0, 1.0)), "deep_gemm": Times(seconds=(0.9, 1.1))},
    ).is_slower("deep_gemm")
    assert not measured(SMALL, 100, 90).is_slower("triton")


def test_a_report_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    report().save(path)

    assert GroupedReport.read(path) == report()
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]


def test_bad_reports_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    damaged = report().to_json()
    damaged["measured"][0]["case"] = {}
    missing = report().to_json()
    del missing["measured"][0]["kernel"]
    uneven, empty, slow = report().to_json(), report().to_json(), report().to_json()
    uneven["measured"][0]["seconds"]["jitgen"] = [1.0]
    empty["measured"][0]["seconds"] = {"jitgen": []}
    slow["copy_bytes_per_s"] = "slow"
    for document, message in (
        ([], "does not hold a report"),
        ({"suite": "gemm"}, "no report of hopper or blackwell"),
        ({**report().to_json(), "report_schema": 0}, "of this version"),
        (damaged, "a case needs 'layout'"),
        (missing, "the report is damaged: KeyError"),
        (uneven, "unequal numbers of rounds"),
        (empty, "one for each round"),
        (slow, "the report is damaged: ValueError"),
    ):
        path.write_text(json.dumps(document))
        with pytest.raises(ConfigError, match=message):
            GroupedReport.read(path)


def test_the_share_of_the_limit() -> None:
    """The limit is that of bytes or of products, whichever takes longer."""
    few, many = measured(DECODE, 100, 1, num_bytes=392_000_000), measured(RAGGED, 400, 1)

    assert few.share(4e12) == pytest.approx(0.98)
    assert replace(many, flop=290_000_000_000).share(4e12) == pytest.approx(0.5)
    assert few.share(0) is None
    assert report().share(Section.PUBLIC) == pytest.approx((0.98 * 0.95 * 0.9517) ** (1 / 3), 1e-3)
    assert report().share(Section.KNEE) is None
    assert replace(report(), suite="blackwell").share(Section.PUBLIC) is None
    assert "OF LIMIT" in next(iter(report().tables())).columns


def test_targets_take_the_worst_case() -> None:
    found = report()
    for us in (100, 200):
        one = measured(replace(RAGGED, zipf=0.6, spread=0), us, 110, section=Section.KNEE)
        found.found.append(replace(one, flop=145_000_000_000))
    rows = {row.what: row for row in found.targets()}

    assert rows["the knee"].value == pytest.approx(50)
    assert rows["the knee"].detail == "worst of 2: ragged 32 x 150 N4096 K7168 Zipf 0.6"
    assert not rows["the knee"].ok
    assert rows["all cases, geometric mean of the share of the limit"].ok
    assert rows["decode of 32 groups, N4096 K7168"].value == pytest.approx(98)
    assert rows["decode of 32 groups, N4096 K7168"].ok
    assert rows["prefill, sustained"].value == pytest.approx(1.01)
    assert rows["cases slower than DeepGEMM in every round"].ok
    assert rows["error over DeepGEMM's, ragged"].ok
    assert rows["host time of a warm grouped_gemm(..., out=out)"].value == pytest.approx(7)
    assert "one token for each of 8 groups" not in rows
    assert not list(GroupedReport().targets())


def test_every_target_has_public_cases() -> None:
    places = {
        Section.PUBLIC: cases.load(),
        Section.ONE_TOKEN: cases.ONE_TOKEN,
        Section.SUSTAINED: cases.load(),
        Section.KNEE: cases.load(cases.KNEE),
    }
    for target in grouped_targets.TARGETS:
        assert any(target.matches(case) for case in places[target.section]), target.what


def test_clocks_are_read_from_a_line() -> None:
    state = gpu.GpuState.parse("1395, 3201, 698.12, 61")

    assert str(state) == "SM 1395 MHz, memory 3201 MHz, 698 W, 61 C"
    assert gpu.GpuState.parse("[N/A], 3201, 698.12, 61") is None
    assert gpu.words([]) == ""
    assert state is not None
    assert gpu.words([state, replace(state, sm_mhz=1405), state]).startswith("SM 1395 MHz")


class Reference(Peer):
    """The reference, as a peer."""

    name = "deep_gemm"
    note = "slow"
    has_same_numerics = True

    def prepare(self, workload: Workload, expected_m: int) -> Ready:
        return Ready(
            calls=(lambda: workload.call(reference.grouped_gemm),),
            check=lambda: workload.check("the reference"),
            padding=(lambda: None,),
        )


class Wrong(Reference):
    """A peer that computes nothing."""

    name = "wrong"

    def prepare(self, workload: Workload, expected_m: int) -> Ready:
        return replace(super().prepare(workload, expected_m), calls=(lambda: None,))


class Broken(Reference):
    """A peer that cannot compute the case."""

    name = "broken"

    def prepare(self, workload: Workload, expected_m: int) -> Ready:
        raise RuntimeError("no kernel\nfor this")


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the suite run on tensors in host memory, timed by the host."""

    def capture(calls: Sequence[Call]) -> Batch:
        return Batch(calls=tuple(calls), replay=lambda: [call() for call in calls])

    def in_turn(batches: Sequence[Batch], **_: object) -> list[Times]:
        return clock.compete_on_host([batch.replay for batch in batches], repetitions=2, warmup=0)

    def back_to_back(functions: Sequence[Call], *, during: Call) -> list[Times]:
        during()
        return clock.compete_on_host(functions, repetitions=2, warmup=0)

    def on_host(functions: Sequence[Call], **_: object) -> list[Times]:
        return clock.compete_on_host(functions, repetitions=2, warmup=0)

    monkeypatch.setenv("JITGEN_ARCH", "cpu")
    monkeypatch.setattr(runner, "_DEVICE", "cpu")
    monkeypatch.setattr("jitgen.autotune.measure.rotation._MOST", 2)
    monkeypatch.setattr(Batch, "capture", capture)
    monkeypatch.setattr(runner, "compete_in_batches", in_turn)
    monkeypatch.setattr(grouped, "compete_on_host", on_host)
    monkeypatch.setattr(grouped, "sustain", back_to_back)
    monkeypatch.setattr(grouped, "_ACCURACY", (TINY,))
    monkeypatch.setattr(grouped, "_HOST", replace(TINY, layout=Layout.MASKED, max_rows=16))


@pytest.mark.usefixtures("on_a_cpu")
def test_sides_take_part_if_they_are_right() -> None:
    operands = rotation(grouped.workload(TINY))
    found = grouped.contest(TINY, [Reference(), Wrong(), Broken()], operands)

    assert len(operands) == 2
    assert list(found.batches) == ["jitgen", "deep_gemm", "padding"]
    assert len(found.batches["jitgen"].calls) == 2
    assert found.missing["wrong"].startswith("WrongResult: the reference is wrong by nan")
    assert found.missing["broken"] == "RuntimeError: no kernel for this"


@pytest.mark.usefixtures("on_a_cpu")
def test_every_kind_of_step() -> None:
    found = grouped.cold(Section.PUBLIC, TINY, [Reference(), Wrong()])
    assert found.kernel.endswith("_cpu")
    assert found.launches == 2
    assert {*found.times} == {"jitgen", "deep_gemm", "padding"}
    assert found.flop == 2 * sum(TINY.row_counts) * 128 * 256
    assert math.isfinite(found.ratio("deep_gemm") or math.nan)

    errors = grouped.accuracy(TINY, [Reference(), Broken()])
    assert 0 < errors.errors["jitgen"] < 2**-8
    assert {*errors.missing} == {"broken"}

    assert {*grouped.host(grouped._HOST, [Reference()]).times} == {"jitgen", "deep_gemm"}
    assert {*grouped.sustained(TINY, [Broken()]).times} == {"jitgen"}


@pytest.mark.usefixtures("on_a_cpu")
def test_kernels_that_may_be_chosen_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is run on edges, and one that leaves a value out is named; with scales over scales."""
    monkeypatch.setattr(grouped, "KINDS", grouped.KINDS[-1:])
    [edges] = [case for case in grouped.EDGES if case.layout is Layout.RAGGED]
    right = list(grouped.check(edges))
    monkeypatch.setattr("jitgen.bench.grouped.jitgen.grouped_gemm", lambda **_: None)
    wrong = list(grouped.check(edges))

    assert [each.reason for each in right] == [""] * len(right)
    assert len({each.kernel for each in right}) == len(right) > 0
    assert all("values are wrong" in each.reason for each in wrong)
    assert len(GroupedReport(kernels=wrong).failures) == len(wrong)


@pytest.mark.usefixtures("on_a_cpu")
def test_a_kernel_that_is_wrong_is_told_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jitgen.bench.grouped.jitgen.grouped_gemm", lambda *_, **__: None)
    found = grouped.cold(Section.PUBLIC, TINY, [Reference()])

    assert {*found.times} == {"deep_gemm", "padding"}
    assert (found.kernel, found.seconds) == ("", None)
    [failure] = GroupedReport(found=[found]).failures
    assert "ragged 3 x 6 N128 K256 +-50%: WrongResult" in failure


def test_prefill_is_what_the_sustained_steps_run() -> None:
    steps = [step.case for step in grouped.plan([PREFILL, SMALL], ["sustained"])]

    assert steps == [PREFILL]
