# SPDX-License-Identifier: Apache-2.0
"""The loader with real kernels: tiers, single flight, freezing, capture, damage, disk trouble."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import jitgen
from jitgen.cache import Store
from jitgen.compile import compile as compile_module
from jitgen.compile import compiler, toolchain
from jitgen.config.grouped_gemm import GroupedGemmConfig, Operands, Tile
from jitgen.errors import (
    CaptureMiss,
    CompileError,
    KernelMiss,
    RememberedFailure,
    UnsupportedConfig,
)
from jitgen.events import Event, events
from jitgen.runtime import loader, spec
from jitgen.runtime.loader import KernelLoader

F32 = Operands(a_dtype="f32", b_dtype="f32", out_dtype="f32", scale_granularity="tensor")
CONFIG = GroupedGemmConfig(layout="ragged", operands=F32, tile=Tile(m=8, n=16, k=128))
OTHER = GroupedGemmConfig(layout="ragged", operands=F32, tile=Tile(m=16, n=16, k=128))


def problem() -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Arguments of a small call with an unwritten output, and what the output must become."""
    a = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    b = torch.arange(40, dtype=torch.float32).reshape(2, 5, 4)
    ends = torch.tensor([1, 3], dtype=torch.int32)
    out = torch.full((3, 5), float("nan"))
    expected = torch.cat([a[:1] @ b[0].T, a[1:] @ b[1].T])
    return (a, b, torch.ones(1), torch.ones(2), ends, out), expected


def check(kernel: loader.Kernel) -> None:
    arguments, expected = problem()
    kernel(*arguments)

    assert torch.equal(arguments[-1], expected)


@pytest.fixture(scope="module")
def warm_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds the kernel; tests copy it."""
    root = tmp_path_factory.mktemp("warm") / "cache"
    KernelLoader(Store.open(root)).get(CONFIG, "cpu")
    return root


@pytest.fixture
def root(warm_root: Path, cache_root: Path) -> Path:
    """A copy of the warm cache, which is this test's cache."""
    shutil.copytree(warm_root, cache_root)
    return cache_root


class TestTiers:
    def test_compiled_then_memory_then_disk(self, cache_root: Path) -> None:
        """
        The first process compiles, the same loader serves from memory, another one from disk.
        """
        first = KernelLoader(Store.open(cache_root))
        kernel = first.get(CONFIG, "cpu")

        assert kernel.tier == "compiled"
        assert first.get(CONFIG, "cpu") is kernel
        second = KernelLoader(Store.open(cache_root)).get(CONFIG, "cpu")
        assert second.tier == "disk"
        check(kernel)
        check(second)

    def test_events_tell_the_story(self, root: Path) -> None:
        """A disk hit is a load and a hit, with nothing compiled."""
        heard: list[Event] = []
        stop = jitgen.on_event(heard.append)
        KernelLoader(Store.open(root)).get(CONFIG, "cpu")
        stop()

        assert [(event.kind, event.tier) for event in heard] == [("load", "disk"), ("hit", "disk")]

    def test_an_illegal_config_is_refused(self) -> None:
        """Nothing is compiled that the target cannot run."""
        with pytest.raises(UnsupportedConfig, match="E_TILE_M"):
            jitgen.get_kernel(
                GroupedGemmConfig(layout="ragged", operands=F32, tile=Tile(m=7, n=16, k=128)), "cpu"
            )

    def test_a_kernel_knows_itself(self, root: Path) -> None:
        """Name, key and source belong together."""
        kernel = KernelLoader(Store.open(root)).get(CONFIG, "cpu")

        assert kernel.name == CONFIG.name("cpu")
        assert kernel.name in "".join(kernel.source.splitlines()[:4])
        assert len(kernel.key) == 64


