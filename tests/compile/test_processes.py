# SPDX-License-Identifier: Apache-2.0
"""Many processes, killed processes, and processes that must agree to the byte."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jitgen.cache import Store
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.runtime.loader import KernelLoader
from jitgen.runtime.spec import key
from tests.compile.test_loader import CONFIG, check

ROOT = Path(__file__).parents[2]

RACE = """
import os, sys
import torch, tvm_ffi
import jitgen
from jitgen.events import events
from tests.compile.test_loader import CONFIG, check
go, ready = os.pipe(), os.pipe()
children = []
for _ in range(int(sys.argv[1])):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(go[1])
            os.write(ready[1], b"r")
            os.read(go[0], 1)                     # returns when the parent closes its end
            check(jitgen.get_kernel(CONFIG, "cpu"))
            code = 10 if events.counts().get("compile") else 0
        finally:
            os._exit(code)
    children.append(child)
for _ in children:
    os.read(ready[0], 1)
os.close(go[1])
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
print(codes.count(0), codes.count(10))
"""


def run(code: str, root: Path, *arguments: str, **environment: str) -> str:
    """Run `code` in a fresh interpreter and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "JITGEN_CACHE_DIR": str(root), "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("processes", [8, pytest.param(64, marks=pytest.mark.nightly)])
def test_processes_compile_once(cache_root: Path, processes: int) -> None:
    """Processes that want the same missing kernel at once cost one compile and are all right."""
    assert run(RACE, cache_root, str(processes)) == f"{processes - 1} 1"
    assert len(list(cache_root.rglob("kernel.so"))) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("kills", [12, pytest.param(60, marks=pytest.mark.nightly)])
def test_killed_compiles_leave_nothing_bad(cache_root: Path, kills: int) -> None:
    """
    After kill -9 at random moments there is no bad entry and no stuck lock, and it still works.
    """
    from jitgen.compile import preload  # noqa: F401  # a child's time goes into its compile

    chance = random.Random(60)
    store = Store.open(cache_root)
    name = key(CONFIG, Arch.CPU)
    start = time.perf_counter()
    KernelLoader(Store.open(cache_root)).get(CONFIG, "cpu")
    longest = 2 * (time.perf_counter() - start)
    survived = 0
    for _ in range(kills):
        store.remove(name)
        child = os.fork()
        if child == 0:
            os.setsid()
            try:
                KernelLoader(Store.open(cache_root)).get(CONFIG, "cpu")
            finally:
                os._exit(0)
        time.sleep(chance.uniform(0, longest))
        os.killpg(child, signal.SIGKILL) if os.getpgid(child) == child else os.kill(child, 9)
        os.waitpid(child, 0)
        with store.lock(name, 0.5) as is_locked:
            assert is_locked, "the lock of a dead process is free"
        entry = store.read(name)
        survived += entry is not None
        longest *= 0.7 if entry else 1.4  # however busy the machine is by now
        assert entry is not None or not (cache_root / "v1" / "entries" / name[:2] / name).exists()

    assert 0 < survived < kills, "some kills came before the publish, and some after"
    check(KernelLoader(Store.open(cache_root)).get(CONFIG, "cpu"))
    assert not [result for result in store.verify() if not result.is_good]


COMPILE = """
import sys
from jitgen.cache import Store
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.runtime.tiers import Tiers, build
from jitgen.runtime.spec import spec_of
for name in sys.argv[1:]:
    entry, _ = build(Tiers(Store.open()), spec_of(*GroupedGemmConfig.parse(name)))
    files = entry.meta.files
    print(entry.key, files["kernel.so"]["sha256"], files["kernel.py"]["sha256"])
"""


def test_the_same_config_gives_the_same_bytes(tmp_path: Path) -> None:
    """Hash seeds, folders, time zones and torch do not show in an artifact, nor in device code."""
    names = [
        CONFIG.name("cpu"),
        GroupedGemmConfig(layout="ragged", tile=Tile(m=32, n=64, k=128)).name("cpu"),
        GroupedGemmConfig(layout="masked", tile=Tile(m=64, n=64, k=128)).name("sm_90a"),
    ]
    printed = set()
    for folder, seed, zone in [("a", "1", "UTC"), ("a longer/folder name", "77", "Asia/Tokyo")]:
        # the compiler imports torch where it can, for a second or two
        before = "sys.modules['torch'] = None" if seed == "1" else ""
        here = tmp_path / folder
        here.mkdir(parents=True)
        code = f"import os, sys; os.chdir({str(here)!r})\n{before}\n{COMPILE}"
        printed.add(run(code, here / "cache", *names, PYTHONHASHSEED=seed, TZ=zone))

    assert len(printed) == 1
    for name, line in zip(names, printed.pop().splitlines(), strict=True):
        assert line.startswith(key(*GroupedGemmConfig.parse(name)))
