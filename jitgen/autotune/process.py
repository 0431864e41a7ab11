# SPDX-License-Identifier: Apache-2.0
"""
A worker process, from the side of the process that sends requests: each request has a time limit.

A kernel that hangs on a GPU only ends with its process, and after a kernel has written out of
bounds its process cannot be used any more. So kernels are measured in a worker process, which is
killed if it does not answer.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

from jitgen.compile import children
from jitgen.errors import JitgenError
from jitgen.support.failing import says_passing

_GOODBYE_S = 1.0
"""How long the process may take to end by itself, before it is killed."""

_KILL_S = 60.0
"""How long the driver may take to end a killed process and its work on the GPU."""

_LOG_BYTES = 4096


class Lost(Exception):
    """
    The process ended, or was killed because it did not answer; the message says which.

    Attributes:
        is_passing: Whether it ended because a resource ran out, most likely memory.
    """

    def __init__(self, message: str, *, is_passing: bool = False) -> None:
        super().__init__(message)
        self.is_passing = is_passing


class Refused(Exception):
    """
    The request raised an exception; the message is that of the exception.

    Attributes:
        kind: Name of the exception's class.
        is_passing: Whether the message says that a resource ran out.
    """

    def __init__(self, message: str, kind: str, *, is_passing: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.is_passing = is_passing


class Stuck(JitgenError):
    """
    A process that was killed does not end, because the driver waits for its kernel.

    Attributes:
        kernels: Names of the kernels that it waits for, or may wait for; empty if they are not
            known.
    """

    kernels: tuple[str, ...] = ()


class Worker:
    """
    A process that runs the methods of an object of class `trials`, ``pkg.mod:Name``, within a with
    block.

    It has the import path and the environment of this process, and in addition `environment`.
    """

    def __init__(self, trials: str, environment: Mapping[str, str]) -> None:
        self._trials = trials
        self._environment = environment

    def __enter__(self) -> Self:
        self._buffer = b""
        self._is_stuck = False
        self._log = tempfile.TemporaryFile()  # __exit__ closes it
        self._socket, theirs = socket.socketpair()
        arguments = (str(theirs.fileno()), self._trials, str(os.getpid()))
        with theirs:
            self._process = subprocess.Popen(
                children.python("jitgen.autotune.worker", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                cwd=children.FOLDER,
                env={**children.environment(), **self._environment},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is the caller's to handle
            )
        return self

    def ask(self, method: str, *arguments: object, timeout_s: float) -> Any:
        """
        Call ``method(*arguments)`` in the worker and return its result; all of them are JSON
        values.

        Raises:
            Refused: The method raised an error.
            Lost: The process ended, or did not answer for `timeout_s` seconds and was killed.
            Stuck: The process could not be killed.
        """
        request = json.dumps({"method": method, "arguments": arguments}).encode("ascii") + b"\n"
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(request)
            answer = json.loads(self._line(time.monotonic() + timeout_s))
        except TimeoutError:
            self._kill()
            raise Lost(f"it did not end within {timeout_s:g} s") from None
        except (BrokenPipeError, ConnectionResetError, EOFError):
            raise self._epitaph() from None
        if "error" in answer:
            raise Refused(answer["error"], answer["kind"], is_passing=answer["is_passing"])
        return answer["result"]

    def _line(self, deadline: float) -> bytes:
        while b"\n" not in self._buffer:
            self._socket.settimeout(max(1e-3, deadline - time.monotonic()))
            received = self._socket.recv(2**16)
            if not received:
                raise EOFError
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _epitaph(self) -> Lost:
        """
        Wait for the process to end, kill it if it does not, and return an error that says how it
        ended.
        """
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GOODBYE_S)
        if is_ending := self._process.poll() is None:
            self._kill()
        code, tail = self._process.returncode, self._tail()
        last = (tail.splitlines() or [""])[-1].strip()
        said = f": {last}" if last else ""
        if is_ending:  # an exception's last words come before a slow end
            return Lost(f"its process closed the connection{said}")
        is_passing = code == -signal.SIGKILL or says_passing(tail)  # the system's, out of memory
        if code < 0:
            known = {number.value: number.name for number in signal.Signals}
            name = known.get(-code, f"signal {-code}")
            return Lost(f"its process was killed by {name}", is_passing=is_passing)
        return Lost(f"its process exited with status {code}{said}", is_passing=is_passing)

    def _tail(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LOG_BYTES))
        return self._log.read().decode("utf-8", "replace").strip()

    def _kill(self) -> None:
        """
        End the process and all processes that it started.

        Raises:
            Stuck: The process does not end, because the driver waits for its kernel.
        """
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(_KILL_S)
        except subprocess.TimeoutExpired:
            self._is_stuck = True
            raise Stuck(
                f"process {self._process.pid} hangs in the driver and cannot be ended; "
                "the GPU has to be reset before anything else can be measured"
            ) from None

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._log.close()
        if self._process.poll() is None and not self._is_stuck:
            try:
                self._process.wait(_GOODBYE_S)
            except subprocess.TimeoutExpired:
                self._kill()
