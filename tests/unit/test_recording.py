# SPDX-License-Identifier: Apache-2.0
"""Recordings: that every call counts once, and what is on the disk."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from jitgen import plans, quantize
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem, Tile
from jitgen.errors import PlanError
from jitgen.ops.activation_quantize.call import activation_quantize
from jitgen.ops.grouped_gemm.call import grouped_gemm
from jitgen.ops.launch import AnyLaunch, Family, new_launch
from jitgen.plans import recorder
from jitgen.plans import recording as files
from jitgen.runtime.loader import KernelLoader
from jitgen.runtime.session import Session, current
from jitgen.settings import settings
from tests.arguments import K, N, config, good


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Kernels that do nothing; the configs that were asked for."""
    asked: list[Any] = []

    def get(_: KernelLoader, wanted: GroupedGemmConfig, arch: Arch) -> Any:
        asked.append(wanted)
        return SimpleNamespace(function=lambda *_: None, arch=arch, config=wanted)

    monkeypatch.setattr(KernelLoader, "get", get)
    current.get().forget()
    yield asked
    current.get().forget()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: list[Any]) -> Iterator[Path]:
    found = tmp_path / "calls.json"
    monkeypatch.setenv("JITGEN_RECORD", str(found))
    yield found
    recorder.end(found)


def call(rows: int, **options: Any) -> None:
    a, a_scale = quantize.per_token_group(torch.ones(rows, K))
    grouped_gemm(**good() | {"a": a, "a_scale": a_scale} | options)


def recorded(path: Path) -> files.Recording:
    recorder.flush()
    return files.added(files.read(each) for each in files.parts(path))


def counts(path: Path) -> dict[int, int]:
    (calls,) = recorded(path).calls
    return dict(calls.rows)


def test_every_call_counts_once(path: Path) -> None:
    """New shapes, seen ones, and new rows in a seen bucket."""
    for rows, times in ((3, 5), (4, 2), (24, 1), (300, 3)):
        for _ in range(times):
            call(rows)

    (calls,) = recorded(path).calls
    assert calls.rows == {1: 5, 2: 2, 8: 1, 100: 3}
    assert calls.arch is Arch.CPU
    assert (calls.problem.groups, calls.problem.n, calls.problem.k) == (3, N, K)


def test_refused_calls_and_calls_without_rows_do_not_count(path: Path) -> None:
    call(6)
    call(0)
    with pytest.raises(ValueError, match="b_scale"):
        call(6, b_scale=torch.ones(1))

    assert counts(path) == {2: 1}


def test_calls_with_a_config_count_by_its_kernel(path: Path) -> None:
    """They say nothing about what the selector should have ready."""
    forced = config()
    for rows in (3, 3, 60):
        call(rows, config=forced)

    assert recorded(path).kernels == {forced.name("cpu"): 3}
    with pytest.raises(PlanError, match="nothing was recorded"):
        plans.from_recording(recorded(path))


def test_expected_rows_are_what_counts(path: Path) -> None:
    for _ in range(2):
        call(30, expected_m=5)
        grouped_gemm(**good("masked"), expected_m=2)

    assert sorted(tuple(each.rows.items()) for each in recorded(path).calls) == [
        ((2, 2),),
        ((5, 2),),
    ]


def test_operations_are_counted_apart(path: Path) -> None:
    x = torch.ones(6, 256, dtype=torch.bfloat16)
    for _ in range(3):
        activation_quantize(x, offs=torch.tensor([2, 4, 6], dtype=torch.int32))
    call(6)

    assert {each.problem.op: each.total for each in recorded(path).calls} == {
        "grouped_gemm": 1,
        "activation_quantize": 3,
    }


def test_a_neighbour_that_serves_counts_for_the_problem(path: Path) -> None:
    """What is wanted is what is recorded, before and after its kernel arrived."""
    near, wanted = config(), config(tile=Tile(m=64, n=16, k=128))
    problem = GroupedGemmProblem(layout="ragged", groups=3, m=6, n=N, k=K)
    family = Family(edges=(8,), groups=3, arch=Arch.CPU, problem=problem)
    session, key, like = current.get(), ("awaited", 6), torch.empty(6, 1)
    for awaited in (wanted, None):
        bare = AnyLaunch(function=lambda: None, tail=(), config=near, awaited=awaited)
        new_launch(session, key, {"a": like}, lambda bare=bare: (bare, family, 6)).function()
        session.memo[key][0].function()
        session._arrived(wanted)

    assert counts(path) == {2: 4}
    assert not recorded(path).kernels


def test_nothing_is_wrapped_where_nothing_is_recorded(kernels: list[Any]) -> None:
    """Warm calls are exactly as they were."""
    call(6)
    call(7)
    ((family,),) = current.get().families.values()

    assert {launch.function for (launch,) in current.get().memo.values()} == {
        launch.function for launch in family.launches.values()
    }
    assert family.tally is None