class TestSingleFlight:
    def test_threads_compile_once(self, cache_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Sixteen threads that want a missing kernel get the same one from one compile."""
        compiles = []
        real = compile_module.compile_kernel
        monkeypatch.setattr(
            compile_module,
            "compile_kernel",
            lambda *a, **k: (compiles.append(1), real(*a, **k))[1],
        )
        kernels, barrier = [], threading.Barrier(16)
        subject = KernelLoader(Store.open(cache_root))

        def want() -> None:
            barrier.wait()
            kernels.append(subject.get(CONFIG, "cpu"))

        threads = [threading.Thread(target=want) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(compiles) == 1
        assert len({id(kernel) for kernel in kernels}) == 1
        check(kernels[0])

    def test_a_fork_keeps_kernels_and_can_get_more(self, root: Path) -> None:
        """A child process uses what its parent loaded, and its locks are its own."""
        subject = KernelLoader(Store.open(root))
        kernel = subject.get(CONFIG, "cpu")
        locks = [subject._lock, events._lock, compiler._lock]
        for lock in locks:  # as if other threads were busy at the moment of the fork
            lock.acquire()
        child = os.fork()
        if child == 0:
            try:
                check(kernel)
                subject._kernels.clear()
                check(subject.get(CONFIG, "cpu"))
                check(subject.get(OTHER, "cpu"))
                os._exit(0)
            finally:
                os._exit(1)
        for lock in locks:
            lock.release()

        assert os.waitpid(child, 0)[1] == 0

    def test_a_lock_that_cannot_be_had_means_a_private_compile(
        self, cache_root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another process holds the key's lock for ever: this one compiles for itself."""
        store = Store.open(cache_root)
        monkeypatch.setenv("JITGEN_LOCK_TIMEOUT", "0.1")
        waits: list[float] = []
        stop = jitgen.on_event(lambda e: waits.append(e.seconds) if e.kind == "queue" else None)
        with Store.open(cache_root).lock(spec.key(CONFIG, jitgen.Arch.CPU), 1) as is_locked:
            assert is_locked
            kernel = KernelLoader(store).get(CONFIG, "cpu")
        stop()

        check(kernel)
        assert len(waits) == 1
        assert waits[0] >= 0.1


class TestNoCompiling:
    def test_on_miss_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A missing kernel raises, naming it and the command that makes it."""
        monkeypatch.setenv("JITGEN_ON_MISS", "error")

        with pytest.raises(
            KernelMiss, match=r"JITGEN_ON_MISS=error.*jitgen prewarm --config"
        ) as miss:
            jitgen.get_kernel(CONFIG, "cpu")
        assert miss.value.kernel == CONFIG.name("cpu")

    def test_freeze_ends_compiling_but_not_loading(self, root: Path) -> None:
        """What is on disk still loads; anything else raises until the loader thaws."""
        jitgen.freeze()
        check(jitgen.get_kernel(CONFIG, "cpu"))
        other = GroupedGemmConfig(layout="masked", operands=F32, tile=CONFIG.tile)

        with pytest.raises(KernelMiss, match="frozen"):
            jitgen.get_kernel(other, "cpu")
        jitgen.freeze("off")
        assert jitgen.get_kernel(other, "cpu").tier == "compiled"

    def test_while_a_graph_is_captured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A GPU kernel that is not loaded raises its own error during capture."""
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        config = GroupedGemmConfig(layout="ragged", tile=Tile(m=64, n=128, k=128))

        with pytest.raises(CaptureMiss, match="before the capture"):
            jitgen.get_kernel(config, "sm_90a")

    def test_a_failure_is_remembered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The second try of a config that did not compile raises at once, with the first reason."""
        tries = []

        def fail(source: object, *_: object, **__: object) -> None:
            tries.append(source)
            raise CompileError(CONFIG.name("cpu"), "the compiler said no", is_certain=True)

        monkeypatch.setattr(compile_module, "compile_kernel", fail)
        with pytest.raises(CompileError, match="said no"):
            jitgen.get_kernel(CONFIG, "cpu")
        with pytest.raises(RememberedFailure, match=r"said no.*jitgen cache rm"):
            jitgen.get_kernel(CONFIG, "cpu")

        assert len(tries) == 1

    def test_a_remembered_failure_expires(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """After its time a failure is tried again, and success ends it."""
        monkeypatch.setenv("JITGEN_FAILURE_TTL", "0")
        real = compile_module.compile_kernel

        def fail(*_: object, **__: object) -> None:
            raise CompileError(CONFIG.name("cpu"), "once", is_certain=True)

        monkeypatch.setattr(compile_module, "compile_kernel", fail)
        with pytest.raises(CompileError, match="once"):
            jitgen.get_kernel(CONFIG, "cpu")
        monkeypatch.setattr(compile_module, "compile_kernel", real)

        check(jitgen.get_kernel(CONFIG, "cpu"))


class TestDamage:
    def test_an_entry_that_does_not_load_is_compiled_again(self, root: Path) -> None:
        """
        Bytes with the right digest that are no library are moved aside, not loaded over and over.
        """
        store = Store.open(root)
        entry = store.read(spec.key(CONFIG, jitgen.Arch.CPU))
        assert entry is not None
        store.remove(entry.key)
        store.publish(entry.meta, {**entry.files, "kernel.so": b"no library"})
        kernel = KernelLoader(Store.open(root)).get(CONFIG, "cpu")

        assert kernel.tier == "compiled"
        check(kernel)

    def test_code_for_another_cpu_is_a_miss(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Host code that needs what this CPU lacks is never loaded, and the reason is told."""
        monkeypatch.setattr(toolchain, "runs_level", lambda _: False)
        heard: list[Event] = []
        stop = jitgen.on_event(heard.append)
        kernel = KernelLoader(Store.open(root)).get(CONFIG, "cpu")
        stop()

        assert kernel.tier == "compiled"
        assert any("this CPU lacks" in event.detail for event in heard)


class TestDiskTrouble:
    @pytest.mark.parametrize("mode", ["off", "ro"])
    def test_a_cache_that_is_not_written(
        self, cache_root: Path, monkeypatch: pytest.MonkeyPatch, mode: str
    ) -> None:
        """Without a cache the result is right and nothing is left in it."""
        monkeypatch.setenv("JITGEN_CACHE", mode)
        check(jitgen.get_kernel(CONFIG, "cpu"))

        assert not list(cache_root.rglob("kernel.so"))

    def test_the_root_is_removed_while_running(self, root: Path) -> None:
        """The next kernel is compiled, published into a new root, and right."""
        subject = KernelLoader(Store.open(root))
        check(subject.get(CONFIG, "cpu"))
        shutil.rmtree(root)
        check(subject.get(OTHER, "cpu"))
        assert subject.get(CONFIG, "cpu").tier == "disk", "what was loaded stays loaded"

    @pytest.mark.parametrize("trouble", ["full", "read-only"])
    def test_a_file_system_that_cannot_be_written(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, trouble: str
    ) -> None:
        """On a full or read-only file system the result is right, with one warning."""
        mount = tmp_path / "mount"
        mount.mkdir()
        options = "size=32k,mode=0700" if trouble == "full" else "size=1m,mode=0700"
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", mount], capture_output=True, check=False
        )
        if made.returncode:
            pytest.skip("mounting a tmpfs needs privileges")
        try:
            if trouble == "full":
                (mount / "ballast").write_bytes(bytes(16384))
            else:
                subprocess.run(["mount", "-o", "remount,ro", mount], check=True)
            with caplog.at_level(logging.WARNING):
                subject = KernelLoader(Store.open(mount / "cache"))
                check(subject.get(CONFIG, "cpu"))
                check(subject.get(OTHER, "cpu"))
        finally:
            subprocess.run(["umount", "-l", mount], check=False)

        warnings = [r for r in caplog.records if r.name.startswith("jitgen")]
        assert len(warnings) == 1, caplog.text


