# SPDX-License-Identifier: Apache-2.0
"""Makes artifacts for the emulator from a kernel, an entry of the cache, or a source."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING

from jitgen._version import __version__
from jitgen.codegen.render import Source
from jitgen.compile import toolchain
from jitgen.emulator import Artifact
from jitgen.errors import EmulationError
from jitgen.runtime.kernel import Kernel
from jitgen.support.documents import canonical_json
from jitgen.verify import cached

if TYPE_CHECKING:
    from jitgen.cache import Entry

_SCHEMA = 1
"""Version of the cached files; another number ignores older ones."""


def of_kernel(kernel: Kernel) -> Artifact:
    """Return the artifact of a kernel of this process; raises as `of_entry`."""
    config = kernel.config
    source = Source(
        config=config, arch=kernel.arch, name=kernel.name, text=kernel.source, entry=config.op
    )
    return of_entry(kernel.entry, source)


def of_entry(entry: Entry, source: Source) -> Artifact:
    """
    Return the artifact of a cache entry; its PTX comes from compiling its source once more, or is
    cached.

    Raises:
        ArtifactError: It is an entry for the cpu.
        EmulationError: It was not linked.
        ToolchainError: The compiler is not installed.
        CompileError: The compiler refused the source.
    """
    return Artifact(
        library=linked(entry.meta.library, entry.library),
        symbol=entry.meta.symbol,
        ptx=_ptx(source),
        source=source.text,
        names=source.config.arguments,
    )


def compiled(source: Source) -> Artifact:
    """
    Return the artifact of `source`, cached or compiled now.

    It is not an entry of the cache, because its PTX has line information; see
    `jitgen.verify.cached`.

    Raises:
        EmulationError: There is no linker.
        ToolchainError: The compiler is not installed.
        CompileError: The compiler refused the source.
    """
    name = _name(source)
    library, ptx = cached.find(f"{name}.so"), cached.find(f"{name}.ptx")
    if library is None or ptx is None:
        from jitgen.compile import compiler

        made = compiler.compile_source(source, wants_ptx=True, line_info=True)
        library, ptx = linked(made.library, made.files[made.library]), made.ptx.encode()
        if not made.why_private:
            cached.store(f"{name}.so", library)
            cached.store(f"{name}.ptx", ptx)
    return Artifact(
        library=library,
        symbol=source.name,
        ptx=ptx.decode(),
        source=source.text,
        names=source.config.arguments,
    )


@lru_cache(maxsize=64)
def compiled_once(source: Source) -> Artifact:
    """Call `compiled` and keep its result in this process."""
    return compiled(source)


@lru_cache(maxsize=64)
def _ptx(source: Source) -> str:
    name = f"{_name(source)}.ptx"
    found = cached.find(name)
    if found is None:
        from jitgen.compile import inspect

        found = inspect.ptx(source, line_info=True).encode()
        cached.store(name, found)
    return found.decode()


def _name(source: Source) -> str:
    """
    Return the file name for the artifact and PTX of `source`: a digest of all that they depend on.

    Raises:
        ToolchainError: The compiler is not installed.
    """
    document = {
        "schema": _SCHEMA,
        "name": source.name,
        "entry": source.entry,
        "text": source.text,
        "toolchain": dict(toolchain.versions()),
        "options": list(toolchain.options(source.arch)),
        "host": toolchain.host(source.arch),
        "jitgen": __version__,
    }
    return f"kernel-{hashlib.sha256(canonical_json(document).encode('ascii')).hexdigest()}"


def linked(name: str, library: bytes) -> bytes:
    """Return `library`; raises EmulationError if its file `name` is no shared library."""
    if not name.endswith(".so"):
        raise EmulationError(
            f"{name} was kept unlinked, and the emulator needs a shared library; install gcc and "
            "compile it again"
        )
    return library