def test_a_session_records_for_itself(kernels: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    with Session(record=path):
        call(6)
        call(6)
    call(6)

    assert counts(path) == {2: 2}
    recorder.end(path)


def test_recording_that_begins_late_counts_what_is_new(kernels: list[Any], tmp_path: Path) -> None:
    """Also in a bucket that was seen before."""
    path = tmp_path / "late.json"
    call(6)
    with settings.scope(record=path):
        for rows in (9, 9, 8, 6):
            call(rows)  # of these, six rows were seen before
        call(400)
        call(401)
    recorder.end(path)

    assert sum(counts(path).values()) == 2, "the bucket of six rows is as it was"


def test_threads_lose_nothing(path: Path) -> None:
    a, a_scale = quantize.per_token_group(torch.ones(6, K))
    given = good() | {"a": a, "a_scale": a_scale}
    grouped_gemm(**given)

    def work() -> None:
        for _ in range(500):
            grouped_gemm(**given)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert counts(path) == {2: 2001}


def child() -> None:
    for _ in range(4):
        call(6)


def test_children_count_for_themselves(path: Path) -> None:
    """Forked ones begin at zero, and what ends without atexit has written too."""
    torch.set_num_threads(1)
    call(6)
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    idle = os.fork()
    if not idle:
        os._exit(0)
    os.waitpid(idle, 0)
    recorder.flush()

    assert process.exitcode == 0
    found = sorted(files.read(each).total for each in files.parts(path))
    assert found == [1, 4], "a child that called nothing has no file"
    assert counts(path) == {2: 5}


KILLED = """
import os, signal, sys, time
from pathlib import Path
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.plans import recording as files, recorder
recorder.EVERY_S = 0.05
problem = GroupedGemmProblem(layout=Layout.RAGGED, groups=2, m=2, n=128, k=128)
count = recorder.tally(Arch.CPU, problem).counting(lambda: None, 7)
count()
time.sleep(0.02)
count()
path = Path(os.environ["JITGEN_RECORD"])
until = time.monotonic() + 30
while time.monotonic() < until:
    time.sleep(0.05)
    if sum(files.read(each).total for each in files.parts(path)) == 2:
        break
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_what_it_wrote(tmp_path: Path) -> None:
    """A thread writes at intervals, so nothing waits for an end that never comes."""
    path = tmp_path / "calls.json"
    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        env={
            **os.environ,
            "JITGEN_RECORD": str(path),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        check=False,
        timeout=60,
    )

    assert done.returncode == -9
    (found,) = (files.read(each) for each in files.parts(path))
    assert found.calls[0].rows == {7: 2}
    assert not list(tmp_path.glob(".*")), "nothing half written is left"


def test_a_recording_that_cannot_be_written_is_a_warning(
    kernels: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "nowhere" / "calls.json"
    with Session(record=path):
        for rows in (3, 3, 60):
            call(rows)
        recorder.flush()
    recorder.end(path)

    assert [each.getMessage() for each in caplog.records] == [
        f"calls are counted, but JITGEN_RECORD={path} cannot be written: No such file or directory"
    ]


def test_different_calls_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_CELLS", 3)
    for rows in (3, 6, 9, 12, 15, 15):
        call(rows)

    assert counts(path) == {1: 1, 2: 1, 3: 1}
    assert recorded(path).others == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recording": 2}, "recording must be 1"),
        ({"calls": {}}, "calls must be a list"),
        ({"calls": [{"arch": "cpu"}]}, "a call must have"),
        ({"kernels": {"x": -1}}, "must be a whole number"),
        ({"others": True}, "must be a whole number"),
        ({"more": 1}, "must have began"),
        ({"rows_per_group": {"0": 1}}, "whole numbers from 1"),
        ({"rows_per_group": {"٣": 1}}, "whole numbers from 1"),
        ({"rows_per_group": {"1": 1.5}}, "must be a whole number"),
        ({"op": "nope"}, "nope"),
        ({"arch": "sm_1"}, "sm_1"),
        ({"problem": {"layout": "ragged"}}, "groups"),
        ({"problem": {"rows": 1}}, "rows"),
    ],
)
def test_bad_recordings_are_refused(
    path: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    """One line that names the file, and what is wrong with it."""
    call(6)
    recorder.flush()
    document = json.loads(files.parts(path)[0].read_text())
    inside = document["calls"][0]
    (inside if set(change) <= set(inside) else document).update(change)
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(document))

    with pytest.raises(PlanError, match=message) as caught:
        files.read(bad)
    assert str(caught.value).startswith(f"{bad} is no recording: ")
    assert "\n" not in str(caught.value)


def test_names_with_wildcards_are_taken_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "calls.1-ab.json").write_text("{}")
    (tmp_path / "c[a]lls.2-cd.json").write_text("{}")

    assert files.parts(tmp_path / "c[a]lls.json") == [tmp_path / "c[a]lls.2-cd.json"]
    assert files.parts(tmp_path / "c*.json") == []
