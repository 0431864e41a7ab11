# SPDX-License-Identifier: Apache-2.0
"""`jitgen.warm_up` under torchrun: 18 kernels, 18 compiles, also when a rank is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import jitgen
from jitgen import plans
from jitgen.cache import Store
from tests.cli.conftest import process

pytestmark = pytest.mark.service

PROGRAM = Path(__file__).with_name("rank_program.py")
NUM_KERNELS, NUM_RANKS = 18, 4


def names() -> list[str]:
    configs = plans.configs(plans.load("deepseek-v3"), "cpu")[:NUM_KERNELS]
    return [config.name("cpu") for config in configs]


def run(folder: Path, *, roots: int, doomed: int = -1) -> dict[int, dict[str, Any]]:
    """Run the ranks over empty caches, one or one each; return what each that lived reports."""
    (folder / "kernels.json").write_text(json.dumps(names()))
    start = folder / "start"
    start.write_text(
        "#!/bin/sh\n"
        f"export JITGEN_CACHE_DIR={folder}/root-$((RANK % {roots}))\n"
        f"exec {sys.executable} {PROGRAM} {folder} {doomed}\n"
    )
    start.chmod(0o755)
    command = [sys.executable, "-m", "torch.distributed.run", "--no-python"]
    command += [f"--nproc-per-node={NUM_RANKS}", "--standalone", str(start)]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = {
        rank: json.loads(path.read_text())
        for rank in range(NUM_RANKS)
        if (path := folder / f"rank-{rank}.json").exists()
    }
    assert sorted(found) == [rank for rank in range(NUM_RANKS) if rank != doomed], done.stderr
    return found


def states(reports: dict[int, dict[str, Any]]) -> list[str]:
    return [state for report in reports.values() for state in report["states"].values()]


@pytest.mark.parametrize("roots", [1, NUM_RANKS], ids=["one host", "hosts"])
def test_each_kernel_is_compiled_once(tmp_path: Path, roots: int) -> None:
    reports = run(tmp_path, roots=roots)
    manifest = reports[0]["manifest"]

    assert states(reports).count("compiled") == NUM_KERNELS
    assert states(reports).count("shared" if roots == 1 else "fetched") == 3 * NUM_KERNELS
    assert all(report["manifest"] == manifest for report in reports.values())
    assert (manifest["ok"], manifest["complete"]) == (True, True)
    assert manifest["compiles"] == len(manifest["kernels"]) == NUM_KERNELS
    assert {line["rank"] for line in manifest["kernels"]} == set(range(NUM_RANKS))
    stores = [Store.open(tmp_path / f"root-{n}", mode="ro") for n in range(roots)]
    for line in manifest["kernels"]:  # when it was compiled is in the record
        records = {str(entry and entry.meta) for s in stores for entry in [s.read(line["key"])]}
        assert len(records) == 1
        assert "None" not in records
    print({rank: round(report["wall_s"], 1) for rank, report in reports.items()})


@pytest.mark.parametrize("roots", [1, NUM_RANKS], ids=["one host", "hosts"])
def test_a_rank_is_killed(tmp_path: Path, roots: int) -> None:
    """What it had left, the others compile; what it had done stays done."""
    reports = run(tmp_path, roots=roots, doomed=2)
    manifest = reports[0]["manifest"]
    by_rank = [line["rank"] for line in manifest["kernels"]]

    assert not any(report["errors"] for report in reports.values())
    assert all(report["manifest"] == manifest for report in reports.values())
    assert (manifest["ok"], manifest["lost"]) == (True, [2])
    assert manifest["compiles"] == NUM_KERNELS
    assert by_rank.count(2) in (0, 1)
    print({rank: round(report["wall_s"], 1) for rank, report in reports.items()}, by_rank)


def test_no_rank_compiles_what_a_remote_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = f"file://{tmp_path}/bucket"
    (tmp_path / "bucket").mkdir()
    filled = Store(tmp_path / "filled", "rw")
    assert jitgen.prewarm(names(), arch="cpu", store=filled).ok
    monkeypatch.setenv("JITGEN_VERIFY", "off")
    monkeypatch.setenv("JITGEN_CACHE_DIR", str(tmp_path / "filled"))
    pushed = process("cache", "push", "--to", bucket)
    assert pushed.code == 0, pushed.err
    monkeypatch.setenv("JITGEN_REMOTE", bucket)
    reports = run(tmp_path, roots=NUM_RANKS)
    manifest = reports[0]["manifest"]

    assert set(states(reports)) == {"fetched"}
    assert (manifest["ok"], manifest["complete"], manifest["compiles"]) == (True, True, 0)
    print({rank: round(report["wall_s"], 1) for rank, report in reports.items()})
