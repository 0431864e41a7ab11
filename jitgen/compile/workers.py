# SPDX-License-Identifier: Apache-2.0
"""
Compile processes: many calls of one function, each in a separate process.

The compiler is not thread-safe, it crashes on some inputs, and it takes a second to import. So one
helper process (`jitgen.compile.worker_server`) imports it and forks a child for each task. Nothing
is re-imported from the caller's ``__main__``: this works from a script without a guard, from a REPL
and under pytest. Tasks and results are JSON values; no pickle is involved.

The processes see no GPU. A crash, a time-out or an exception affects only its own task. If the
iterator is left early, or this process dies, all processes end.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import IO, Any, Self

from jitgen.compile import children
from jitgen.compile.processes import descendants_of
from jitgen.support.frozen import frozen
from jitgen.support.values import MAX_WAIT_S

PRELOAD = (
    "tvm_ffi",
    "jitgen.compile.preload",
    "cutlass.pipeline",
    "cutlass.utils",
    "cutlass.cute.runtime",
    # the compiler imports these two when it first compiles
    "cutlass.cute._tvm_ffi_args_spec_converter",
    "cutlass.cutlass_dsl.tvm_ffi_provider",
)
"""
Modules that are imported in advance for children; names that a version of the compiler lacks are
skipped.
"""

WITHOUT = ("torch",)
"""
Modules that children cannot import. tvm-ffi imports torch if it is installed, and compiling has no
use for it: without torch the start takes one second instead of three, and the bytes are the same.
"""

_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "CUTE_DSL_DISABLE_FILE_CACHING": "1",
    # numpy's BLAS starts its threads on import, and a process with threads must not be forked
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_GOODBYE_S = 0.5
"""Seconds that the helper process may take to end its children, before it is killed itself."""

_START_S = 120.0
"""Seconds that the helper process may take to import what tasks need, also from a slow disk."""

_SILENCE_S = 30
"""
Seconds without a sign of life after which the helper process counts as hung. They are counted one
by one, so that a suspended machine is not taken for a hung helper.
"""


class OutcomeKind(StrEnum):
    """How a task ended."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    CRASH = "crash"


@frozen
class Outcome:
    """
    The result of one task.

    Attributes:
        task: The task as it was given.
        index: Its position among the tasks.
        kind: How it ended.
        result: Value that the function returned; None unless `kind` is ``ok``.
        error: Type and message of the exception, or how the process ended; None if all went well.
        log: The last 4 KiB of the task's output, or the traceback of its exception.
        seconds: Seconds from fork to end.
    """

    task: Any
    index: int
    kind: OutcomeKind
    result: Any = None
    error: str | None = None
    log: str = ""
    seconds: float = 0.0


class Stop:
    """
    Ends a `run` from another thread than the one that iterates over it.

    Called before the run begins, it ends that run as it begins.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self.is_set = False

    def __call__(self) -> None:
        """End the run; returns at once, and the iterator is exhausted soon after."""
        with self._lock:
            self.is_set = True
            self._end()

    def watch(self, connection: socket.socket) -> None:
        """Note the run's connection to its processes; closing it ends them."""
        with self._lock:
            self._connection = connection
            if self.is_set:
                self._end()

    def disown(self) -> None:
        """
        Close this process's copy of the connection, in a forked child: the run is its parent's.
        """
        if self._connection is not None and self._connection.fileno() >= 0:
            os.close(self._connection.detach())  # close() would wait for a reader

    def _end(self) -> None:
        if self._connection is not None:
            with suppress(OSError):  # it has ended by itself
                self._connection.shutdown(socket.SHUT_RDWR)


