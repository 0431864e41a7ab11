# SPDX-License-Identifier: Apache-2.0
"""
The stub runtime: compiled once with the system's C compiler, kept in the cache, loaded for the
whole process.

It lies beside compiled kernels, under a root that nobody else can write to, with its SHA-256, and
what has another digest is compiled again. Where the cache may not be written, a private folder
serves for this process.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jitgen.build.compiler import driver
from jitgen.cache.root import Root
from jitgen.errors import CacheError, ToolchainError
from jitgen.settings import settings

SOURCE = Path(__file__).with_name("stub.c")
_OPTIONS = ("-shared", "-fPIC", "-O1", "-Wall")
_TIMEOUT_S = 60

OnLaunch = Callable[[int, bytes, int], None]
"""Takes the address of the launch's record, the kernel's name, the address of its arguments."""

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Stub:
    """The loaded stub. Its user holds a lock: it serves one launch at a time."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._callback: Any = None

    def begin(self, on_launch: OnLaunch, attributes: Mapping[int, int]) -> None:
        """Call `on_launch` for launches from now on, on a device with these `attributes`."""
        self._callback = _CALLBACK(on_launch)  # lives as long as C may call it
        self._library.jitgen_stub_begin(self._callback)
        for number, value in attributes.items():
            self._library.jitgen_stub_set_attribute(number, value)

    def end(self) -> None:
        """Refuse launches."""
        self._library.jitgen_stub_begin(_CALLBACK())
        self._callback = None

    @property
    def unknown_attribute(self) -> int | None:
        """The first attribute that was asked for and that the device does not have."""
        number = int(self._library.jitgen_stub_unknown_attribute())
        return None if number < 0 else number


@cache
def stub() -> Stub:
    """
    Return the stub of this process; compile it if nobody has.

    Raises:
        ToolchainError: There is no C compiler, or it fails.
    """
    import tvm_ffi  # noqa: F401  # the stub reports errors through its library

    try:
        library = _kept()
    except (OSError, CacheError):
        library = None
    return Stub(library or _private())


def _private() -> ctypes.CDLL:
    """Compile the stub in a private folder, which may go as soon as the library is loaded."""
    with tempfile.TemporaryDirectory(prefix="jitgen-") as folder:
        path = Path(folder, "stub.so")
        _compile(path)
        return _load(path)


def _kept() -> ctypes.CDLL | None:
    """Return the stub that the cache keeps, made now if need be; None if it may keep nothing."""
    if settings.cache != "rw":
        return None
    root = Root(settings.cache_dir)
    root.create()
    folder = root.base / "emulator"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"stub-{_version()}.so"
    if not _is_intact(path):
        _publish(path)
    return _load(path)


def _version() -> str:
    """Return what the stub's bytes should depend on, as a file name."""
    build = (*_OPTIONS, platform.machine(), SOURCE.read_text(encoding="utf-8"))
    return hashlib.sha256("\0".join(build).encode("utf-8")).hexdigest()[:32]


def _is_intact(path: Path) -> bool:
    try:
        wanted = path.with_suffix(".sha256").read_text(encoding="ascii")
        return hashlib.sha256(path.read_bytes()).hexdigest() == wanted
    except (OSError, ValueError):
        return False


def _publish(path: Path) -> None:
    """Compile the stub and rename it into place, digest first: a reader sees all of it or none."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder, path.name)
        _compile(made)
        digest = made.with_suffix(".sha256")
        digest.write_text(hashlib.sha256(made.read_bytes()).hexdigest(), encoding="ascii")
        for file in (digest, made):
            os.replace(file, path.parent / file.name)  # noqa: PTH105  # atomic by its name


def _load(path: Path) -> ctypes.CDLL:
    """Load the stub so that libraries that are loaded later find its functions."""
    try:
        return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ToolchainError(f"the emulator's runtime cannot be loaded: {error}") from error


def _compile(path: Path) -> None:
    compiler = driver()
    if compiler is None:
        raise ToolchainError(
            "no C compiler (cc, gcc, clang) was found, and the emulator needs one to run the host "
            "part of kernels; install gcc, or set CC"
        )
    command = [compiler, *_OPTIONS, "-o", str(path), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise ToolchainError(f"{compiler} cannot compile the emulator's runtime: {lines[0]}")
