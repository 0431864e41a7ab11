# SPDX-License-Identifier: Apache-2.0
"""
The process that compile processes are forked from; `jitgen.compile.workers` starts it.

It imports what every task needs once, then forks one child for each task: a fork costs
milliseconds, the imports cost a second, and anything that a task does to its process (a crash, a
leak, a changed setting) ends with that child.

Forking is safe because this process has one thread and never runs a task itself. It speaks JSON
over a socket, one document a line: one request in, one answer out for each task that has ended. The
end of the socket means that the client is gone, and ends everything.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, NoReturn

from jitgen.compile.processes import children_of

LOG_BYTES = 4096

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_HEARTBEAT_S = 5.0
"""Seconds between signs of life for the client, which gives up after half a minute."""

_libc = ctypes.CDLL(None)


@dataclass(slots=True, kw_only=True)
class _Child:
    """
    One task under way.

    Attributes:
        index: Position of the task in the request.
        result: Nameless file that receives the answer.
        log: Nameless file that receives everything the task prints.
        start: Time at which it was forked, by the monotonic clock.
        is_late: Whether it was killed because its time was up.
    """

    index: int
    result: IO[bytes]
    log: IO[bytes]
    start: float
    is_late: bool = False


class Server:
    """
    Runs one request: at most `jobs` children at a time, each with its own time limit.

    A subclass may be given further tasks while it serves: see `is_open`, `hear` and `add`.
    """

    is_open = False
    """Whether further tasks may come."""

    def __init__(self, client: socket.socket, request: dict[str, Any]) -> None:
        self._client = client
        self._function: str = request["function"]
        self._tasks: list[Any] = request["tasks"]
        self._jobs: int = request["jobs"]
        self._timeout_s: float = request["timeout_s"]
        self._next = 0
        self._children: dict[int, _Child] = {}
        self._wakeup, wakeup_end = os.pipe()
        for end in (self._wakeup, wakeup_end):
            os.set_blocking(end, False)
        # a handler must exist for the end of a child to reach the pipe that `_wait` sleeps on
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})  # the client may block it
        signal.set_wakeup_fd(wakeup_end, warn_on_full_buffer=False)
        self._last_word = 0.0
        # What a task starts and detaches from itself becomes a child of this process, not of init.
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._poll = select.poll()
        self._poll.register(self._client, select.POLLIN)
        self._poll.register(self._wakeup, select.POLLIN)

    def serve(self) -> None:
        """Run every task; return when all are answered or the client has gone."""
        try:
            self.say(b"")  # a sign of life: a task may stop this process before the next
            while self.is_open or self._next < len(self._tasks) or self._children:
                while self._next < len(self._tasks) and len(self._children) < self._jobs:
                    self._fork()
                if not self._wait():
                    return
                self._reap()
        except (BrokenPipeError, ConnectionResetError):
            return  # the client went while an answer was on its way
        finally:
            for pid in self._children:
                _kill_group(pid)
                _kill(pid)
            self._children.clear()
            _kill_orphans(self._children)

    def _fork(self) -> None:
        index = self._next
        self._next += 1
        server = os.getpid()
        try:
            child = _Child(
                index=index,
                result=tempfile.TemporaryFile(),  # noqa: SIM115 - `_reap` closes both
                log=tempfile.TemporaryFile(),  # noqa: SIM115
                start=time.monotonic(),
            )
            pid = os.fork()
        except OSError as error:
            # No process, descriptor or disk space is left: only this task fails.
            answer = {"kind": "crash", "error": f"no process for it: {error}", "log": ""}
            self.say(json.dumps({**answer, "index": index, "seconds": 0.0}).encode("ascii"))
            return
        if pid == 0:
            _run(self._function, self._tasks[child.index], child, server, self._client)
        self._tasks[index] = None  # frees its memory: tasks may be large, and many
        with suppress(PermissionError, ProcessLookupError):  # it has done so itself, or has ended
            os.setpgid(pid, pid)
        self._children[pid] = child

    def _wait(self) -> bool:
        """Sleep until a child ends or must end; return whether the client is still there."""
        if time.monotonic() >= self._last_word + _HEARTBEAT_S:
            self.say(b"")
        deadlines = [c.start + self._timeout_s for c in self._children.values() if not c.is_late]
        until = min([self._last_word + _HEARTBEAT_S, *deadlines])
        ready = {
            descriptor
            for descriptor, _ in self._poll.poll(max(0.0, until - time.monotonic()) * 1000)
        }
        if self._wakeup in ready:
            os.read(self._wakeup, 4096)
        now = time.monotonic()
        for pid, child in self._children.items():
            if not child.is_late and now >= child.start + self._timeout_s:
                child.is_late = True
                _kill_group(pid)
        return self._client.fileno() not in ready or self.hear()

    def hear(self) -> bool:
        """
        Return whether the client is still there, after its socket became readable: False, because a
        client only ever closes. A subclass may read further tasks.
        """
        return False  # a client only ever closes

    def add(self, task: Any) -> None:
        """
        Run `task` after the others; tasks are numbered from 0 in the order in which they are added.
        """
        self._tasks.append(task)

    def _reap(self) -> None:
        """
        Send the client an answer for every child that has ended, and kill the processes that it
        left.
        """
        while self._children:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            pid = ended.si_pid
            # leftovers of the task, before waitpid frees the group's number
            _kill_group(pid)
            _, status = os.waitpid(pid, 0)
            child = self._children.pop(pid, None)
            _kill_orphans(self._children)
            if child is None:
                continue  # a process that a task had detached
            with child.result, child.log:
                answer = _answer(child, os.waitstatus_to_exitcode(status), self._timeout_s)
            answer["index"] = child.index
            answer["seconds"] = time.monotonic() - child.start
            self.say(json.dumps(answer).encode("ascii"))

    def say(self, line: bytes) -> None:
        """Send the client one line."""
        self._last_word = time.monotonic()
        self._client.sendall(line + b"\n")


def _answer(child: _Child, code: int, limit_s: float) -> dict[str, Any]:
    log = _tail(child.log)
    if child.is_late:
        error = f"the time limit was reached, {limit_s:g} s"
        return {"kind": "timeout", "error": error, "log": log}
    if code:
        return {"kind": "crash", "error": f"the process {_exit_text(code)}", "log": log}
    child.result.seek(0)
    content = child.result.read()
    if not content:
        return {"kind": "crash", "error": "the process exited without an answer", "log": log}
    return {"log": log, **json.loads(content)}


def _exit_text(code: int) -> str:
    if code > 0:
        return f"exited with status {code}"
    if -code == signal.SIGKILL:
        return "was killed by SIGKILL: most likely memory ran out; use fewer jobs"
    known = {number.value: number.name for number in signal.Signals}
    return f"was killed by {known.get(-code, f'signal {-code}')}"


def _tail(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - LOG_BYTES))
    return log.read().decode("utf-8", "replace").strip()


def _kill_group(pid: int) -> None:
    """Kill a child and everything it started that stayed in its process group."""
    with suppress(PermissionError, ProcessLookupError):  # nothing is left of it
        os.killpg(pid, signal.SIGKILL)


def _kill(pid: int) -> None:
    """Kill a child, and collect it."""
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _kill_orphans(known: Container[int]) -> None:
    """
    Kill every child of this process that is not `known`. A process that left its group, as
    ``setsid`` does, is not killed with its group. But when the task that started it ends, this
    process becomes its parent, and of its own children when it ends: so this repeats until there
    are none.
    """
    while orphans := [pid for pid in children_of(os.getpid()) if pid not in known]:
        for pid in orphans:
            _kill(pid)


def _run(function: str, task: Any, child: _Child, server: int, client: socket.socket) -> NoReturn:
    """Run one task in the forked child; never returns."""
    status = 1
    try:
        os.setpgid(0, 0)
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == server:  # else it has died, and no process waits for an answer
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            client.close()
            os.dup2(child.log.fileno(), 1)
            os.dup2(child.log.fileno(), 2)
            faulthandler.enable(2)
            gc.enable()
            child.result.write(_call(function, task))
            child.result.flush()
            sys.stdout.flush()
            sys.stderr.flush()
            status = 0
    finally:
        os._exit(status)


def _call(function: str, task: Any) -> bytes:
    try:
        return json.dumps({"kind": "ok", "result": resolve(function)(task)}).encode("ascii")
    except BaseException as error:  # sys.exit() included: the exception is the answer
        log = "".join(traceback.format_exception(error))[-LOG_BYTES:]
        message = f"{type(error).__name__}: {error}"
        return json.dumps({"kind": "error", "error": message, "log": log}).encode("ascii")


def resolve(function: str) -> Any:
    """Return the object called ``pkg.mod:name``."""
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


def preload(modules: list[str], without: list[str], tasks: Sequence[Any] = ()) -> None:
    """
    Import `modules` before anything is forked, with the modules `without` made unimportable. A
    function among them, ``pkg.mod:name``, is called with `tasks`.

    A module that cannot be imported is left to the tasks that need it: they fail with the reason.
    """
    gc.disable()  # saves a fifth of the time of the imports; children turn it on again
    for name in without:
        sys.modules[name] = None  # type: ignore[assignment]  # import finds it missing
    for name in modules:
        try:
            if ":" in name:
                resolve(name)(tasks)
            else:
                importlib.import_module(name)
        except Exception:  # importing early is only for speed, and modules fail in many ways
            traceback.print_exc()
    gc.freeze()  # collections in children skip these objects, whose memory stays shared
    sys.stdout.flush()
    sys.stderr.flush()


def main(descriptor: str) -> None:
    """Serve the one client at the other end of the socket `descriptor`, then end the process."""
    os.set_inheritable(int(descriptor), False)
    client = socket.socket(fileno=int(descriptor))
    with client.makefile("rb") as lines:
        line = lines.readline()
    if not line:
        return
    request = json.loads(line)
    modules = [*request["preload"], request["function"].partition(":")[0]]
    preload(modules, request["without"], request["tasks"])
    Server(client, request).serve()
    os._exit(0)  # a regular exit with the compiler loaded takes a while
