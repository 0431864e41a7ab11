# SPDX-License-Identifier: Apache-2.0
"""
Compile processes: many calls of one function, each in a process of its own.

The compiler is not thread-safe, it crashes on some inputs, and it takes a second to import. So one
helper process (`jitgen.build.worker_server`) imports it and forks a child for each task. Nothing is
re-imported from the caller's ``__main__``: this works from a script without a guard, from a REPL
and under pytest. Tasks and results are JSON values; no pickle is involved.

The processes see no GPU. A crash, a time-out or an exception costs its own task only. Leaving the
iterator early, or dying, ends every process.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Self

PRELOAD = (
    "tvm_ffi",
    "cutlass.cute",
    "cutlass.pipeline",
    "cutlass.utils",
    "cutlass.cute.runtime",
    # the compiler imports these two when it first compiles
    "cutlass.cute._tvm_ffi_args_spec_converter",
    "cutlass.cutlass_dsl.tvm_ffi_provider",
)
"""What children find imported; a name that a version of the compiler lacks is skipped."""

WITHOUT = ("torch",)
"""
What children cannot import. tvm-ffi imports torch wherever it is installed, and compiling has no
use for it: without it the start takes one second instead of three, and gives the same bytes.
"""

WORKER_BYTES = 600 * 2**20
"""Memory to allow for one compile: it uses about 220 MB, two thirds of it shared."""

_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "CUTE_DSL_DISABLE_FILE_CACHING": "1",
    # numpy's BLAS starts its threads on import, and a process with threads must not be forked
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_START = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from jitgen.build.worker_server import main
main(int(sys.argv[2]))
"""
_GOODBYE_S = 0.5
"""How long the helper process may take to end what it started, before it is killed itself."""


class OutcomeKind(StrEnum):
    """How a task ended."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    CRASH = "crash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    What became of one task.

    Attributes:
        task: The task as it was given.
        index: Its position among the tasks.
        kind: How it ended.
        result: What the function returned; None unless `kind` is ``ok``.
        error: Type and message of the exception, or how the process ended; None if all went well.
        log: The last 4 KiB of what the task printed, or the traceback of its exception.
        seconds: From fork to end.
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
        self._guard = threading.Lock()
        self._connection: socket.socket | None = None
        self.is_set = False

    def __call__(self) -> None:
        """End the run; returns at once, and the iterator is exhausted soon after."""
        with self._guard:
            self.is_set = True
            self._end()

    def watch(self, connection: socket.socket) -> None:
        """Take note of the run's connection to its processes, whose end is theirs."""
        with self._guard:
            self._connection = connection
            if self.is_set:
                self._end()

    def disown(self) -> None:
        """
        Close this process's copy of the connection: for a forked child, whose parent's run it is.
        """
        if self._connection is not None and self._connection.fileno() >= 0:
            os.close(self._connection.detach())  # close() would wait for whoever reads from it

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
    Call `function` with each of `tasks` in a process of its own, and yield outcomes as they finish.

    Work begins when the first outcome is asked for. Closing the iterator, and an exception such as
    KeyboardInterrupt while it waits, kill every process that is still running. The processes have
    this one's environment, without what was set only in Python.

    Args:
        function: ``pkg.mod:name``, importable with this process's ``sys.path``; takes one task.
        tasks: JSON values.
        jobs: How many tasks run at a time, at least 1; see `default_jobs`.
        timeout_s: After so many seconds a task and all that it started are killed.
        stop: What ends the run from another thread; tasks that it ends have no outcome.
        preload: Modules that are imported once, before the first task.
        without: Modules that tasks cannot import.

    Yields:
        One outcome for each task, in the order in which they end; what a task does never raises.

    Raises:
        TypeError: A task is not a JSON value.
    """
    request = {
        "function": function,
        "tasks": list(tasks),
        "jobs": max(1, jobs),
        "timeout_s": min(timeout_s, 1e6),  # the server's clock counts milliseconds in 32 bits
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
        for answer in server.answers(line):
            waiting.discard(answer["index"])
            yield Outcome(
                task=tasks[answer["index"]],
                index=answer["index"],
                kind=OutcomeKind(answer["kind"]),
                result=answer.get("result"),
                error=answer.get("error"),
                log=answer["log"],
                seconds=answer["seconds"],
            )
            if not waiting:  # the end may never show, where a fork of this process holds a copy
                break
        if waiting and not (stop is not None and stop.is_set):
            error = f"the process that starts compile processes ended ({server.status()})"
            log.seek(0)
            text = log.read()[-4096:].decode("utf-8", "replace").strip()
            for index in sorted(waiting):
                yield Outcome(
                    task=tasks[index], index=index, kind=OutcomeKind.CRASH, error=error, log=text
                )


class _Server:
    """The helper process, for the length of a with block."""

    def __init__(self, log: IO[bytes]) -> None:
        self.connection, theirs = socket.socketpair()
        environment = {
            name: value
            for name, value in os.environ.items()
            # the compiler's variables change what it generates, and no key records them
            if not name.startswith("CUTE_DSL_") or name == "CUTE_DSL_LIBS"
        }
        path = json.dumps([str(folder) for folder in sys.path])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, path, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment | _ENVIRONMENT,
                pass_fds=[theirs.fileno()],
                # Ctrl-C is the caller's to handle: these processes end when the socket does
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def answers(self, request: bytes) -> Iterator[dict[str, Any]]:
        """Send `request` and yield the answers until the other side ends."""
        with (
            suppress(BrokenPipeError, ConnectionResetError),
            self.connection.makefile("rb") as lines,
        ):
            self.connection.sendall(request)
            for line in lines:
                yield json.loads(line)

    def status(self) -> str:
        """Wait for the process to end, and return how it did."""
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
            self._process.kill()  # its children die with it
            self._process.wait()


def default_jobs(requested: int = 0) -> int:
    """
    Return how many compile processes to run: `requested`, or if that is 0 what the machine allows.

    That is one for each core that this process may use, as far as the free memory goes;
    the limits of its control group (version 2) count.
    """
    if requested > 0:
        return requested
    return max(1, min(_usable_cores(), _available_bytes() // WORKER_BYTES))


def _usable_cores() -> int:
    cores = len(os.sched_getaffinity(0))
    for group in _control_groups():
        quota, _, period = _read(group / "cpu.max").partition(" ")
        if quota.isdecimal() and period.strip().isdecimal():
            cores = min(cores, -(-int(quota) // int(period)))
    return cores


def _available_bytes() -> int:
    fields = dict(line.split(":", 1) for line in _read(Path("/proc/meminfo")).splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else 2**62
    for group in _control_groups():
        limit, used = _read(group / "memory.max").strip(), _read(group / "memory.current").strip()
        if limit.isdecimal() and used.isdecimal():
            fields = dict(line.split() for line in _read(group / "memory.stat").splitlines())
            # cached files count as used, and are given up when memory is asked for
            available = min(available, int(limit) - int(used) + int(fields.get("inactive_file", 0)))
    return max(0, available)


def _control_groups() -> list[Path]:
    """Return the folders of this process's control group (version 2) and of those that hold it."""
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        if line.startswith("0::/"):
            root = Path("/sys/fs/cgroup")
            own = root / line[4:]
            return [own, *(parent for parent in own.parents if parent.is_relative_to(root))]
    return []


def _read(path: Path) -> str:
    """Return the text of a file of the kernel; empty where there is none."""
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
