# SPDX-License-Identifier: Apache-2.0
"""
A bundle on a machine without a compiler and without a network: it serves all of its plan, frozen.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

import jitgen
from jitgen import plans
from jitgen.bundle.export import export
from jitgen.cache import Store
from jitgen.config import Arch
from tests import runtime_host

pytestmark = pytest.mark.service

PLAN, ARCH = "deepseek-v3", "cpu"
PROGRAM = f"""
import json, os, socket, time, importlib.util

def refuse(*_): raise OSError("there is no network")
socket.socket.connect = socket.getaddrinfo = refuse
from jitgen.cli import main

start = time.perf_counter()
codes = [main.run(["bundle", "import", os.environ["BUNDLE"]])]
seconds = time.perf_counter() - start
codes.append(main.run(["bundle", "verify", os.environ["BUNDLE"]]))
import jitgen, jitgen.plans

jitgen.freeze()
tiers = {{}}
for problem in jitgen.plans.load("{PLAN}").problems("{ARCH}"):
    kernel = jitgen.get_kernel(jitgen.select(problem, "{ARCH}").config, "{ARCH}")
    tiers[kernel.name] = kernel.tier
has = [name for name in ("cutlass", "jinja2") if importlib.util.find_spec(name)]
print(json.dumps({{"codes": codes, "tiers": tiers, "has": has, "seconds": seconds}}))
"""


def test_it_serves_every_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "builder", "rw")
    assert jitgen.prewarm(PLAN, arch=ARCH, jobs=2, store=store).ok
    made = export([plans.load(PLAN)], [Arch.parse(ARCH)], tmp_path / "x.tar", store)
    python = runtime_host.make(tmp_path / "host")
    (site,) = (tmp_path / "host").glob("lib/python*/site-packages")
    found = importlib.util.find_spec("zstandard")
    assert found is not None
    assert found.origin is not None
    (site / "zstandard").symlink_to(Path(found.origin).parent)
    start = "import os; os.environ.update(JITGEN_VERIFY='off', BUNDLE={!r})\n".format(
        str(tmp_path / "x.tar")
    )
    done = runtime_host.run(python, "-c", start + PROGRAM, cache=tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])

    assert said["codes"] == [0, 0], done.stderr
    assert said["has"] == []
    assert len(said["tiers"]) == len(made.entries)
    assert set(said["tiers"].values()) == {"disk"}
    print(f"{len(said['tiers'])} kernels, import {said['seconds']:.2f} s, {made.layer_bytes} bytes")
