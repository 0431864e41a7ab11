# SPDX-License-Identifier: Apache-2.0
"""
A stampede: many processes with several threads each want the same few kernels, while others remove,
clear, prune and damage what they want, and kill and stop them.

Compiling is replaced by copies that take 10 to 300 ms. A call fails where it raises, or returns
another kernel's number. A process that does not end when it is told to has hung.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from jitgen.cache import Store
from jitgen.errors import JitgenError
from jitgen.settings import settings
from tests.chaos import damage
from tests.chaos.kernels import (
    ARCH,
    CONFIGS,
    Mark,
    answer_of,
    loader,
    name_of,
    prebuilt,
    pretending,
    result_of,
    warm_up,
)
from tests.chaos.report import Stage

_THREADS = 4
_LOCK_S = 2.0  # a process that was stopped holds its lock
_FRESH = 0.3  # how often a thread asks as a process would that has nothing in memory
_LOADS = 200  # of one process, about: each stays mapped, and memory is finite
_GRACE_S = 30.0  # to end in
_COUNTS = ("calls", "from memory", "from disk", "compiled")
_SLOT = struct.Struct(f"{len(_COUNTS)}Q")
_FAULTS = (
    *(damage._flip, damage._cut, damage._extend, damage._zeros, damage._garbage, damage._foreign),
    *(damage._swap, damage._sparse, damage._gone, damage._link, damage._dangling, damage._fifo),
    damage._folder,
)


@dataclass
class Board:
    """
    What processes of the stampede tell: counts in shared memory, a slot for each, and failures in a
    file.

    A slot is written by one process only, or by the one that takes its place when it is killed.
    """

    size: int
    folder: Path
    counts: mmap.mmap = field(init=False)

    def __post_init__(self) -> None:
        self.counts = mmap.mmap(-1, 1 + self.size * _SLOT.size)

    @property
    def is_over(self) -> bool:
        return self.counts[0] != 0

    def end(self) -> None:
        self.counts[0] = 1

    def add(self, slot: int, *more: int) -> None:
        at = 1 + slot * _SLOT.size
        sums = [a + b for a, b in zip(_SLOT.unpack_from(self.counts, at), more, strict=True)]
        _SLOT.pack_into(self.counts, at, *sums)

    def totals(self) -> dict[str, int]:
        slots = [_SLOT.unpack_from(self.counts, 1 + n * _SLOT.size) for n in range(self.size)]
        return dict(zip(_COUNTS, map(sum, zip(*slots, strict=True)), strict=True))

    def fail(self, text: str) -> None:
        with (self.folder / "failures").open("a") as stream:
            stream.write(" ".join(text.split())[:1000] + "\n")

    def failures(self) -> list[str]:
        path = self.folder / "failures"
        return path.read_text().splitlines() if path.exists() else []


def run(quick: bool = True) -> Stage:
    stage = Stage("stampede", "0 failed calls, none wrong, none that hangs")
    processes, seconds = (12, 1.5) if quick else (128, 600.0)
    warm_up()
    prebuilt()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        mark, root = Mark(folder), folder / "cache"
        board = Board(processes, folder)
        actions = _herd(board, root, seconds)
        stage.counts.update(board.totals())
        stage.counts.update(actions)
        for text in board.failures():
            stage.fail(text)
        if mark.is_there:
            stage.fail("foreign code ran")
    stage.lines.append(f"{processes} processes x {_THREADS} threads, {len(CONFIGS)} keys")
    return stage.end()


def _herd(board: Board, root: Path, seconds: float) -> dict[str, int]:
    """Start the processes, make trouble for `seconds`, end them; return what was done how often."""
    chance, actions = random.Random(9), dict.fromkeys(("killed", "stopped", *_TROUBLE), 0)
    herd = {slot: _start(board, slot, root) for slot in range(board.size)}
    stopped: dict[int, float] = {}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(chance.uniform(0.005, 0.05))
        for slot in [slot for slot, again in stopped.items() if again < time.monotonic()]:
            os.kill(herd[slot], signal.SIGCONT)
            del stopped[slot]
        for slot, process in herd.items():
            if (found := os.waitpid(process, os.WNOHANG))[0]:  # it has had its share
                if code := os.waitstatus_to_exitcode(found[1]):
                    board.fail(f"process {slot} ended by {code}")
                stopped.pop(slot, None)
                herd[slot] = _start(board, slot, root)
        slot = chance.randrange(board.size)
        what = chance.choices((*_TROUBLE, "killed", "stopped"), weights=_WEIGHTS)[0]
        actions[what] += 1
        if what == "stopped":
            os.kill(herd[slot], signal.SIGSTOP)
            stopped[slot] = time.monotonic() + chance.uniform(0.05, 2 * _LOCK_S)
        elif what == "killed":
            os.kill(herd[slot], signal.SIGKILL)
            os.waitpid(herd[slot], 0)
            stopped.pop(slot, None)
            herd[slot] = _start(board, slot, root)
        else:
            try:
                _TROUBLE[what](chance, root)
            except JitgenError as error:
                board.fail(f"{what}: {type(error).__name__}: {error}")
    board.end()
    for slot in stopped:
        os.kill(herd[slot], signal.SIGCONT)
    _reap(board, herd)
    return actions


def _reap(board: Board, herd: dict[int, int]) -> None:
    """
    Wait for all processes to end; note one that does not end in time, or that a signal or error
    ended.
    """
    until = time.monotonic() + _GRACE_S
    for slot, process in herd.items():
        while (found := os.waitpid(process, os.WNOHANG))[0] == 0:
            if time.monotonic() > until:
                board.fail(f"process {slot} does not end")
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                break
            time.sleep(0.01)
        if found[0] and (code := os.waitstatus_to_exitcode(found[1])):
            board.fail(f"process {slot} ended by {code}")


def _start(board: Board, slot: int, root: Path) -> int:
    """Fork a process that asks for kernels until all is over."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.nice(10)  # the processes that make trouble come first
        settings.lock_timeout = _LOCK_S
        with pretending(0.01, 0.3):
            threads = [
                threading.Thread(target=_ask, args=(board, slot, root)) for _ in range(_THREADS)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        code = 0
    finally:
        os._exit(code)


_guard = threading.Lock()


def _ask(board: Board, slot: int, root: Path) -> None:
    chance, loads = random.Random(), 0
    subject = loader(root)
    while not board.is_over and loads < _LOADS / _THREADS:
        config = chance.choice(CONFIGS)
        try:
            if chance.random() < _FRESH:
                subject = loader(root)
            known = {kernel.name for kernel in subject.loaded()}
            kernel = subject.get(config, ARCH)
            if (got := result_of(kernel)) != answer_of(config):
                board.fail(f"wrong: {name_of(config)} returned {got}")
            is_known, tier = kernel.name in known, kernel.tier
            loads += not is_known
        except BaseException as error:  # whatever it is, the call failed
            board.fail(f"{type(error).__name__}: {error}")
            continue
        with _guard:
            board.add(
                slot, 1, is_known, not is_known and tier == "disk", not is_known and tier != "disk"
            )


def _remove(chance: random.Random, root: Path) -> None:
    from jitgen.runtime.spec import key

    Store.open(root).remove(key(chance.choice(CONFIGS), ARCH))


def _clear(_: random.Random, root: Path) -> None:
    Store.open(root).clear()


def _prune(chance: random.Random, root: Path) -> None:
    Store.open(root).prune(chance.choice((1, 100_000, 300_000)))


def _verify(chance: random.Random, root: Path) -> None:
    Store.open(root).verify(rebuild=chance.random() < 0.2)


def _damage(chance: random.Random, root: Path) -> None:
    """Damage a file, or take away a folder or put something else there."""
    below = [path for path in damage._all_below(root) if len(path.relative_to(root).parts) > 1]
    if below:
        path = chance.choice(below)
        with suppress(OSError, IndexError, ValueError):  # it went away meanwhile
            if path.is_dir():
                chance.choice((damage._gone, damage._file, damage._fifo))(chance, path, root)
            elif path.is_file():
                chance.choice(_FAULTS)(chance, path, root)


_TROUBLE: dict[str, Callable[[random.Random, Path], None]] = {
    "removed": _remove,
    "cleared": _clear,
    "pruned": _prune,
    "verified": _verify,
    "damaged": _damage,
}
_WEIGHTS = (6, 1, 2, 1, 8, 2, 4)