def run(
    function: str,
    tasks: Sequence[Any],
    *,
    jobs: int,
    timeout_s: float,
    stop: Stop | None = None,
    preload: Sequence[str] = PRELOAD,
    without: Sequence[str] = WITHOUT,
) -> Iterator[Outcome]:
    """
    Call `function` with each of `tasks` in a separate process, and yield outcomes as they finish.

    Work begins when the first outcome is requested. Closing the iterator, or an exception such as
    KeyboardInterrupt while it waits, kills every running process. The processes have this process's
    environment, without settings that were made only in Python.

    Args:
        function: ``pkg.mod:name``, importable with this process's ``sys.path``; takes one task.
        tasks: Tasks, each a JSON value that the function is called with.
        jobs: How many tasks run at a time, at least 1; see `jitgen.compile.capacity`.
        timeout_s: Seconds after which a task, and every process that it started, is killed.
        stop: Ends the run from another thread; tasks that it ends have no outcome.
        preload: Modules that are imported once, before the first task, and functions,
            ``pkg.mod:name``, that are then called once with all tasks. They must start no thread.
        without: Modules that tasks cannot import.

    Yields:
        One outcome for each task, in the order in which they end; failures of tasks are outcomes
        and never raise.

    Raises:
        TypeError: A task is not a JSON value.
    """
    request = {
        "function": function,
        "tasks": list(tasks),
        "jobs": max(1, jobs),
        "timeout_s": min(timeout_s, MAX_WAIT_S),
        "preload": list(preload),
        "without": list(without),
    }
    line = json.dumps(request).encode("ascii") + b"\n"
    if not tasks:
        return
    waiting = set(range(len(tasks)))
    with tempfile.TemporaryFile() as log, _Server(log) as server:
        if stop is not None:
            stop.watch(server.connection)
        error = ""
        try:
            for answer in server.answers(line):
                waiting.discard(answer["index"])
                yield _outcome(tasks[answer["index"]], answer)
                if not waiting:  # a fork of this process may keep the socket open, without an end
                    break
        except TimeoutError:
            server.kill()
            error = "the process that starts compile processes did not answer and was killed"
        if waiting and not (stop is not None and stop.is_set):
            error = error or f"the process that starts compile processes ended ({server.status()})"
            log.seek(0)
            text = log.read()[-4096:].decode("utf-8", "replace").strip()
            for index in sorted(waiting):
                yield Outcome(
                    task=tasks[index], index=index, kind=OutcomeKind.CRASH, error=error, log=text
                )


def _outcome(task: Any, answer: dict[str, Any]) -> Outcome:
    return Outcome(
        task=task,
        index=answer["index"],
        kind=OutcomeKind(answer["kind"]),
        result=answer.get("result"),
        error=answer.get("error"),
        log=answer["log"],
        seconds=answer["seconds"],
    )


class _Server:
    """The helper process, for the length of a with block."""

    def __init__(self, log: IO[bytes]) -> None:
        self.connection, theirs = socket.socketpair()
        environment = {
            name: value
            for name, value in children.environment().items()
            # the compiler's variables change what it generates, and no key records them
            if not name.startswith("CUTE_DSL_") or name == "CUTE_DSL_LIBS"
        }
        with theirs:
            self._process = subprocess.Popen(
                children.python("jitgen.compile.worker_server", str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=children.FOLDER,
                env=environment | _ENVIRONMENT,
                pass_fds=[theirs.fileno()],
                # Ctrl-C is the caller's to handle: these processes end when the socket does
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def answers(self, request: bytes) -> Iterator[dict[str, Any]]:
        """
        Send `request` and yield the answers until the other side ends.

        Raises:
            TimeoutError: The process does not end, and gives no sign of life.
        """
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.settimeout(_START_S)
            self.connection.sendall(request)
            self.connection.settimeout(1.0)
            rest, silence, patience = b"", 0, int(_START_S)
            while silence < patience:
                try:
                    received = self.connection.recv(2**16)
                except TimeoutError:
                    silence += 1
                    continue
                if not received:
                    return
                silence, patience = 0, _SILENCE_S
                *lines, rest = (rest + received).split(b"\n")
                yield from (json.loads(line) for line in lines if line)  # empty: a sign of life
            raise TimeoutError

    def kill(self) -> None:
        """End the process, also one that is stopped, and all that descends from it."""
        family = descendants_of(self._process.pid)
        self._process.kill()
        for pid in family:  # most end with it, but not what tasks started in sessions of their own
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def status(self) -> str:
        """
        Return how the process ended; one that closed the connection but does not end is killed.
        """
        try:
            code = self._process.wait(_GOODBYE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"status {code}"

    def __exit__(self, *_: object) -> None:
        # shutdown, unlike close, also ends the connection where a fork of this process holds a copy
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()
        try:
            self._process.wait(_GOODBYE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