def test_a_process_that_used_a_kernel_exits(root: Path) -> None:
    """Loading and calling a kernel leaves no thread or library that keeps the process alive."""
    code = (
        "from tests.compile.test_loader import CONFIG, check; import jitgen;"
        "check(jitgen.get_kernel(CONFIG, 'cpu'))"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


class TestWithoutLinker:
    def test_the_object_serves_this_process_alone(
        self, cache_root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """
        Without a compiler driver a kernel works from its object file, and that is said once. The
        object used to be published, for good, under the key of the library: hosts without the
        compiler failed on it from then on.
        """
        monkeypatch.setenv("PATH", str(cache_root))
        monkeypatch.delenv("CC", raising=False)
        with caplog.at_level(logging.WARNING):
            kernel = KernelLoader(Store.open(cache_root)).get(CONFIG, "cpu")
            check(KernelLoader(Store.open(cache_root)).get(OTHER, "cpu"))

        assert kernel.entry.meta.library == "kernel.o"
        check(kernel)
        assert caplog.text.count("are not kept: they cannot be linked") == 1
        assert not list(cache_root.rglob("kernel.*"))
        monkeypatch.undo()
        monkeypatch.setenv("JITGEN_CACHE_DIR", str(cache_root))
        assert (
            KernelLoader(Store.open(cache_root)).get(CONFIG, "cpu").entry.meta.library
            == "kernel.so"
        )
