# SPDX-License-Identifier: Apache-2.0
"""
Counts the calls of a process, if JITGEN_RECORD names a file.

Warm calls need no lookup for this: a launch that is cached while recording is on has a function
that adds one to its own counter (0.04 us); without recording, launches are unchanged. A thread
writes changed counters every ten seconds, and the process writes them when it ends; a killed
process loses the calls since the last write. A forked child counts from zero, in its own file.

If a recording cannot be written, there is one warning, because that must not stop a server.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from jitgen._version import __version__
from jitgen.config import Arch, Config
from jitgen.config.problem import Problem
from jitgen.events import warn_once
from jitgen.plans.recording import Calls, Recording, part
from jitgen.settings import settings

EVERY_S = 10.0
"""Seconds between two writes; a process that is killed loses the calls since the last."""

MAX_CELLS = 65_536
"""Most different calls that are counted separately; further ones are counted together."""

Cell = list[int]
"""A counter: a list of one number, which is the fastest object in Python for this."""


class Tally:
    """Counter of calls that differ only in their rows, or of calls with an explicit config."""

    def __init__(self, recorder: Recorder, arch: Arch, of: Problem | Config) -> None:
        self.arch = arch
        self.of = of
        self.cells: dict[int, Cell] = {}
        self._recorder = recorder

    def counting(self, function: Callable[..., object], rows: int) -> Callable[..., None]:
        """
        Return a function that calls `function` and counts a call with a mean of `rows` rows per
        group.
        """
        cell = self._cell(0 if isinstance(self.of, Config) else rows)

        def call(*arguments: object) -> None:
            function(*arguments)  # a call that it refuses does not count
            cell[0] += 1

        return call

    def _cell(self, rows: int) -> Cell:
        found = self.cells.get(rows)
        if found is None:
            if not self._recorder.has_room():
                return self._recorder.others
            found = self.cells.setdefault(rows, [0])
        return found


class Recorder:
    """
    The counts of one process for one value of JITGEN_RECORD.

    Safe to use from any thread. In Python without a global lock, two simultaneous calls may count
    as one.
    """

    def __init__(self, path: Path) -> None:
        self.others: Cell = [0]
        self._asked = path
        self._lock = threading.Lock()
        self._tallies: dict[tuple[Arch, Problem | Config], Tally] = {}
        self._room = MAX_CELLS
        self._written = -1  # calls that are in the file; there is none yet
        if "multiprocessing.util" in sys.modules:  # its forked children run no atexit
            from multiprocessing import util

            util.register_after_fork(self, Recorder._finalize)
        self._begin()
        self.write()  # a failure is better known before the first call

    def has_room(self) -> bool:
        """Take the room for one more counter; return whether there was room."""
        self._room -= 1
        return self._room >= 0

    def tally(self, arch: Arch, of: Problem | Config) -> Tally:
        """Return the tally of problems that differ from `of` in rows only, or of a config."""
        place = arch, of if isinstance(of, Config) else of.with_mean(1)
        with self._lock:
            if place not in self._tallies:
                self._tallies[place] = Tally(self, *place)
                self._ensure_thread()
            return self._tallies[place]

    def recording(self) -> Recording:
        """Return the recording of all calls up to now."""
        calls, kernels = [], {}
        for tally in list(self._tallies.values()):
            rows = {rows: cell[0] for rows, cell in list(tally.cells.items()) if cell[0]}
            if not rows:
                continue
            if isinstance(tally.of, Config):
                kernels[tally.of.name(tally.arch)] = rows[0]
            else:
                calls.append(Calls(arch=tally.arch, problem=tally.of, rows=rows))
        return Recording(
            calls=tuple(calls),
            kernels=kernels,
            others=self.others[0],
            began=self._began,
            written=_now(),
            jitgen=__version__,
        )

    def write(self) -> None:
        """Write the recording, if anything was counted since the last write."""
        with self._lock:
            found = self.recording()
            if found.total == self._written:
                return
            try:
                found.save(self.path)
                self._written = found.total
            except OSError as error:
                warn_once(
                    f"recording {self._asked}",
                    "calls are counted, but JITGEN_RECORD=%s cannot be written: %s",
                    self._asked,
                    error.strerror or error,
                )

    def after_fork(self) -> None:
        """
        Count from zero in a new file, because the calls so far are those of the parent process.
        """
        self._lock = threading.Lock()
        for tally in self._tallies.values():
            for cell in tally.cells.values():
                cell[0] = 0
        self.others[0] = 0
        self._begin()
        self._written = 0  # no file for a child that calls nothing

    def _begin(self) -> None:
        self.path = part(self._asked)
        self._began = _now()
        self._end = threading.Event()
        self._has_thread = False
        self._ensure_thread()

    def _ensure_thread(self) -> None:
        """Start the thread that writes, unless it runs; after a failure, the next tally tries."""
        if self._has_thread:
            return
        thread = threading.Thread(target=self._run, name="jitgen-record", daemon=True)
        try:
            thread.start()
            self._has_thread = True
        except RuntimeError:  # no more threads: the recording is written at the end only
            warn_once("record thread", "calls are recorded when the process ends, and not before")

    def _finalize(self) -> None:
        from multiprocessing import util

        util.Finalize(None, self.write, exitpriority=0)

    def _run(self) -> None:
        end = self._end
        while not end.wait(EVERY_S):
            self.write()

    def close(self) -> None:
        """Write the recording a last time, and end the thread."""
        self._end.set()
        self.write()


_recorders: dict[Path, Recorder] = {}
_lock = threading.Lock()


def tally(arch: Arch, of: Problem | Config) -> Tally | None:
    """
    Return the tally of problems that differ from `of` in rows only, or of a config; None if
    recording is off.
    """
    path = settings.record
    if path is None:
        return None
    with _lock:
        if path not in _recorders:
            _recorders[path] = Recorder(path)
        return _recorders[path].tally(arch, of)


def flush() -> None:
    """Write every recording of this process now."""
    for recorder in list(_recorders.values()):
        recorder.write()


def end(path: Path) -> None:
    """
    End the recording to JITGEN_RECORD=`path`, and write it a last time. Launches that were cached
    meanwhile keep counting, without effect; new calls begin another recording.
    """
    with _lock:
        recorder = _recorders.pop(path, None)
    if recorder is not None:
        recorder.close()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    for recorder in _recorders.values():
        recorder.after_fork()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(flush)
