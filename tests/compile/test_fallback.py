# SPDX-License-Identifier: Apache-2.0
"""JITGEN_ON_MISS=fallback with real kernels and workers: a neighbour at once, the choice later."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import jitgen
from jitgen.cache import Store
from jitgen.errors import KernelMiss
from jitgen.events import Event, EventKind, events
from jitgen.runtime.loader import KernelLoader
from jitgen.runtime.session import current
from tests.compile.fallback_calls import (
    FEW,
    MANY,
    NEIGHBOUR,
    WANTED,
    K,
    N,
    call,
    children,
    ranked,
    serving,
    settle,
    tensors,
)


class TestSwitch:
    def test_a_neighbour_serves_until_the_choice_is_compiled(
        self, fallback_root: Path, heard: list[Event], patient: Path
    ) -> None:
        """Calls get right results at once, and the chosen kernel from when it is there."""
        assert NEIGHBOUR != WANTED
        for _ in range(3):
            call(MANY)
        first = [(e.kind, e.kernel, e.detail) for e in heard if e.kind == EventKind.FALLBACK]

        assert first == [("fallback", WANTED.name("cpu"), NEIGHBOUR.name("cpu"))]
        assert serving() == {NEIGHBOUR}
        assert not [event for event in heard if event.kind == EventKind.COMPILE]
        patient.touch()
        settle()
        assert serving() == set(), "the launch was forgotten, so that the next call looks again"
        call(MANY)
        assert serving() == {WANTED}
        kinds = [(e.kind, e.tier, e.kernel == WANTED.name("cpu")) for e in heard]
        assert kinds == [
            ("load", "disk", False),
            ("hit", "disk", False),
            ("fallback", "", True),
            ("compile", "", True),
            ("load", "compiled", True),
        ]
        call(MANY)
        assert len(heard) == 5, "from then on it is like any other kernel"

    def test_the_kernel_of_the_choice_is_published(self, fallback_root: Path) -> None:
        """What the worker compiled is there for the next process."""
        before = children(os.getpid())  # other tests may have started some, as multiprocessing does
        call(MANY)
        settle()

        assert KernelLoader(Store.open(fallback_root)).get(WANTED, "cpu").tier == "disk"
        assert {*children(os.getpid())} <= {*before}, "no process is left behind"

    def test_the_best_compiled_candidate_serves(self, fallback_root: Path, patient: Path) -> None:
        """Not any that is compiled, but the first in the order of the selector."""
        second = ranked(MANY)[1]
        assert second not in (NEIGHBOUR, WANTED)
        with jitgen.settings.scope(compile="process"):
            jitgen.get_kernel(second, "cpu")
        call(MANY)

        assert serving() == {second}

    def test_with_nothing_compiled_the_call_waits(
        self,
        fallback_root: Path,
        heard: list[Event],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """It does what `compile` does, in a worker, and says once how to avoid that."""
        shutil.rmtree(fallback_root)
        with caplog.at_level(logging.WARNING):
            call(MANY)
            call(MANY)

        assert serving() == {WANTED}
        assert [e.kind for e in heard] == ["miss", "compile", "load"]
        assert caplog.text.count(f"jitgen prewarm --config {WANTED.name('cpu')}") == 1

    def test_a_forced_config_is_never_replaced(
        self, fallback_root: Path, heard: list[Event]
    ) -> None:
        """A call that names a config gets it, compiled now."""
        call(MANY, config=WANTED)
        forced = replace(NEIGHBOUR, tile=replace(NEIGHBOUR.tile, n=64))
        assert jitgen.get_kernel(forced, "cpu").config == forced

        assert serving() == {WANTED}
        assert "fallback" not in {event.kind for event in heard}

    def test_what_is_on_disk_is_no_miss(self, fallback_root: Path, heard: list[Event]) -> None:
        call(FEW)

        assert serving() == {NEIGHBOUR}
        assert [event.kind for event in heard] == ["load", "hit"]

    def test_frozen(self, fallback_root: Path, heard: list[Event]) -> None:
        """A frozen process compiles nowhere: a neighbour serves, and without one it raises."""
        jitgen.freeze()
        call(MANY)
        shutil.rmtree(fallback_root)
        b = torch.zeros(2, N, K)
        groups = torch.zeros(2, dtype=torch.int32)

        with pytest.raises(KernelMiss, match="frozen"):
            jitgen.grouped_gemm(torch.zeros(2, 4, K), b, masked_m=groups, out_dtype=torch.float32)
        assert serving() == {NEIGHBOUR}
        assert not current.get().loader.background._pending
        assert "compile" not in {event.kind for event in heard}


class TestSingleFlight:
    def test_threads_and_shapes_share_one_compile(
        self, fallback_root: Path, heard: list[Event]
    ) -> None:
        """Eight threads with four shapes that want the same kernel cost one compile."""
        barrier, errors = threading.Barrier(8), []

        def work(rows: int) -> None:
            barrier.wait()
            try:
                for _ in range(3):
                    call(rows)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(MANY - i % 4,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        settle()
        for i in range(4):
            call(MANY - i)

        assert not errors
        assert serving() == {WANTED}
        assert [e.kind for e in heard].count(EventKind.COMPILE) == 1

    def test_processes_share_one_compile(self, fallback_root: Path) -> None:
        """Each of two processes has a worker, and one of those finds what the other compiled."""
        tensors(MANY)  # torch's own threads do not survive a fork
        pids, before = [], events.counts().get("compile", 0)
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    call(MANY)
                    assert serving() == {NEIGHBOUR}
                    settle()
                    call(MANY)
                    assert serving() == {WANTED}
                    code = 10 + events.counts().get("compile", 0) - before
                finally:
                    os._exit(code)
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]

        assert sorted(codes) == [10, 11]

    def test_get_kernel_meanwhile_waits_for_the_worker(self, fallback_root: Path) -> None:
        """`get_kernel` gets the very kernel, and the call switches too."""
        call(MANY)
        kernel = jitgen.get_kernel(WANTED, "cpu")
        settle()
        call(MANY)

        assert kernel.config == WANTED
        assert serving() == {WANTED}
        assert len(list(fallback_root.rglob("kernel.so"))) == 2
