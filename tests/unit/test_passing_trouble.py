# SPDX-License-Identifier: Apache-2.0
"""
What this process is short of for a moment is over when the moment is: nothing that it saw then is
remembered, of entries, of the host, or of what was measured.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from jitgen.cache import Entry, Meta, Store
from jitgen.cache.layers import WHITEOUTS
from jitgen.compile.compiler import refusals
from jitgen.config import Arch
from jitgen.errors import CompileError, ResourceError, ToolchainError
from jitgen.events import Event, EventBus, EventKind
from jitgen.ops.launch import AnyLaunch, Family, new_launch
from jitgen.runtime import kernel, native
from jitgen.runtime.loader import KernelLoader
from jitgen.runtime.session import current
from jitgen.selection import measurements as tuned
from jitgen.selection import packed
from jitgen.selection.choice import Chooser
from jitgen.support.boundary import boundary
from jitgen.support.failing import is_of_this_process, is_passing
from tests.chaos.kernels import CONFIGS, fill, prebuilt
from tests.unit.store_fakes import fake_meta, folder_of, publish
from tests.unit.tuned_fakes import GPU, NAMES, PROBLEM, empty_tables, record, ship

EMFILE = OSError(errno.EMFILE, "Too many open files")
EIO = OSError(errno.EIO, "Input/output error")


def refuse(*_: object, **__: object) -> NoReturn:
    raise EMFILE


class TestWords:
    """Compilers, loaders and drivers know no errno, and say it in the system's words."""

    @pytest.mark.parametrize(
        "error",
        [
            EMFILE,
            EIO,
            MemoryError(),
            RecursionError("maximum recursion depth exceeded"),
            ResourceError("no room"),
            ImportError("libMLIR.so: cannot open shared object file: Too many open files"),
            OSError("libcuda.so.1: cannot open shared object file: Too many open files"),
            RuntimeError("can't start new thread"),
            RuntimeError("LLVM ERROR: out of memory"),
            RuntimeError("cannot write /tmp/x.o: No space left on device"),
            SystemError("std::bad_alloc"),
        ],
        ids=str,
    )
    def test_of_what_ran_out(self, error: Exception) -> None:
        assert is_passing(error)
        with pytest.raises(ToolchainError) as caught:
            raise ToolchainError("the compiler cannot be imported") from error
        assert is_passing(caught.value), "what it came of counts"

    @pytest.mark.parametrize(
        "error",
        [
            ImportError("No module named 'cutlass'"),
            OSError("libcuda.so.1: cannot open shared object file: No such file or directory"),
            FileNotFoundError(errno.ENOENT, "No such file or directory"),
            ToolchainError("nvidia-cutlass-dsl is not installed"),
            CompileError("name", "ptxas: not enough registers"),
            ValueError("No space left on device"),
        ],
        ids=str,
    )
    def test_of_what_did_not(self, error: Exception) -> None:
        assert not is_passing(error)

    def test_a_disk_that_does_not_answer_is_not_this_processs_fault(self) -> None:
        assert is_of_this_process(EMFILE)
        assert not is_of_this_process(EIO)

    def test_a_compiler_that_has_no_thread_refuses_nothing(self) -> None:
        """It used to be remembered for a day, by everybody who shares the cache."""
        with pytest.raises(ResourceError, match="compiling k: can't start"), refusals("k", ""):
            raise RuntimeError("can't start new thread")
        with pytest.raises(CompileError, match="no such register"), refusals("k", ""):
            raise RuntimeError("no such register")

    def test_it_leaves_jitgen_as_what_it_is(self) -> None:
        with pytest.raises(ResourceError), boundary("loading"):
            raise ImportError("x.so: cannot open shared object file: Too many open files")


