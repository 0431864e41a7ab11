# SPDX-License-Identifier: Apache-2.0
"""`jitgen prewarm --dask` on a LocalCluster of real processes, one compile of which crashes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jitgen.cache import Store
from jitgen.config import Arch
from jitgen.fleet import cluster
from jitgen.plans.prewarm import PrewarmReport
from tests.cli.conftest import process
from tests.unit.fleet_fakes import configs

pytestmark = pytest.mark.service

CPU = Arch.parse("cpu")
DOOMED, NUM_WORKERS = configs(4)[1].name("cpu"), 2
PLANTED = """
import os
from jitgen.config import Config
from jitgen.plans.task import build_task

def build(task):
    name = Config.from_json(task["config"]).name("cpu")
    with open({log!r}, "a") as stream:
        stream.write(name + chr(10))
    if name == {doomed!r}:
        os.abort()
    return build_task(task)
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the workers' compile processes began, one name a line; one of them aborts."""
    found = tmp_path / "log"
    found.touch()
    planted = tmp_path / "planted"
    planted.mkdir()
    text = PLANTED.format(log=str(found), doomed=DOOMED)
    (planted / "planted_tasks.py").write_text(text)
    monkeypatch.syspath_prepend(planted)
    monkeypatch.setenv("JITGEN_CACHE_DIR", str(tmp_path / "workers"))
    return found


def plant() -> int:
    """Let this Dask worker's compile processes do what was planted; returns its number."""
    import os

    from jitgen.fleet import cluster

    cluster.TASK = "planted_tasks:build"
    return os.getpid()


@pytest.fixture
def dask(log: Path) -> Iterator[tuple[str, Any]]:
    """A cluster's address, and a client that planted the crash."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=NUM_WORKERS, threads_per_worker=1, processes=True, dashboard_address=None
        ) as local,
        distributed.Client(local, set_as_default=False) as client,
    ):
        yield local.scheduler_address, client


def prewarm(address: str, root: Path, number: int) -> PrewarmReport:
    store = Store.open(root, mode="rw")
    return cluster.prewarm(configs(number), arch=CPU, store=store, address=address)


@pytest.mark.filterwarnings("ignore")  # of threads and sockets of the cluster's
def test_a_crash_costs_its_kernel_only(dask: tuple[str, Any], log: Path, tmp_path: Path) -> None:
    address, client = dask
    workers = client.run(plant)
    report = prewarm(address, tmp_path / "mine", 4)
    again = prewarm(address, tmp_path / "mine", 4)

    states = {row.name: str(row.state) for row in report.rows}
    assert states.pop(DOOMED) == "failed"
    assert set(states.values()) == {"compiled"}
    (failed,) = [row for row in report.rows if row.error]
    assert failed.error.startswith("ResourceError: the process was killed by SIGABRT")
    assert report.jobs == NUM_WORKERS
    began = Counter(log.read_text().split())
    assert {began[name] for name in states} == {1}
    assert began[DOOMED] == 2 * (1 + cluster.RETRIES), "retried, then asked for again"
    assert again.count("cached") == 3
    assert client.run(plant) == workers, "the same worker processes are alive"


@pytest.mark.filterwarnings("ignore")
def test_two_clients_have_one_compile(dask: tuple[str, Any], log: Path, tmp_path: Path) -> None:
    address, client = dask
    client.run(plant)
    reports: list[PrewarmReport] = []
    threads = [
        threading.Thread(target=lambda root=root: reports.append(prewarm(address, root, 1)))
        for root in (tmp_path / "one", tmp_path / "two")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [report.ok for report in reports] == [True, True]
    assert len(log.read_text().split()) == 1
    for root in ("one", "two"):
        assert len(list(Store.open(tmp_path / root, mode="ro").entries())) == 1


@pytest.mark.filterwarnings("ignore")
def test_the_command(dask: tuple[str, Any], tmp_path: Path) -> None:
    address, _ = dask
    names = [f"--config={config.name('cpu')}" for config in configs(2)]
    done = process("prewarm", *names, "--dask", address, "--json")

    assert done.code == 0, done.err
    assert done.document["counts"]["compiled"] == 2
    assert "[2/2]" in done.err
