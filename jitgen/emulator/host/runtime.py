# SPDX-License-Identifier: Apache-2.0
"""
The stub runtime: compiled once with the system's C compiler, kept in the cache, loaded for the
whole process.

It lies beside compiled kernels, under a root that nobody else can write to, with its SHA-256, and
what has another digest is compiled again. Where the cache may not be written, this process compiles
one for itself.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from jitgen.cache.root import Root
from jitgen.cache.trust import Damaged
from jitgen.compile.linker import driver
from jitgen.errors import CacheError, SettingError, ToolchainError
from jitgen.settings import settings

SOURCE = Path(__file__).with_name("stub.c")
_OPTIONS = ("-shared", "-fPIC", "-O1", "-Wall")
_TIMEOUT_S = 60
_MOST_BYTES = 2**24

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

    content = None
    if settings.cache == "rw":
        with suppress(OSError, CacheError, SettingError):
            content = _kept()
    return Stub(_load(content or _compiled()))


def _kept() -> bytes:
    """
    Return the stub that the cache keeps, made now if need be.

    Raises:
        OSError, CacheError, SettingError: It keeps nothing.
    """
    name = f"stub-{_version()}"
    with (
        Root(settings.cache_dir).create() as base,
        base.service("emulator") as folder,
        base.service("tmp") as drafts,
    ):
        with suppress(OSError, Damaged):
            content = folder.read(f"{name}.so", _MOST_BYTES)
            if folder.read(f"{name}.sha256", 64) == _digest(content):
                return content
        content = _compiled()
        folder.replace(f"{name}.so", content, drafts, sync=False)
        folder.replace(f"{name}.sha256", _digest(content), drafts, sync=False)
        return content


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode("ascii")


def _version() -> str:
    """Return what the stub's bytes should depend on, as a file name."""
    build = (*_OPTIONS, platform.machine(), SOURCE.read_text(encoding="utf-8"))
    return hashlib.sha256("\0".join(build).encode("utf-8")).hexdigest()[:32]


def _load(content: bytes) -> ctypes.CDLL:
    """
    Load the stub so that libraries that are loaded later find its functions.

    What is loaded is a private copy of the bytes that were checked, which may go at once.
    """
    with tempfile.TemporaryDirectory(prefix="jitgen-") as folder:
        path = Path(folder, "stub.so")
        path.write_bytes(content)
        try:
            return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise ToolchainError(f"the emulator's runtime cannot be loaded: {error}") from error


def _compiled() -> bytes:
    with tempfile.TemporaryDirectory(prefix="jitgen-") as folder:
        path = Path(folder, "stub.so")
        _compile(path)
        return path.read_bytes()


def _compile(path: Path) -> None:
    compiler = driver()
    if compiler is None:
        raise ToolchainError(
            "no C compiler (cc, gcc, clang) was found, and the emulator needs one to run the host "
            "part of kernels; install gcc, or set CC"
        )
    command = [compiler, *_OPTIONS, "-o", str(path), str(SOURCE)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"{compiler} cannot be run: {error}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise ToolchainError(f"{compiler} cannot compile the emulator's runtime: {lines[0]}")
