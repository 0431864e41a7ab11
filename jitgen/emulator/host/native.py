# SPDX-License-Identifier: Apache-2.0
"""
The interface to the machine that the emulator runs on, and the calls of tvm-ffi.

The defaults need nothing but tvm-ffi and a C compiler. A caller with a better loader, another
compiler or a cache for the stub runtime passes a `Host`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import Protocol

from jitgen.emulator.host.tensors import OnGpu

Function = Callable[..., object]
"""A function of a library; it checks its arguments itself."""


class Library(Protocol):
    """A loaded module of tvm-ffi."""

    def __getitem__(self, name: str) -> Function:
        """Return the function of that name."""


def load_copy(content: bytes, _name: str) -> Library:
    """
    Load a library from a temporary file, which is removed before this returns.

    Args:
        content: Bytes of the library.
        _name: Its name for callers; other loaders show it.
    """
    import tvm_ffi

    with tempfile.TemporaryDirectory(prefix="emulator-") as folder:
        path = Path(folder, "host.so")
        path.write_bytes(content)
        module: Library = tvm_ffi.load_module(str(path))
    tvm_ffi.get_global_func("ffi.ModuleGlobalsAdd")(module)  # it is unknown when it is last used
    return module


def c_compiler() -> str | None:
    """Return the path of $CC, or of cc if CC is not set; None if there is no such program."""
    return shutil.which(os.environ.get("CC") or "cc")


def made(_name: str, make: Callable[[], bytes]) -> bytes:
    """Return what `make` returns: nothing is cached."""
    return make()


@contextmanager
def temporary() -> Iterator[Path]:
    """Yield a new folder where temporary files belong; it is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="emulator-") as folder:
        yield Path(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """
    The machine that the emulator runs on.

    Attributes:
        load: Takes the bytes of a shared library and the name of its function; returns a module of
            tvm-ffi, which stays for the process's life. The code runs: it must be trusted.
        compiler: Returns the path of a C compiler, None if there is none.
        cached: Takes a file name without its ending and a function that makes a library; returns
            the library, from a cache or made. The name changes whenever its bytes should.
        folder: Yields a folder to compile the stub in, and to load it from: no other user may be
            able to exchange what is in it.
    """

    load: Callable[[bytes, str], Library] = load_copy
    compiler: Callable[[], str | None] = c_compiler
    cached: Callable[[str, Callable[[], bytes]], bytes] = made
    folder: Callable[[], AbstractContextManager[Path]] = temporary


STANDALONE = Host()
"""A host without a cache that processes share."""


def bring_runtime() -> None:
    """Load the library of tvm-ffi, through which the stub reports errors."""
    import tvm_ffi  # noqa: F401


def call(function: Function, arguments: Sequence[object]) -> None:
    """Call a function of a loaded module; it sees `OnGpu` as tensors of a GPU."""
    import tvm_ffi

    function(*(tvm_ffi.from_dlpack(x) if isinstance(x, OnGpu) else x for x in arguments))


def is_from_host_part(error: BaseException) -> bool:
    """Return whether the host part of a kernel raised `error`, rather than the emulator itself."""
    return any(frame.f_code is call.__code__ for frame, _ in walk_tb(error.__traceback__))
