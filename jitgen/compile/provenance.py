# SPDX-License-Identifier: Apache-2.0
"""
Identifies the builder of an artifact by digests of the compiler and the linker, not by versions.

A version only names a release. A patched library, a swapped linker or a half-finished upgrade has
the same version and generates other code, under the same key. So an entry records digests of
contents, and a process that differs from the first to publish for these versions does not publish
(see `jitgen.cache.builders`).

Reading the compiler's 230 MB takes a fifth of a second. So the digest is cached with a fingerprint
of sizes, times and inode numbers of all files, and computed anew when one of them changes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Protocol

from jitgen.compile.linker import driver
from jitgen.support.failing import is_passing

_CHUNK = 2**20
_TIMEOUT_S = 10


class Memory(Protocol):
    """A store of digests: `jitgen.cache.builders.Builders`."""

    def digest(self, fingerprint: str) -> str | None:
        """Return the digest that is stored for a fingerprint, if there is one."""

    def remember(self, fingerprint: str, digest: str) -> None:
        """Store the digest of a fingerprint."""


def builder(memory: Memory) -> dict[str, str]:
    """
    Return the digests of ``compiler`` and ``linker``, as they are installed now.

    Raises:
        OSError: One of their files cannot be read now.
    """
    parts = {"compiler": compiler_files(), "linker": _linker_files(driver())}
    return {name: _digest(files, memory) for name, files in parts.items()}


@cache
def compiler_files() -> tuple[Path, ...]:
    """
    Return the files of native and Python code of the compiler, and of tvm-ffi, which makes its
    calls.

    The module that is imported as ``cutlass`` need not belong to the installed compiler.
    """
    found: set[Path] = set()
    for package, part in (("nvidia_cutlass_dsl", ""), ("cutlass", ""), ("tvm_ffi", "lib")):
        with suppress(ValueError):  # a module without a spec
            spec = importlib.util.find_spec(package)
            for folder in (spec.submodule_search_locations or ()) if spec else ():
                code = (path for path in _files_below(Path(folder, part)) if _is_code(path))
                found.update(path.resolve() for path in code)
    return tuple(sorted(found))


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield every file below `folder`; a folder that cannot be read just now raises OSError."""

    def fail(error: OSError) -> None:
        if is_passing(error):
            raise error

    for path, _, names in os.walk(folder, onerror=fail):
        yield from (Path(path, name) for name in names)


def _is_code(path: Path) -> bool:
    is_code = path.suffix == ".py" or ".so" in path.name
    is_profiler = "iket" in path.parts  # which compiles do not use
    return is_code and not is_profiler and path.is_file()


@cache
def _linker_files(compiler: str | None) -> tuple[Path, ...]:
    """
    Return the files of the driver `compiler` and of the linker that it runs; none without a driver.

    Raises:
        OSError: The driver cannot be run just now: a guess would be stored as the builder of these
            versions, for every process.
    """
    if compiler is None:
        return ()
    command = [compiler, "-print-prog-name=ld"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
        linker = Path(done.stdout.strip())
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{compiler} does not say which linker it runs: {error}") from None
    except (OSError, ValueError) as error:
        if is_passing(error):
            raise
        linker = Path()
    else:
        if done.returncode < 0:
            raise ChildProcessError(f"{compiler} was killed by signal {-done.returncode}")
    if not linker.is_absolute():
        import shutil

        linker = Path(shutil.which(linker.name or "ld") or "/")
    return tuple(path.resolve() for path in (Path(compiler), linker) if path.is_file())


def _digest(files: tuple[Path, ...], memory: Memory) -> str:
    fingerprint = hashlib.sha256("\n".join(_facts(files)).encode()).hexdigest()
    known = memory.digest(fingerprint)
    if known is None:
        known = _read(files)
        memory.remember(fingerprint, known)
    return known


def _facts(files: tuple[Path, ...]) -> Iterator[str]:
    for path in files:
        try:
            found = path.stat()
        except OSError:
            yield f"{path} missing"
            continue
        times = f"{found.st_mtime_ns} {found.st_ctime_ns}"
        yield f"{path} {found.st_dev} {found.st_ino} {found.st_size} {times}"


def _read(files: tuple[Path, ...]) -> str:
    """
    Return the digest of the names and contents of `files`; their folders do not count, so that
    hosts agree.
    """
    whole = hashlib.sha256()
    for path in files:
        digest = hashlib.sha256()
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
        whole.update(f"{path.name} {digest.hexdigest()}\n".encode())
    return whole.hexdigest()
