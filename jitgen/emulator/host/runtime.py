# SPDX-License-Identifier: Apache-2.0
"""
The stub runtime: compiled with the system's C compiler, cached by the host, loaded once for the
whole process.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from jitgen.emulator.host.native import Host, bring_runtime
from jitgen.errors import ToolchainError

SOURCE = Path(__file__).with_name("stub.c")
_OPTIONS = ("-shared", "-fPIC", "-O1", "-Wall")
_TIMEOUT_S = 60

OnLaunch = Callable[[int, bytes, int, int], None]
"""Takes the address of the launch's record, the kernel's name, the addresses of its arguments and
of the attributes that the host part gave it."""

OnTensorMap = Callable[[int], int]
"""Takes the address of what cuTensorMapEncodeTiled was given; returns an error or 0."""

_CALLBACK = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p
)
_MAP_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Stub:
    """
    The loaded library that replaces the CUDA runtime.

    It serves one launch at a time: callers must hold a lock from `begin` to `end`.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._callbacks: tuple[object, ...] = ()

    def begin(
        self, on_launch: OnLaunch, on_tensor_map: OnTensorMap, attributes: Mapping[int, int]
    ) -> None:
        """
        Call `on_launch` and `on_tensor_map` for launches and tensor maps from now on, on a device
        with `attributes`.
        """
        # they live as long as C may call them
        self._callbacks = _CALLBACK(on_launch), _MAP_CALLBACK(on_tensor_map)
        self._library.emulator_stub_begin(*self._callbacks)
        for number, value in attributes.items():
            self._library.emulator_stub_set_attribute(number, value)

    def end(self) -> None:
        """Refuse launches from now on."""
        self._library.emulator_stub_begin(_CALLBACK(), _MAP_CALLBACK())
        self._callbacks = ()

    @property
    def unknown_attribute(self) -> int | None:
        """
        The first attribute that was asked for and that the device does not have; None if there was
        none.
        """
        number = int(self._library.emulator_stub_unknown_attribute())
        return None if number < 0 else number

    @property
    def asserted_error(self) -> int:
        """The first error of a call whose success the host part asserts; 0 if there was none."""
        return int(self._library.emulator_stub_asserted_error())


_stub: Stub | None = None
"""The stub of this process: libraries that are loaded later use the functions of the first."""


def stub(host: Host) -> Stub:
    """
    Return the stub of this process; the first call loads it with `host`. The caller holds a lock.

    Raises:
        ToolchainError: There is no C compiler, it fails, or the stub cannot be loaded.
    """
    global _stub
    if _stub is None:
        _stub = Stub(_load(stub_library(host), host))
    return _stub


def stub_library(host: Host) -> bytes:
    """Return the stub as a shared library: cached by `host`, or compiled now."""
    return host.cached(f"stub-{_version()}", lambda: compile_stub(host))


def _version() -> str:
    """
    Return a digest of the stub's source, the compiler's options and the CPU's architecture, for a
    file name.
    """
    build = (*_OPTIONS, platform.machine(), SOURCE.read_text(encoding="utf-8"))
    return hashlib.sha256("\0".join(build).encode("utf-8")).hexdigest()[:32]


def _load(content: bytes, host: Host) -> ctypes.CDLL:
    """
    Load the stub so that libraries that are loaded later find its functions.

    The loaded file is a private copy of the checked bytes, which can be removed at once.
    """
    bring_runtime()
    with host.folder() as folder:
        path = folder / "stub.so"
        path.write_bytes(content)
        try:
            return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise ToolchainError(f"the emulator's runtime cannot be loaded: {error}") from error


def compile_stub(host: Host) -> bytes:
    """
    Compile the stub.

    Raises:
        ToolchainError: There is no C compiler, or it fails.
    """
    compiler = host.compiler()
    if compiler is None:
        raise ToolchainError(
            "no C compiler (cc, gcc, clang) was found, and the emulator needs one to run the host "
            "part of kernels; install gcc, or set CC"
        )
    with host.folder() as folder:
        path = folder / "stub.so"
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
        return path.read_bytes()
