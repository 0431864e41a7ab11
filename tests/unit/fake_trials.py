# SPDX-License-Identifier: Apache-2.0
"""What a worker process serves in tests: kernels that behave as the test says, without torch."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jitgen.errors import InputError, JitgenError, KernelMiss, ResourceError

VARIABLE = "FAKE_TRIALS"
"""Names the folder of `script.json`, what to do, and `calls`, what was done."""


class OutOfMemoryError(RuntimeError):
    """Stands in for torch's exception of this name."""


_RAISED: dict[str, Callable[[str], Exception]] = {
    "wrong": lambda _: JitgenError("its result is wrong by 1 of the largest value"),
    "raise": lambda _: ValueError("an odd\nvalue"),
    "miss": lambda name: KernelMiss(name, f"no compiled kernel {name}"),
    "full": lambda _: OutOfMemoryError("7 sets of operands"),
    "refuse": lambda _: InputError("b", "must have at most 4 groups"),
    "descriptors": lambda _: OSError(errno.EMFILE, "Too many open files"),
    "driver": lambda _: RuntimeError("CUDA error: out of memory"),
    "disk": lambda _: ResourceError("there is no room for a copy"),
}


class Trials:
    """Does what the script says: ``{"METHOD NAME": action}``, ``{"us NAME": microseconds}``."""

    def __init__(self) -> None:
        self._folder = Path(os.environ[VARIABLE])
        self._script: dict[str, Any] = json.loads((self._folder / "script.json").read_text())

    def open(self, problem: dict[str, Any], arch: str) -> None:
        self._do("open", str(problem["m"]))

    def verify(self, name: str) -> None:
        self._do("verify", name)

    def time(self, names: list[str]) -> list[float]:
        if len(names) > 1:
            self._do("time", "together")
        for name in names:
            self._do("time", name)
        return [self._script.get(f"us {name}", 50.0) for name in names]

    def _do(self, method: str, name: str) -> None:
        with (self._folder / "calls").open("a") as stream:
            stream.write(f"{os.getpid()} {method} {name}\n")
        what = self._script.get(f"{method} {name}", self._script.get(method))
        if what in _RAISED:
            raise _RAISED[what](name)
        if what in _ENDS:
            _ENDS[what]()


def _leave(words: str, status: int) -> None:
    print(words, flush=True)
    os._exit(status)


def _linger() -> None:
    """Close the connection and take long to end, as an interpreter with torch in it does."""
    print("its last words", flush=True)
    os.closerange(3, 100)
    time.sleep(600)


def _stay() -> None:
    """Fail, and do not end when the connection is closed, as with a kernel that still runs."""
    os._exit = lambda status: threading.Event().wait(600)  # type: ignore[assignment]
    raise ValueError("an odd value")


_ENDS: dict[str, Callable[[], object]] = {
    "hang": lambda: time.sleep(600),
    "linger": _linger,
    "stay": _stay,
    "die": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "leave": lambda: _leave("its last words", 3),
    "short": lambda: _leave("[Errno 12] Cannot allocate memory", 1),
}
