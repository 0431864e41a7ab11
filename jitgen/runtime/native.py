# SPDX-License-Identifier: Apache-2.0
"""
Maps native code: exactly the bytes that were checked.

The system's loader takes a path. But the file at a path may be replaced at any time; a file that is
damaged while it is mapped kills the process; and for a path that was loaded before, the loader
returns the old library. So the bytes are written to a nameless file in memory that no process can
change any more (memfd_create(2), F_ADD_SEALS in fcntl(2)). The loader gets it by its descriptor,
under a path that is spelled differently each time. This also works if folders are mounted noexec.

If the system does not support this, a private copy is written, loaded and removed.
"""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Protocol, cast

from jitgen.compile import elf
from jitgen.errors import ToolchainError

_ADD_SEALS, _SEALS = 1033, 0x1 | 0x2 | 0x4 | 0x8  # F_SEAL_SEAL, _SHRINK, _GROW, _WRITE
_NOEXEC_SEAL = 0x8  # MFD_NOEXEC_SEAL: mapping is allowed, running it as a program is not
_BITS = 32  # of the number that makes a path unlike all others
_NAME = 200  # bytes of a name at most; the kernel allows 249

_LOADER, _KEEPER = "ffi.Module.load_from_file.so", "ffi.ModuleGlobalsAdd"

_numbers = itertools.count()


class Library(Protocol):
    """A loaded module of tvm-ffi."""

    def __getitem__(self, name: str) -> Callable[..., object]:
        """Return the function of that name."""
        ...


def load(content: bytes, name: str) -> Library:
    """
    Return the tvm-ffi module of the shared library `content`; it stays for the process's life.

    Args:
        content: The library, whose code is run: it must be trusted.
        name: Name that profilers and /proc/self/maps show.

    Raises:
        ValueError: It is not a complete library.
        OSError, RuntimeError: The system's loader refused it.
        ResourceError: No folder has room for a copy.
        ToolchainError: The tvm-ffi that is installed cannot load libraries.
    """
    import tvm_ffi

    elf.check_library(content)
    try:
        descriptor = _sealed(content, name)
    except (OSError, AttributeError):
        return _load_copy(content)
    try:
        module = _load_file(tvm_ffi, _unique_path(descriptor))
    except (OSError, RuntimeError):
        return _load_copy(content)  # if the library is at fault, its error says so
    finally:
        os.close(descriptor)
    _function(tvm_ffi, _KEEPER)(module)  # never unloaded: when it is used last is unknown
    return module


def _load_file(tvm_ffi: ModuleType, path: str) -> Library:
    """Load `path`, whose name does not end in .so, as a shared library."""
    return cast("Library", _function(tvm_ffi, _LOADER)(path, "so"))


def _function(tvm_ffi: ModuleType, name: str) -> Callable[..., object]:
    """
    Return a function of tvm-ffi. A missing one is a ToolchainError: a ValueError would blame the
    library, which would be quarantined.
    """
    try:
        found: Callable[..., object] = tvm_ffi.get_global_func(name)
    except ValueError as error:
        raise ToolchainError(
            f"the apache-tvm-ffi that is installed cannot load kernels ({error}); run: pip install "
            "--force-reinstall 'apache-tvm-ffi>=0.1.15,<0.2'"
        ) from None
    return found


def _sealed(content: bytes, name: str) -> int:
    """Return the descriptor of a nameless file in memory with the unchangeable bytes `content`."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    label = name.encode("ascii", "replace").replace(b"\0", b"?")[:_NAME].decode("ascii")
    try:
        descriptor = os.memfd_create(label, flags | _NOEXEC_SEAL)
    except OSError:  # a kernel before 6.3 does not know the flag
        descriptor = os.memfd_create(label, flags)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        fcntl.fcntl(descriptor, _ADD_SEALS, _SEALS)
        os.stat(f"/proc/self/fd/{descriptor}")  # noqa: PTH116  # is there a way to it?
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _unique_path(descriptor: int) -> str:
    """
    Return a path of `descriptor` that was not used before in this process.

    The loader assumes that equal paths are the same library, but numbers of descriptors are reused.
    ``/./`` means the same as ``/``, so a serial number is encoded in the path by these two, bit by
    bit.
    """
    number = next(_numbers)
    spelled = "".join("/." if number >> bit & 1 else "/" for bit in range(_BITS))
    return f"/proc/self/fd{spelled}/{descriptor}"


def _load_copy(content: bytes) -> Library:
    import tvm_ffi

    from jitgen.cache.scratch import scratch

    with scratch() as folder:
        path = folder / f"{os.urandom(16).hex()}.so"
        path.write_bytes(content)
        module: Library = tvm_ffi.load_module(str(path))
        return module
