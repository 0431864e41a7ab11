# SPDX-License-Identifier: Apache-2.0
"""`jitgen tune`, and what other commands say about what it measured."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jitgen.autotune import bench
from jitgen.cache import Store
from jitgen.config import Arch
from jitgen.plans import prewarm as compiling
from jitgen.runtime.session import current
from jitgen.selection import device
from jitgen.selection import measurements as tuned
from tests.cli.conftest import Jitgen
from tests.unit.fake_trials import VARIABLE
from tests.unit.tune_stand import NAMES, TRIALS, Stand, compiled

SIZES = "-g 2 -m 16 -n 64 -k 64 --arch cpu"
TUNE = f"tune {SIZES} --time-limit 1"


@pytest.fixture(autouse=True)
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    monkeypatch.setattr(bench, "TRIALS", TRIALS)
    monkeypatch.setattr(compiling, "prewarm", compiled)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    stand = Stand(tmp_path)
    stand.script(us_2=40.0)
    return stand


def test_a_problem(jitgen: Jitgen) -> None:
    done = jitgen(TUNE)
    (title, line) = done.out.splitlines()

    assert done.code == 0
    assert title.split() == ["STATE", "TIME", "(us)", "AHEAD", "PROBLEM", "KERNEL"]
    assert line.split() == [
        "measured",
        "40.0",
        "25.0",
        "%",
        *["ragged", "2", "x", "(8", "x", "64", "x", "64)"],
        NAMES[2],
    ]
    assert f"[1/1] 40.0 us ragged 2 x (8 x 64 x 64) {NAMES[2]}" in done.err
    assert "25.0 % ahead of the model's choice" in done.err
    assert f"1 problem on {device.cpu_name()}: 1 measured in" in done.err


def test_json(jitgen: Jitgen, stand: Stand) -> None:
    document = jitgen(TUNE, "--json").document
    (problem,) = document["problems"]

    assert (document["command"], document["ok"], document["arch"]) == ("tune", True, "cpu")
    assert problem["record"]["winner"] == NAMES[2]
    assert problem["record"]["times_us"].keys() == set(NAMES)
    assert (problem["state"], problem["ahead"], problem["missing"]) == ("measured", 0.25, {})
    assert jitgen(TUNE, "--json").document["problems"][0]["state"] == "recorded"


def test_a_plan(jitgen: Jitgen, tmp_path: Path) -> None:
    plan = tmp_path / "mine.toml"
    plan.write_text(
        "[[problems]]\nlayout = ['ragged', 'masked']\ngroups = 2\n"
        "rows_per_group = { min = 1, max = 500 }\nmatrix = { n = 64, k = 64 }\n"
    )
    done = jitgen("tune", str(plan), "--arch cpu --json")

    assert done.code == 0
    assert len(done.document["problems"]) == 8
    assert len(tuned.all_recorded(Store.open(), Arch.CPU)) == 8


def test_a_plan_with_other_operations(jitgen: Jitgen, tmp_path: Path) -> None:
    """A recording of a layer was refused; its grouped GEMMs are measured, the rest is named."""
    gemm = "groups = 2\nrows_per_group = 8\nmatrix = { n = 64, k = 64 }\n"
    swiglu = (
        "op = 'activation_quantize'\nlayout = 'ragged'\ngroups = 2\nrows_per_group = 8\nn = 64\n"
    )
    plan, other = tmp_path / "mine.toml", tmp_path / "other.toml"
    plan.write_text(f"[[problems]]\nlayout = 'ragged'\n{gemm}[[problems]]\n{swiglu}")
    other.write_text(f"[[problems]]\n{swiglu}")
    done = jitgen("tune", str(plan), "--arch cpu --json")
    refused = jitgen("tune", str(other), "--arch cpu")

    assert done.code == 0
    assert len(done.document["problems"]) == 1
    assert done.document["left_out"] == {"activation_quantize": 1}
    assert "left out 1 problem of other operations" in done.err
    assert "1 of activation_quantize" in done.err
    assert refused.code == 2
    assert "only grouped_gemm can be measured" in refused.err


def test_failures_are_told(jitgen: Jitgen, stand: Stand) -> None:
    stand.script(verify_0="wrong", verify_1="miss")
    done = jitgen(TUNE)

    assert done.code == 0
    assert f"excluded for ragged 2 x (8 x 64 x 64): {NAMES[0]}: its result is wrong" in done.err
    assert f"not tried for ragged 2 x (8 x 64 x 64): {NAMES[1]}: no compiled kernel" in done.err


def test_a_problem_that_cannot_be_measured(jitgen: Jitgen, stand: Stand) -> None:
    stand.script(open="raise")
    done = jitgen(TUNE)

    assert done.code == 1
    assert "failed" in done.out
    assert "its operands cannot be made: ValueError: an odd value" in done.out
    assert "1 failed" in done.err


def test_select_shows_what_was_measured(jitgen: Jitgen, stand: Stand) -> None:
    stand.script(us_2=40.0, verify_0="wrong")
    assert "TIME" not in jitgen(f"select {SIZES}").out
    jitgen(TUNE)
    done, document = jitgen(f"select {SIZES}"), jitgen(f"select {SIZES} --json").document

    assert done.out.splitlines()[0] == NAMES[2] == document["name"]
    assert "TIME (us)" in done.out
    assert document["source"] == "tuned"
    assert document["candidates"][0]["time_us"] == 40.0
    assert list(document["excluded"]) == [NAMES[0]]
    assert "EXCLUDED" in done.out
    assert "its result is wrong" in done.out


class TestTables:
    """Out and in."""

    def table(self, jitgen: Jitgen, path: Path) -> dict[str, Any]:
        assert jitgen(TUNE, "--export", str(path)).code == 0
        return dict(json.loads(path.read_text()))

    def test_there_and_back(
        self, jitgen: Jitgen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "table.json"
        table = self.table(jitgen, path)
        before = tuned.all_recorded(Store.open(), Arch.CPU)
        jitgen("cache clear --yes")
        current.get().reset()
        assert jitgen(f"select {SIZES} --json").document["source"] == "model"
        monkeypatch.setitem(current.get().memo, ("key",), SimpleNamespace())
        done = jitgen("tune --import", str(path))

        assert done.code == 0
        assert not current.get().memo, "launches are chosen anew"
        assert done.out == f"took over 1 record of {device.cpu_name()}\n"
        assert tuned.all_recorded(Store.open(), Arch.CPU) == before
        assert table["device"] == device.cpu_name()
        assert {"date", "driver", "jitgen", "templates", "torch"} <= table["conditions"].keys()
        assert "nvidia-cutlass-dsl" in table["conditions"]

    def test_standard_output_is_the_table(self, jitgen: Jitgen, stand: Stand) -> None:
        table = json.loads(jitgen(TUNE, "--export -").out)
        stand.script()

        assert len(table["records"]) == 1
        assert json.loads(jitgen("tune --export - --arch cpu").out)["records"] == table["records"]
        assert not stand.calls

    def test_only_what_was_asked_for(self, jitgen: Jitgen) -> None:
        jitgen(TUNE)
        other = TUNE.replace("-n 64", "-n 128")

        assert len(json.loads(jitgen(other, "--export -").out)["records"]) == 1
        assert len(json.loads(jitgen("tune --arch cpu --export -").out)["records"]) == 2

    def test_of_another_device(self, jitgen: Jitgen, tmp_path: Path) -> None:
        path = tmp_path / "table.json"
        path.write_text(json.dumps(self.table(jitgen, path) | {"device": "a toaster"}))
        done = jitgen("tune --import", str(path))

        assert done.code == 2
        assert "measured on a toaster" in done.err

    def test_with_other_versions(self, jitgen: Jitgen, tmp_path: Path) -> None:
        path = tmp_path / "table.json"
        table = self.table(jitgen, path)
        table["conditions"]["torch"] = "0.1"
        path.write_text(json.dumps(table))
        done = jitgen("tune --import", str(path))

        assert done.code == 0
        assert "measured with torch 0.1; here it is" in done.err
        there = jitgen(f"tune --json --import {path}").document["differences"]["torch"]["there"]
        assert there == "0.1"

    def test_what_is_out_of_date_is_left_out(self, jitgen: Jitgen, tmp_path: Path) -> None:
        path = tmp_path / "table.json"
        table = self.table(jitgen, path)
        (record,) = table["records"]
        gone = {**record, "winner": "gone", "times_us": {"gone": 1.0}}
        between = {**record, "problem": {**record["problem"], "m": 17}}
        path.write_text(json.dumps(table | {"records": [gone, between]}))
        done = jitgen(f"tune --import {path}")

        assert done.code == 0
        assert done.out.startswith("took over 0 records")
        assert "does not choose gone" in done.err
        assert "chooses for other numbers of rows" in done.err

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("{", "is no JSON"),
            ("[" * 100_000, "is no JSON"),
            ("[]", "a table must be a JSON object"),
            ('{"schema": 1, "device": "x", "arch": "sm_1", "records": []}', "'sm_1' is not known"),
        ],
        ids=["half", "deep", "list", "arch"],
    )
    def test_no_table(self, jitgen: Jitgen, tmp_path: Path, text: str, complaint: str) -> None:
        path = tmp_path / "table.json"
        path.write_text(text)
        done = jitgen(f"tune --import {path}")

        assert done.code == 2
        assert complaint in done.err
        assert done.err.count("\n") == 1

    def test_files_that_cannot_be_used(self, jitgen: Jitgen, tmp_path: Path) -> None:
        read = jitgen(f"tune --import {tmp_path / 'none'}")
        written = jitgen(TUNE, f"--export {tmp_path / 'none' / 'table'}")

        assert (read.code, written.code) == (2, 2)
        assert "cannot be read: No such file" in read.err
        assert "there is no folder" in written.err

    def test_nothing_to_export(self, jitgen: Jitgen, tmp_path: Path) -> None:
        done = jitgen(f"tune --arch sm_90a --export {tmp_path / 'table'}")

        assert done.code == 2
        assert done.err == "error: nothing was measured for sm_90a here; run: jitgen tune PLAN\n"
        assert not list(tmp_path.glob("table"))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("tune", "swiglu), or give --groups, --m, --n and --k"),
        ("tune -g 2 -m 4", "a problem needs --n and --k too"),
        ("tune --layout masked", "a problem needs --groups and --m and --n and --k too"),
        ("tune deepseek-v3 -g 2", "give a plan or sizes, not both"),
        ("tune deepseek-v3 --layout masked", "give a plan or sizes, not both"),
        ("tune no-such-plan", "no plan 'no-such-plan'"),
        (f"{TUNE} --import x", "--import goes alone"),
        ("tune --import x --export y", "--import goes alone"),
        (f"{TUNE} -n 0", "n must be an integer of at least 1"),
        (f"{TUNE} --time-limit 0", "--time-limit"),
    ],
)
def test_usage(jitgen: Jitgen, words: str, complaint: str) -> None:
    done = jitgen(words)

    assert done.code == 2
    assert complaint in done.err
    assert not done.out


def test_two_documents_on_standard_output(jitgen: Jitgen) -> None:
    assert jitgen(TUNE, "--json --export -").code == 2


def test_without_the_gpu(jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "gpu_at_hand", lambda _: "")
    done = jitgen("tune -g 2 -m 16 -n 64 -k 64 --arch sm_90a")

    assert done.code == 1
    assert done.err == "error: tuning for sm_90a needs such a GPU, and none is here\n"


def test_a_cache_that_is_not_written(jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITGEN_CACHE", "ro")
    done = jitgen(TUNE)

    assert done.code == 1
    assert "JITGEN_CACHE=ro" in done.err


def test_other_commands_count_it(jitgen: Jitgen) -> None:
    jitgen(TUNE)

    assert jitgen("cache stats --json").document["tuned"] == 1
    findings = jitgen("doctor --json").document["findings"]
    (found,) = [finding for finding in findings if finding["name"] == "tuned"]
    assert found["value"].startswith("1 problem")
    assert "and the measurements of 1 problem" in jitgen("cache clear --dry-run").out
    assert jitgen("cache clear --yes --json").document["removed_tuned"] == 1
    assert jitgen("cache stats --json").document["tuned"] == 0
