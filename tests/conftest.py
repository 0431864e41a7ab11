# SPDX-License-Identifier: Apache-2.0
"""
Every test has a cache of its own, and no JITGEN_* variable of the user's.

Tests that are not about misses share the kernels of the session instead: see `kernel_root`.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from jitgen import events
from jitgen.cli.output import Output
from jitgen.runtime.session import current

hypothesis.settings.register_profile("jitgen", deadline=None)
hypothesis.settings.load_profile("jitgen")
"""How long an example takes says how busy the machine is, and nothing of jitgen."""

for _name in [name for name in os.environ if name.startswith("JITGEN_")]:
    if _name != "JITGEN_GPU_CACHE":
        del os.environ[_name]
_BETWEEN_TESTS = tempfile.TemporaryDirectory(prefix="jitgen-tests-", ignore_cleanup_errors=True)
os.environ["JITGEN_CACHE_DIR"] = _BETWEEN_TESTS.name
"""
What settings are outside of any test, and after a `monkeypatch.undo()` in one: never those of the
person who runs the tests, nor that person's cache.
"""

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")
"""
Operations of torch are small here: to wake a second thread for one takes a tenth of the tests' time
on the CPU, and threads that wait in a loop, as they do by default, took more than the operations.
Read when torch is loaded.
"""


gc.disable()
"""
Until all tests are collected: `pytest_collection_finish` turns it on again. Some 30,000 tests and
torch stay for good, and to look at them again and again took half of the time of collecting.
"""


_FIRST, _OF_MORE, _OF_MORE_THAT_COMPILE = 2, 6, 12
"""
Of the cases of one test a push runs the first two, and of those behind them every sixth; where
most cases compile, in `tests/compile`, every twelfth.
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Leave most cases of a test that has many to the night: all but every n-th of one that is marked
    `sampled(n)`, else all but the first two and every sixth or twelfth.
    """
    cases: Counter[str] = Counter()
    for item in items:
        if item.get_closest_marker("nightly") is not None:
            continue
        test = item.nodeid.partition("[")[0]
        place, sampled = cases[test], item.get_closest_marker("sampled")
        step = _OF_MORE_THAT_COMPILE if item.path.parent.name == "compile" else _OF_MORE
        if place % sampled.args[0] if sampled else place >= _FIRST and place % step:
            item.add_marker(pytest.mark.nightly)
        cases[test] += 1


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Collect garbage again, seldom, and never look at what was there before the first test."""
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


_full_collections = 0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """
    Never look again at what a full collection left, either. Caches of configs and of torch grow
    with the tests, and a full collection came to take two seconds. Not in the middle of a test,
    which may ask whether something of its own is collected.
    """
    global _full_collections
    if _full_collections != (now := gc.get_stats()[2]["collections"]):
        _full_collections = now
        gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """
    Let processes of pytest-xdist steal work from each other, unless `--dist` asks for another way.

    Each starts with tests that lie together, so that fixtures of modules are made once or twice,
    and none is left alone with a long file at the end, as it would be with whole files.
    """
    if config.getoption("dist") != "load":
        return None  # what was asked for
    from xdist.scheduler.worksteal import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


@pytest.fixture(autouse=True)
def cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The root of this test's own cache."""
    for name in [name for name in os.environ if name.startswith("JITGEN_")]:
        monkeypatch.delenv(name)
    root = tmp_path / "cache"
    monkeypatch.setenv("JITGEN_CACHE_DIR", str(root))
    monkeypatch.setattr(events, "_warned", set())
    current.get().reset()
    yield root
    current.get().reset()


@pytest.fixture(autouse=True)
def documents_as_described(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Whatever a command would print with --json is as `jitgen schema` says."""
    if find_spec("jsonschema") is None:
        yield
        return
    wrong: list[str] = []
    result = Output.result

    def checked(output: Output, command: str, document: Any, human: Any) -> None:
        from tests.schemas import mistakes

        if sys._getframe(1).f_globals["__name__"].startswith("jitgen."):
            wrong.extend(mistakes(command, document))
        result(output, command, document, human)

    monkeypatch.setattr(Output, "result", checked)
    yield
    assert wrong == []


@pytest.fixture(scope="session")
def kernel_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    The cache of the whole session, which all its processes use: what one test compiled, another
    finds, here or there. For tests that call kernels, and not for those of misses and the store.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # each process has a folder in that of the session
    root = base / "kernels"
    root.mkdir(mode=0o700, exist_ok=True)
    return root


@pytest.fixture
def shared_cache(
    cache_root: Path, kernel_root: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Compile a kernel once for all tests of a session, and load it anew for each."""
    monkeypatch.setenv("JITGEN_CACHE_DIR", str(kernel_root))
    current.get().reset()
    current.get().memo.clear()
    yield
    current.get().memo.clear()
