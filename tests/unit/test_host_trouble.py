# SPDX-License-Identifier: Apache-2.0
"""Trouble of this host or this program, which says nothing about an entry or a kernel."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from jitgen.cache import Entry, Store
from jitgen.cache.serving import key_lock
from jitgen.config import Arch
from jitgen.errors import ArtifactError, JitgenError, ResourceError
from jitgen.events import Event, EventBus, EventKind
from jitgen.plans.task import compile_task
from jitgen.runtime import kernel, native
from jitgen.runtime.loader import KernelLoader
from jitgen.runtime.session import get_kernel
from jitgen.settings import settings
from jitgen.support import forks
from jitgen.support.boundary import boundary, is_from_handler
from jitgen.targets import devices as target
from tests.chaos.kernels import CONFIGS, fill, prebuilt

LIMIT_S = 20
WAYS_TO_NOWHERE = (">/dev/full", ">&-", ">&- 2>&-")


class TestLoading:
    """A verified library that cannot be mapped here used to be quarantined for everybody."""

    @pytest.fixture
    def filled(self, cache_root: Path) -> Store:
        prebuilt()
        return fill(cache_root, 1)

    @pytest.mark.parametrize(
        "problem",
        [
            OSError(errno.EFBIG, "File too large"),
            OSError(errno.EMFILE, "Too many open files"),
            RuntimeError("failed to map segment from shared object"),
        ],
    )
    def test_a_limit_of_this_process(
        self, filled: Store, monkeypatch: pytest.MonkeyPatch, problem: Exception
    ) -> None:
        def refuse(*_: object) -> None:
            raise problem

        with monkeypatch.context() as patch:
            patch.setattr(kernel, "_loaded", {})  # another test may have loaded the same
            patch.setattr(native, "load", refuse)
            with pytest.raises(ResourceError, match="cannot be loaded here"):
                KernelLoader(filled).get(CONFIGS[0], Arch.CPU)

        assert KernelLoader(filled).get(CONFIGS[0], Arch.CPU).tier == "disk"

    def test_what_is_no_library_is_the_entrys_fault(self, filled: Store) -> None:
        (info,) = filled.entries()
        entry = filled.read(info.key)
        assert entry is not None
        entry = Entry.of(entry.meta, {**entry.files, "kernel.so": b""})

        with pytest.raises(ArtifactError, match="is cut off"):
            kernel.load(entry)


class TestProgram:
    def test_settings_of_a_program_reach_its_workers(self, tmp_path: Path) -> None:
        """A worker refused the folder that the program trusted, and pruned to another limit."""
        with settings.scope(cache_size="0", trust_shared=[tmp_path], base=[tmp_path / "base"]):
            task = compile_task(Store.open(), CONFIGS[0], Arch.CPU)
        carried = json.loads(json.dumps(task))["settings"]
        with settings.scope(**carried):
            assert settings.cache_size == 0
            assert settings.trust_shared == (tmp_path,)
            assert settings.base == (tmp_path / "base",)

    def test_an_alarm_of_the_program(self) -> None:
        """A time limit by SIGALRM became an InternalError, or was lost in a second try."""

        class Late(Exception):
            pass

        def late(*_: object) -> None:
            raise Late("that took too long")

        before = signal.signal(signal.SIGALRM, late)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Late) as caught, boundary("compiling"):
                time.sleep(LIMIT_S)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert not is_from_handler(caught.value), "the handler is no longer installed"

    @pytest.mark.parametrize("error", [GeneratorExit, SystemExit, ValueError])
    def test_whatever_a_listener_raises(self, error: type[BaseException]) -> None:
        """asyncio.CancelledError is no Exception either, and came out of get_kernel."""
        bus, told = EventBus(), []

        def broken(_: Event) -> None:
            raise error

        bus.listen(broken)
        bus.listen(told.append)
        bus.emit(Event(kind=EventKind.HIT))

        assert len(told) == 1

    def test_what_torch_says_of_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A CUDA error came raw out of get_kernel, before any boundary."""

        def fail() -> bool:
            raise RuntimeError("CUDA error: out of memory")

        monkeypatch.setattr(target, "has_gpu", fail)

        with pytest.raises(JitgenError, match="CUDA error"):
            get_kernel(CONFIGS[0])

    def test_no_memory_for_a_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object, **__: object) -> None:
            raise MemoryError

        monkeypatch.setattr(Store, "open", fail)

        with pytest.raises(ResourceError, match="opening the kernel cache"):
            get_kernel(CONFIGS[0], Arch.CPU)


class TestForks:
    @contextmanager
    def thread(self, work: Callable[[], None]) -> Iterator[None]:
        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            thread.join(LIMIT_S)

    def test_a_thread_that_waits_for_a_lock(self, tmp_path: Path) -> None:
        """A fork waited a minute for it, and its child refused even what was on the disk."""
        path, begun = tmp_path / "key.lock", threading.Event()

        def wait() -> None:
            with forks.busy():
                begun.set()
                with key_lock(path, 4.0):
                    pass

        with key_lock(path, 1.0) as is_held, self.thread(wait):
            assert is_held
            begun.wait(LIMIT_S)
            time.sleep(0.1)
            start = time.monotonic()
            pid = os.fork()
            if pid == 0:
                os._exit(int(forks._gate.is_torn))
            seconds = time.monotonic() - start
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert seconds < 3

    def test_one_time_limit_for_all_hooks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each package whose hooks are waited for before added a minute."""
        for name in ("logging", "filelock", "cutlass"):
            forks.wait_before(name)
        monkeypatch.setattr(forks, "PATIENCE_S", 1.0)
        begun, end = threading.Event(), threading.Event()

        def work() -> None:
            with forks.busy():
                begun.set()
                end.wait(LIMIT_S)

        with self.thread(work):
            begun.wait(LIMIT_S)
            start = time.monotonic()
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            seconds = time.monotonic() - start
            end.set()
        os.waitpid(pid, 0)
        assert 0.9 < seconds < 2.7


class TestPlaces:
    @pytest.mark.parametrize("kind", ["file", "fifo"])
    @pytest.mark.parametrize("below", ["", "v1"])
    def test_a_root_that_is_no_folder(self, cache_root: Path, kind: str, below: str) -> None:
        """
        It is trouble with the disk, not with other users: every call used to fail. What is the
        cache's own gives way; what the user named may be a file that is needed.
        """
        path = cache_root / below
        path.parent.mkdir(exist_ok=True, mode=0o700)
        path.write_bytes(b"") if kind == "file" else os.mkfifo(path)
        store = Store.open()

        assert store.read("ab" * 32) is None
        assert store.stats().entries == 0
        with store.lock("ab" * 32, 0.1) as is_locked:
            assert is_locked == (below == "v1")
        assert path.is_dir() == (below == "v1")

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize(
        ("command", "how"),
        [
            *product(["cache ls", "cache ls --json", "cache rm xx"], WAYS_TO_NOWHERE),
            ("doctor", WAYS_TO_NOWHERE[0]),  # it imports torch
            *(
                pytest.param("doctor", how, marks=pytest.mark.nightly)
                for how in WAYS_TO_NOWHERE[1:]
            ),
        ],
    )
    def test_output_that_goes_nowhere(self, command: str, how: str) -> None:
        """A closed or full standard output was a traceback, from the report of the error, too."""
        done = subprocess.run(
            ["sh", "-c", f"{sys.executable} -m jitgen {command} {how}"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
        assert done.returncode in (0, 1, 2)
