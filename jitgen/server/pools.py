# SPDX-License-Identifier: Apache-2.0
"""
Worker pools: a virtual environment for each toolchain, whose supervisor compiles in processes.

The service never compiles, and never imports a compiler. It runs one supervisor for each toolchain
(`jitgen.server.supervisor`), restarts it when it dies or falls silent, and distinguishes the
outcomes of a task: an answer, a refusal, a crash. A task during which a supervisor died is tried
once more.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from jitgen.compile import capacity, children
from jitgen.errors import ResourceError
from jitgen.server.confine import Confinement, confined
from jitgen.server.log import Log
from jitgen.server.questions import Question
from jitgen.server.settings import Toolchain

SUPERVISOR = "jitgen.server.supervisor"
IMPORT_SUPERVISOR = """\
try:
    from jitgen.server import supervisor
except ImportError:  # a jitgen before 0.2
    from jitgen.server import foreman as supervisor
"""
"""Python for the environment of a toolchain, whose jitgen may be of another version."""

_LINE = 2**28  # bytes of the longest line: the largest entry, in base64
_START_S = 120.0  # in which a supervisor must have imported the compiler
_SILENCE_S = 40.0  # without a line, of which it sends one every five seconds
_ANSWER_S = 60.0  # for the answer to a question
_REST_S = (0.5, 30.0)  # before a restart: first, and most; doubling
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "JITGEN_PLUGINS", "CC")
"""Variables of the service that a supervisor gets, too: none holds a secret of the operator."""


_Waiting = dict[int, asyncio.Future[dict[str, Any]]]
"""Requests without an answer yet, by number."""


class Pool:
    """
    One toolchain, with the supervisor that compiles for it.

    Attributes:
        name: Its name in the settings.
        jobs: Compiles at a time.
        hello: Its supervisor's description of the environment; empty until it started once.
        trouble: Reason why no supervisor is ready; empty if one is.
        restarts: How often its supervisor ended.
        python: Its interpreter; None for the service's own.
    """

    def __init__(
        self, settings: Toolchain, confinement: Confinement, timeout_s: float, log: Log
    ) -> None:
        self.name = settings.name
        self.jobs = capacity.default_jobs(settings.jobs)
        self.hello: dict[str, Any] = {}
        self.trouble = "it was not started yet"
        self.restarts = 0
        self.python = settings.python
        self._confinement = confinement
        self._timeout_s = timeout_s
        self._log = log
        self._scratch = Path(tempfile.mkdtemp(prefix="jitgen-pool-"))
        self._ready = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: _Waiting = {}
        self._asked: _Waiting = {}
        self._next_task = self._next_ask = 0
        self._keeper: asyncio.Task[None] | None = None

    @property
    def toolchain(self) -> Mapping[str, str]:
        """Versions of everything that determines the bytes of the pool's kernels."""
        found: Mapping[str, str] = self.hello.get("toolchain", {})
        return found

    @property
    def is_ready(self) -> bool:
        """Whether the pool's supervisor is ready to compile."""
        return self._ready.is_set()

    @property
    def is_starting(self) -> bool:
        """Whether the pool's first supervisor is still starting: not ready, and not ended."""
        return not self.hello and not self.restarts

    def start(self) -> None:
        """Start the pool's supervisor, and restart it whenever it ends."""
        self._keeper = asyncio.create_task(self._keep(), name=f"pool {self.name}")

    async def ready(self, wait_s: float = _START_S) -> bool:
        """Wait until the pool's supervisor is ready, `wait_s` at most; return whether it is."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ready.wait(), wait_s)
        return self.is_ready

    async def ask(self, question: Question, **details: Any) -> dict[str, Any]:
        """
        Return the supervisor's answer to `question`; `details` are the fields of its request.

        Raises:
            ResourceError: There is no supervisor, or it does not answer.
        """

        def prepare() -> tuple[_Waiting, int, dict[str, Any]]:
            self._next_ask += 1
            document = {"ask": self._next_ask, "what": question, **details}
            return self._asked, self._next_ask, document

        return await self._request(prepare, f"the toolchain {self.name} ended twice", _ANSWER_S)

    async def compile(self, config: dict[str, Any], arch: str, trace: str) -> dict[str, Any]:
        """
        Return the outcome of one compile, as `jitgen.compile.worker_server` reports it.

        Raises:
            ResourceError: There is no supervisor, or it died twice over this kernel.
        """
        task = {
            "config": config,
            "arch": arch,
            "timeout_s": self._timeout_s,
            "scratch": str(self._scratch),
            "trace": trace,
        }

        def prepare() -> tuple[_Waiting, int, dict[str, Any]]:
            number = self._next_task  # the supervisor counts tasks in the same way
            self._next_task += 1
            return self._tasks, number, {"task": task}

        died = f"the compile processes of {self.name} ended twice over this kernel"
        return await self._request(prepare, died)

    async def _request(
        self,
        prepare: Callable[[], tuple[_Waiting, int, dict[str, Any]]],
        died: str,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """
        Send what `prepare` returns and wait for its answer, a second time if the supervisor dies.

        Raises:
            ResourceError: There is no supervisor, it does not answer in time, or it died twice:
                then the message is `died`.
        """
        for is_last in (False, True):
            writer = await self._supervisor()
            waiting, number, document = prepare()
            future = waiting[number] = asyncio.get_running_loop().create_future()
            try:
                _send(writer, document)
                return await asyncio.wait_for(future, timeout_s)
            except TimeoutError:
                raise ResourceError(f"the toolchain {self.name} does not answer") from None
            except _Died:
                if is_last:
                    raise ResourceError(died) from None
            finally:
                waiting.pop(number, None)
        raise AssertionError("the last round returned or raised")

    async def _supervisor(self) -> asyncio.StreamWriter:
        if not await self.ready() or self._writer is None:
            raise ResourceError(f"the toolchain {self.name} does not compile: {self.trouble}")
        return self._writer

    async def _keep(self) -> None:
        rest_s = _REST_S[0]
        while True:
            try:
                await self._run()
                self.trouble = "its supervisor ended"
            except Exception as error:  # a bug must not end this loop
                self.trouble = str(error) or type(error).__name__
            finally:
                was_ready = self._ready.is_set()
                self._ready.clear()
                self._writer = None
                for future in (*self._tasks.values(), *self._asked.values()):
                    if not future.done():
                        future.set_exception(_Died())
                self._tasks, self._asked = {}, {}  # the next supervisor counts from 0
            self.restarts += 1
            rest_s = _REST_S[0] if was_ready else min(2 * rest_s, _REST_S[1])
            self._log.event("pool ended", level="error", pool=self.name, reason=self.trouble)
            await asyncio.sleep(rest_s)

    async def _run(self) -> None:
        """Run one supervisor until it ends."""
        with tempfile.TemporaryFile() as said:
            ours, process = self._started(said)
            try:
                await self._listen(ours, said)
            finally:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()
                await asyncio.to_thread(process.wait)

    def _started(self, said: IO[bytes]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        """Start a supervisor that prints to `said`; return our end of its socket, and it."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                return ours, subprocess.Popen(
                    confined(self._command(theirs.fileno()), self._confinement),
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    cwd=children.FOLDER,
                    env=self._environment(),
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise

    async def _listen(self, ours: socket.socket, said: IO[bytes]) -> None:
        """Take the lines of a supervisor until it ends, then close the socket."""
        try:
            reader, writer = await asyncio.open_connection(sock=ours, limit=_LINE)
        except BaseException:
            ours.close()
            raise
        self._next_task = 0
        try:
            async with asyncio.timeout(_START_S):
                line = await reader.readline()
            if not line:
                said.seek(0)
                words = said.read()[-2000:].decode("utf-8", "replace").strip()
                raise OSError(f"its supervisor does not start: {words or 'it said nothing'}")
            self._greet(json.loads(line), writer)
            while line := await asyncio.wait_for(reader.readline(), _SILENCE_S):
                if line.strip():
                    self._take(json.loads(line))
        except (KeyError, TypeError, AttributeError) as error:  # JSON, but not of our protocol
            words = f"its supervisor sent a line that the service does not know: {error!r}"
            raise ValueError(words) from error
        finally:
            writer.close()

    def _greet(self, line: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        hello = line["hello"]
        cannot, version = hello["cannot"], hello["jitgen"]
        self.hello = hello
        if cannot:
            raise OSError(cannot)
        self.trouble = ""
        self._writer = writer
        self._ready.set()
        self._log.event(
            "pool ready",
            pool=self.name,
            jobs=self.jobs,
            jitgen=version,
            toolchain=self.toolchain,
            confined=self.hello.get("confined"),
        )

    def _take(self, line: dict[str, Any]) -> None:
        waiting = self._asked.get(line["ask"]) if "ask" in line else self._tasks.get(line["index"])
        if waiting is not None and not waiting.done():
            waiting.set_result(line["answer"] if "ask" in line else line)

    def _command(self, descriptor: int) -> list[str]:
        arguments = (str(descriptor), str(self.jobs), str(self._timeout_s))
        if self.python is None:
            return children.python(SUPERVISOR, *arguments)
        start = f"{IMPORT_SUPERVISOR}import sys\nsupervisor.main(*sys.argv[1:])"
        return [str(self.python), "-P", "-c", start, *arguments]

    def _environment(self) -> dict[str, str]:
        found = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        if self.python is None and "PYTHONPATH" in os.environ:  # only for the service's own Python
            found["PYTHONPATH"] = os.environ["PYTHONPATH"]
        return found | {
            "JITGEN_CACHE": "off",
            "CUDA_VISIBLE_DEVICES": "",
            "CUTE_DSL_DISABLE_FILE_CACHING": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            # numpy's BLAS starts threads on import, and a process with threads must not fork
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }

    async def close(self) -> None:
        """End the supervisor and all processes that it started."""
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        shutil.rmtree(self._scratch, ignore_errors=True)


class _Died(Exception):
    """The supervisor ended before it answered."""


def _send(writer: asyncio.StreamWriter, document: dict[str, Any]) -> None:
    writer.write(json.dumps(document).encode("ascii") + b"\n")


def differences(wanted: Mapping[str, Any], have: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the versions in which two toolchains differ: the client's, and the service's."""
    return [
        {"field": name, "client": wanted.get(name), "service": have.get(name)}
        for name in sorted(wanted.keys() | have.keys())
        if wanted.get(name) != have.get(name)
    ]
