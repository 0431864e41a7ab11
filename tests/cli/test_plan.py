# SPDX-License-Identifier: Apache-2.0
"""`jitgen plan`, and commands that take a plan with calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from jitgen import plans
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.plans.recording import Calls, Recording
from jitgen.targets.legality import target
from tests.cli.conftest import Jitgen

GEMM = GroupedGemmProblem(layout=Layout.RAGGED, groups=8, m=8, n=4096, k=7168)
KERNEL = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t64x128x128_c1x1_acc1_sm_90a"


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """What JITGEN_RECORD was, for two processes."""
    for number, count in enumerate((5, 30)):
        rows = {1: count, 2000: 100}
        one = Calls(arch=Arch.SM_90A, problem=GEMM, rows=rows)
        recording = Recording(calls=(one,), kernels={KERNEL: 2}, others=number)
        recording.save(tmp_path / f"calls.{number}-ab.json")
    return tmp_path / "calls.json"


def test_recordings_become_a_plan(jitgen: Jitgen, calls: Path, tmp_path: Path) -> None:
    to = tmp_path / "mine.toml"
    done = jitgen("plan from-recording", str(calls), "-o", str(to))

    assert done.code == 0
    assert done.out == ""
    assert "2 problems of 235 calls in 2 files: wrote" in done.err
    assert f"{KERNEL}, asked for by its config 4 times" in done.err
    assert "counted together: 1 call, as a process" in done.err
    assert [sweep.calls for sweep in plans.load(to).sweeps] == [200, 35]


def test_a_plan_goes_to_standard_output_and_json(jitgen: Jitgen, calls: Path) -> None:
    done = jitgen("plan from-recording --least 100", str(calls))
    document = jitgen("plan from-recording --least 100 --json", str(calls)).document

    assert document["plan"] == done.out
    assert "calls = 200" in done.out
    assert "left out 35 calls of" in done.err
    one = jitgen("plan from-recording --least 200", str(calls))
    assert "\n1 problem of 200 calls in 2 files" in one.err
    assert (document["calls"], document["kept"], document["others"]) == (240, 200, 1)
    assert document["command"] == "plan from-recording"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("nothing.json", 2, "there is no recording nothing.json, nor one of any process beside it"),
        ("{calls} -o plan.json", 2, "the name of a plan file ends in .toml"),
        ("{calls} --least 0", 2, "0 is not in the range"),
        ("{calls} -o /nowhere/at/all.toml", 2, "there is no folder /nowhere/at"),
        ("", 2, "Missing argument"),
    ],
)
def test_mistakes(jitgen: Jitgen, calls: Path, words: str, code: int, message: str) -> None:
    done = jitgen("plan from-recording", words.format(calls=calls))

    assert done.code == code
    assert message in done.err
    assert not done.out


def test_what_a_plan_asks_for(jitgen: Jitgen, calls: Path, tmp_path: Path) -> None:
    to = tmp_path / "mine.toml"
    jitgen("plan from-recording", str(calls), "-o", str(to))
    done = jitgen("plan show --device h200", str(to))
    document = jitgen("plan show --device h200 --json", str(to)).document
    first, second = document["problems"]

    assert done.code == 0
    assert "85.1%" in done.out.splitlines()[1]
    assert (first["calls"], second["calls"]) == (200, 35)
    assert document["devices"] == first["devices"] == ["NVIDIA H200"]
    assert [each["kernel"] for each in document["problems"]] == [
        each["name"]
        for each in jitgen("prewarm --dry-run --json --device h200", str(to)).document["kernels"]
    ], "and in the order of their calls"


def test_a_plan_asks_for_what_every_device_chooses(jitgen: Jitgen) -> None:
    """It used to show what the first device of a target chooses, as what the target does."""
    document = jitgen("plan show deepseek-v3 --arch sm_90a --json").document
    wanted = jitgen("prewarm deepseek-v3 --arch sm_90a --dry-run --json").document
    done = jitgen("plan show deepseek-v3 --arch sm_90a")
    every = [device.name for device in target(Arch.SM_90A).devices]
    counts = {len(each["devices"]) for each in document["problems"]}

    assert document["devices"] == wanted["devices"]["sm_90a"] == every
    assert {each["kernel"] for each in document["problems"]} == {
        each["name"] for each in wanted["kernels"]
    }
    assert {1, len(every)} <= counts
    assert done.err.endswith(f"kernels for sm_90a on {', '.join(every)}\n")
    assert "all" in {line.split("  ")[-1] for line in done.out.splitlines()}


def test_a_plan_shows_what_is_launched_beside(jitgen: Jitgen) -> None:
    """Kernels that unpack prepacked weights, which prewarm compiled, were not in the list."""
    document = jitgen("plan show gpt-oss-hopper --device h200 --json").document
    wanted = jitgen("prewarm gpt-oss-hopper --device h200 --dry-run --json").document

    assert {each["kernel"] for each in document["problems"]} == {
        each["name"] for each in wanted["kernels"]
    }


def test_shipped_plans_are_listed(jitgen: Jitgen) -> None:
    document = jitgen("plan ls --json").document

    assert [each["name"] for each in document["plans"]] == list(plans.names())
    assert "deepseek-v3" in jitgen("plan ls").out
    assert "CALLS" not in jitgen("plan show deepseek-v3 --arch sm_90a").out


def test_bench_names_what_it_cannot_time(jitgen: Jitgen) -> None:
    """Operations that nothing times are said, not left out in silence."""
    done = jitgen("bench plan swiglu --arch cpu")

    assert done.code == 0
    assert "of other operations cannot be timed alone" in done.err
    assert jitgen("bench plan deepseek-v3 --arch sm_90a").code == 1
