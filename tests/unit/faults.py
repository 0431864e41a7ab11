# SPDX-License-Identifier: Apache-2.0
"""Calls of the operating system on files below one folder that fail, or after which it all ends."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ERRORS = (errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOSPC, errno.ESTALE, errno.ENOMEM)
_CALLS = (
    "open",
    "read",
    "write",
    "fsync",
    "rename",
    "mkdir",
    "unlink",
    "stat",
    "fstat",
    "readlink",
)


@dataclass
class Plan:
    """
    Which calls fail.

    Attributes:
        at: The number of the first.
        number: Number of the error that calls fail with; 0: the process is killed instead, before
            the call.
        goes_on: Whether all that follow fail, too.
        count: Number of calls so far.
        hits: Number of calls that failed.
    """

    at: int
    number: int
    goes_on: bool = False
    count: int = 0
    hits: int = 0

    def check(self) -> None:
        """
        Count a call; if it is one of those that fail, raise OSError, or kill the process if
        `number` is 0.
        """
        self.count += 1
        if self.count - 1 == self.at or (self.goes_on and self.count - 1 > self.at):
            self.hits += 1
            if not self.number:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(self.number, os.strerror(self.number))


@contextmanager
def failing(folder: Path, plan: Plan) -> Iterator[Plan]:
    """Let calls below `folder` fail in the with block as `plan` says."""
    real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in _CALLS}
    real_lock = fcntl.flock
    prefix = f"{os.path.realpath(folder)}/"

    def wrap(name: str) -> Callable[..., Any]:
        def call(target: Any, *arguments: Any, **options: Any) -> Any:
            at = options.get("dir_fd", options.get("src_dir_fd"))
            if _place(real["readlink"], target, at).startswith(prefix):
                plan.check()
            return real[name](target, *arguments, **options)

        return call

    def lock(descriptor: int, how: int) -> None:
        if _place(real["readlink"], descriptor, None).startswith(prefix):
            plan.check()
        real_lock(descriptor, how)

    for name in _CALLS:
        setattr(os, name, wrap(name))
    fcntl.flock = lock  # type: ignore[assignment]
    try:
        yield plan
    finally:
        fcntl.flock = real_lock
        for name, function in real.items():
            setattr(os, name, function)


def _place(readlink: Callable[[str], str], target: Any, at: int | None) -> str:
    """Return the path of what a call is about: a descriptor, or a path, seen from another one."""
    try:
        if isinstance(target, int):
            return readlink(f"/proc/self/fd/{target}")
        text = os.fsdecode(target)
        return text if at is None else f"{readlink(f'/proc/self/fd/{at}')}/{text}"
    except OSError:
        return ""