class TestEntries:
    """
    An entry that the disk cannot read for a moment used to be set aside for everybody, and one of a
    base hidden for good.
    """

    @pytest.fixture
    def failing(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], pytest.MonkeyPatch]:
        """What has every read of a file fail from then on."""

        def fail() -> pytest.MonkeyPatch:
            def read(*_: object) -> NoReturn:
                raise EIO

            monkeypatch.setattr("jitgen.cache.folder.os.read", read)
            return monkeypatch

        return fail

    def test_stays_in_its_place(
        self, cache_root: Path, failing: Callable[[], pytest.MonkeyPatch]
    ) -> None:
        entry = publish(Store.open(), 1)
        patch = failing()
        assert Store.open().read(entry.key) is None
        patch.undo()

        assert not list((cache_root / "v1" / "quarantine").iterdir())
        assert Store(cache_root, "rw").read(entry.key) is not None

    def test_of_a_base_is_not_hidden(
        self, tmp_path: Path, failing: Callable[[], pytest.MonkeyPatch]
    ) -> None:
        entry = publish(Store(tmp_path / "image", "rw"), 1)
        store = Store(tmp_path / "own", "rw", [tmp_path / "image"])
        patch = failing()
        assert store.read(entry.key) is None
        patch.undo()

        assert not (tmp_path / "own" / "v1" / WHITEOUTS).exists()
        assert store.read(entry.key) is not None

    def test_gives_way_to_the_same_entry(
        self, cache_root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A disk that never reads it must not have every process compile it."""
        entry = publish(Store.open(), 1)
        inode = folder_of(entry).stat().st_ino

        def bad_sector(*_: object) -> NoReturn:
            raise EIO

        with monkeypatch.context() as patch:
            patch.setattr("jitgen.cache.publishing.read_entry", bad_sector)
            assert not publish(Store.open(), 1).why_private

        assert folder_of(entry).stat().st_ino != inode
        assert Store.open().read(entry.key) is not None

    def test_a_tvm_ffi_that_cannot_load_damages_nothing(
        self, cache_root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A function that it lacks is a ValueError, as damage is: all entries were set aside."""
        import tvm_ffi

        prebuilt()
        store = fill(cache_root, 1)

        def lacks(name: str) -> NoReturn:
            raise ValueError(f"Cannot find global function {name}")

        monkeypatch.setattr(tvm_ffi, "get_global_func", lacks)
        monkeypatch.setattr(kernel, "_loaded", {})  # another test may have loaded the same
        with pytest.raises(ToolchainError, match="cannot load kernels"):
            KernelLoader(store).get(CONFIGS[0], Arch.CPU)

        assert not store.quarantined()
        assert native._LOADER.startswith("ffi.")


class TestIndex:
    def test_a_deep_stack_is_no_damage(self, cache_root: Path) -> None:
        """It used to cost the index, and the failures that it remembers."""
        index = Store.open().index
        index.remember_failure(fake_meta(1).key, "name", "reason", 60)

        def deep(_: object) -> NoReturn:
            raise RecursionError("maximum recursion depth exceeded")

        assert index._run(deep, "nothing") == "nothing"  # type: ignore[attr-defined]
        index._database._rests_until = 0.0  # type: ignore[attr-defined]
        assert index.failure(fake_meta(1).key) is not None
        assert not list((cache_root / "v1" / "quarantine").iterdir())


class TestListeners:
    def test_one_that_runs_out_of_memory_hears_the_next_event(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Metrics used to stop for good after one MemoryError."""
        bus, heard = EventBus(), []

        def listen(event: Event) -> None:
            heard.append(event.kind)
            if len(heard) == 1:
                raise MemoryError

        bus.listen(listen)
        with caplog.at_level(logging.WARNING):
            bus.emit(Event(kind=EventKind.HIT))
            bus.emit(Event(kind=EventKind.MISS))

        assert heard == ["hit", "miss"]
        assert "missed an event" in caplog.text

    def test_one_that_never_has_enough_is_dropped(self, caplog: pytest.LogCaptureFixture) -> None:
        bus, calls = EventBus(), []

        def recurse(event: Event) -> None:
            calls.append(event)
            raise RecursionError("maximum recursion depth exceeded")

        bus.listen(recurse)
        for _ in range(9):
            bus.emit(Event(kind=EventKind.HIT))

        assert len(calls) == 3
        assert caplog.text.count("was dropped") == 1


class TestHost:
    """What a process finds out about its host once, and keeps."""

    def test_without_descriptors(self) -> None:
        """
        A process that first looked while it had none left took its CPU for the oldest there is, and
        the compiler for not installed, as long as it lived: no entry was found or loaded.
        """
        code = """if True:
            import os, resource
            from jitgen.compile import toolchain

            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
            held = []
            try:
                while True:
                    held.append(os.open("/", os.O_RDONLY))
            except OSError:
                pass
            asked = (toolchain.cpu_level, toolchain.flavour, toolchain.versions)
            for ask in asked:
                try:
                    ask()
                except Exception as error:
                    os.write(1, f"{type(error).__name__} ".encode())
            for descriptor in held:
                os.close(descriptor)
            print(*(ask() for ask in asked), sep="|")
        """
        ask = [sys.executable, "-c", code]
        done = subprocess.run(ask, capture_output=True, text=True, check=True)
        from jitgen.compile import toolchain

        found = toolchain.cpu_level(), toolchain.flavour(), toolchain.versions()
        assert done.stdout == "ResourceError " * 3 + "|".join(map(str, found)) + "\n"

    def test_a_driver_that_cannot_be_opened_now(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It used to count as none, so that another code generator stood in every key."""
        import ctypes

        from jitgen.compile import toolchain

        def refuse_library(name: str, *_: object, **__: object) -> NoReturn:
            raise OSError(f"{name}: cannot open shared object file: Too many open files")

        monkeypatch.setattr(ctypes, "CDLL", refuse_library)
        with pytest.raises(ResourceError, match="Too many open files"):
            toolchain.driver_cuda()


class TestMeasurements:
    """
    A choice that was made while measurements could not be read was remembered for good: on a frozen
    machine it asked for a kernel that was not compiled.
    """

    @pytest.fixture(autouse=True)
    def tables(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        """An empty folder of shipped tables, and no GPU."""
        yield from empty_tables(tmp_path, monkeypatch)

    @pytest.fixture
    def store(self, cache_root: Path) -> Store:
        store = Store.open()
        tuned.record(store, GPU, record())
        return store

    def test_a_choice_without_them_is_not_kept(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        subject = Chooser(lambda: store)
        with monkeypatch.context() as patch:
            patch.setattr("jitgen.cache.folder.os.read", refuse)
            assert subject.select(PROBLEM, GPU).source == "model"
            assert subject.doubts == 1

        assert subject.select(PROBLEM, GPU).source == "tuned"
        assert subject.doubts == 1

    def test_a_disk_that_never_reads_does_not_slow_every_call(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        subject = Chooser(lambda: store)
        monkeypatch.setattr("jitgen.cache.folder.os.read", refuse)
        subject.doubts = 1000
        subject.select(PROBLEM, GPU)

        assert len(subject._chosen) == 1

    def test_a_shipped_table_is_read_again(
        self, tables: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ship(tables, record())
        with monkeypatch.context() as patch:
            patch.setattr(packed, "read", refuse)
            assert tuned.shipped(GPU, "NVIDIA H200") == {}

        assert list(tuned.shipped(GPU, "NVIDIA H200")) == [PROBLEM.slug]

    def test_a_launch_of_such_a_choice_is_not_kept(
        self, cache_root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The next call of the same shapes chooses again."""
        torch = pytest.importorskip("torch")
        session = current.get()

        def prepare(doubts: int) -> tuple[Any, Family, int]:
            session._chooser.doubts += doubts
            launch = AnyLaunch(function=print, tail=(), config=NAMES[0], awaited=None)  # type: ignore[arg-type]
            return launch, Family(), 0

        tensors = {"a": torch.empty(1)}
        for doubts in (1, 0):
            new_launch(session, ("key",), tensors, lambda doubts=doubts: prepare(doubts))
            assert (("key",) in session.memo) is (doubts == 0)


class TestGate:
    """What a service remembers for the whole fleet: only what the emulator found."""

    @pytest.fixture
    def refusal(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
        """What makes the gate's process end in some way, and returns what the gate says."""
        from jitgen.server import validator
        from jitgen.server.confine import Confinement
        from jitgen.server.settings import Signing

        monkeypatch.setattr("os.fsync", lambda _: None)
        monkeypatch.setattr(validator, "confined", lambda command, _: command)
        subject = validator.Validator(
            Signing(key=Path("/key"), gate="emulator"), Confinement(is_on=False, hidden=())
        )
        meta: Meta = fake_meta(1, arch="sm_90a")
        entry = Entry.of(meta, {"kernel.py": b"#", "kernel.so": b"\x7fELF"})

        def end(run: Callable[..., Any]) -> str:
            monkeypatch.setattr(validator.subprocess, "run", run)
            return asyncio.run(subject.refusal(entry))

        return end

    @pytest.mark.parametrize(
        "run",
        [
            refuse,
            lambda *_, **__: SimpleNamespace(returncode=-9, stdout="", stderr=""),
            lambda *_, **__: SimpleNamespace(returncode=1, stdout="", stderr="std::bad_alloc"),
        ],
        ids=["no process", "killed", "no memory"],
    )
    def test_what_ran_out_is_no_refusal(
        self, refusal: Callable[..., str], run: Callable[..., Any]
    ) -> None:
        """It used to be one for a day."""
        with pytest.raises(ResourceError, match="cannot be verified"):
            refusal(run)

    def test_what_is_wrong_is(self, refusal: Callable[..., str]) -> None:
        text = '{"kernels": [{"error": "a race at line 7"}]}'
        wrong = SimpleNamespace(returncode=1, stdout=text, stderr="")

        assert refusal(lambda *_, **__: wrong) == "a race at line 7"

    @pytest.mark.parametrize(
        "printed",
        [
            {"stdout": r'{"kernels": [{"error": "a race\n  at line 7"}]}', "stderr": ""},
            {"stdout": "", "stderr": "a race\n at line 7\n"},
        ],
    )
    def test_its_reason_is_one_line(
        self, refusal: Callable[..., str], printed: dict[str, str]
    ) -> None:
        wrong = SimpleNamespace(returncode=1, **printed)

        assert refusal(lambda *_, **__: wrong) == "a race at line 7"
