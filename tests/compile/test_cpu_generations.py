# SPDX-License-Identifier: Apache-2.0
"""Kernels compiled on one CPU generation and asked for on an older one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import jitgen
from jitgen.cache import Store
from jitgen.cli import main
from jitgen.compile import toolchain
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.events import Event
from jitgen.runtime import spec
from jitgen.runtime.loader import KernelLoader
from tests.compile.test_loader import CONFIG, check
from tests.unit.test_toolchain import FLAGS, LEVELS, cpuinfo

HOPPER = GroupedGemmConfig(layout="ragged", tile=Tile(m=64, n=64, k=128))
HERE = toolchain.cpu_level()
OLDER = LEVELS[LEVELS.index(HERE) - 1] if HERE in LEVELS[1:] else ""

pytestmark = pytest.mark.skipif(not OLDER, reason="no CPU is older than this one")


def forget() -> None:
    toolchain.cpu_level.cache_clear()
    spec.key.cache_clear()


@pytest.fixture
def become(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """What reduces the flags of this host to those of a level, as an older CPU tells them."""

    def become(level: str) -> None:
        (tmp_path / "cpuinfo").write_text(cpuinfo(*FLAGS[level]), encoding="utf-8")
        monkeypatch.setattr(toolchain, "_CPUINFO", tmp_path / "cpuinfo")
        forget()

    yield become
    monkeypatch.undo()
    forget()


@pytest.fixture
def heard() -> Iterator[list[Event]]:
    events: list[Event] = []
    stop = jitgen.on_event(events.append)
    yield events
    stop()


@pytest.mark.parametrize("level", LEVELS[:-1])
def test_a_gpu_kernel_loads(
    become: Callable[[str], None], gpu_root: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    """
    An image that was built on one generation used to be a cold cache on every older one: the host
    part was compiled for all that the building CPU has, and it only passes arguments on.
    """
    become(level)
    monkeypatch.setenv("JITGEN_ON_MISS", "error")
    kernel = KernelLoader(Store.open(gpu_root)).get(HOPPER, "sm_90a")

    assert kernel.tier == "disk"
    assert kernel.entry.meta.host_isa == ("x86-64",)


@pytest.fixture(scope="module")
def gpu_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with a GPU kernel that was compiled on this host as it is."""
    root = tmp_path_factory.mktemp("hopper") / "cache"
    KernelLoader(Store.open(root)).get(HOPPER, "sm_90a")
    return root


def test_a_cpu_kernel_is_a_clear_miss(
    become: Callable[[str], None],
    cache_root: Path,
    heard: list[Event],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    Its code may use what an older CPU lacks. There it is compiled anew, and both generations keep
    their own.
    """
    newer = KernelLoader(Store.open()).get(CONFIG, "cpu")
    host_here = toolchain.host(Arch.CPU)
    become(OLDER)
    assert main.run(["cache", "explain", CONFIG.name(Arch.CPU)]) == 0
    explained = capsys.readouterr()
    heard.clear()
    older = KernelLoader(Store.open()).get(CONFIG, "cpu")

    assert older.tier == "compiled"
    assert [event.detail for event in heard if event.kind == "miss"] == ["not in the cache"]
    assert older.key != newer.key
    assert (newer.entry.meta.host_isa, older.entry.meta.host_isa) == ((HERE,), (OLDER,))
    (line,) = (line for line in explained.out.splitlines() if line.startswith("host"))
    assert line.split()[1:] == [older.entry.meta.key_document["host"], host_here]
    assert "each level has kernels of its own" in explained.err
    check(older)  # what an older CPU runs, this one does as well

    become(HERE)
    again = KernelLoader(Store.open()).get(CONFIG, "cpu")
    assert (again.tier, again.key) == ("disk", newer.key)
    check(again)
