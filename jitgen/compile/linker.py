# SPDX-License-Identifier: Apache-2.0
"""Links an object file with the system's C compiler driver, and checks the result."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
from contextlib import suppress
from pathlib import Path

from jitgen.compile.elf import exported
from jitgen.events import warn_once

_OPTIONS = ("-nostdlib", "-s", "-Wl,--build-id=none", "-Wl,-z,noseparate-code")
"""
Only the object is linked: no start files (a kernel has no constructors, and every process has the
functions of libc that it calls), no symbols, no padding. This takes half the time, and the library
is a tenth smaller.
"""

_TIMEOUT_S = 30.0
"""Linking takes some 10 ms; a linker that takes this long hangs."""

_MOST_BYTES = 2**26

_KEPT = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH")
"""Variables that a linker may need to run. Others, such as LD_RUN_PATH, change its output."""


class LinkError(Exception):
    """There is no linker, or it does not work; the message says why, and what to do."""


def driver() -> str | None:
    """
    Return the path of the system's compiler driver, which links: $CC, else the first of ``cc``,
    ``gcc`` and ``clang``; None if there is none.
    """
    wanted = os.environ.get("CC")
    for name in (wanted, "cc", "gcc", "clang"):
        if name and (found := shutil.which(name)):
            if wanted not in (None, "", name):
                warn_once("CC", "CC=%s is no program that can be run, so %s links", wanted, found)
            return found
    return None


def link(directory: Path, obj: str, symbol: str) -> bytes:
    """
    Return the shared library of the object file `obj` in `directory`, which defines `symbol`.

    A linker may exit with success and leave nothing, half a file, or something else: its output is
    checked before it is loaded or published.

    Raises:
        LinkError: There is no linker, it fails or hangs, or its output is not a library.
    """
    compiler = driver()
    if compiler is None:
        raise LinkError("no C compiler driver (cc, gcc, clang) was found to link it; install gcc")
    command = [compiler, "-shared", *_OPTIONS, "-o", "linked.so", obj]
    code, complaint = _run(command, directory)
    if code:
        raise LinkError(f"{compiler} failed: {complaint or f'exit status {code}'}")
    path = directory / "linked.so"
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            raise ValueError(f"it is no file, or has too many bytes ({found.st_size})")
        library = path.read_bytes()
        if symbol not in exported(library):
            raise ValueError(f"it does not define {symbol}")
    except (OSError, ValueError) as error:
        raise LinkError(f"{compiler} ended well, but left no usable library: {error}") from None
    return library


def _run(command: list[str], directory: Path) -> tuple[int, str]:
    """Run a linker; return its exit status and the first line that it complained with."""
    try:
        with subprocess.Popen(
            command,
            cwd=directory,
            env={name: os.environ[name] for name in _KEPT if name in os.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # it starts processes of its own, which end with it
        ) as process:
            try:
                _, complaint = process.communicate(timeout=_TIMEOUT_S)
            except BaseException:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
    except subprocess.TimeoutExpired:
        raise LinkError(f"{command[0]} did not end within {_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise LinkError(f"{command[0]} cannot be run: {error}") from None
    lines = complaint.decode("utf-8", "replace").strip().splitlines()
    return process.returncode, lines[0][:400] if lines else ""
