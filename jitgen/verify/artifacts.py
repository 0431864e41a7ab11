# SPDX-License-Identifier: Apache-2.0
"""What the emulator takes, made of what jitgen has: a kernel, an entry of the cache, a source."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from jitgen.codegen.render import Source
from jitgen.emulator.artifact import Artifact
from jitgen.errors import EmulationError
from jitgen.runtime.kernel import Kernel

if TYPE_CHECKING:
    from jitgen.cache import Entry

_NAMES = {
    "grouped_gemm": ("a", "b", "a_scale", "b_scale", "groups", "out"),
    "silu_mul_quantize": ("x", "groups", "q", "scale"),
}
"""What the emulator's findings call the first arguments of an operation's entry."""


def of_kernel(kernel: Kernel) -> Artifact:
    """Return the artifact of a kernel of this process; see `of_entry`."""
    config = kernel.config
    source = Source(
        config=config, arch=kernel.arch, name=kernel.name, text=kernel.source, entry=config.op
    )
    return of_entry(kernel.entry, source)


def of_entry(entry: Entry, source: Source) -> Artifact:
    """
    Return the artifact of a cache entry; its PTX comes from compiling its source once more.

    Raises:
        ArtifactError: It is an entry for the cpu.
        EmulationError: It was not linked.
        ToolchainError: The compiler is not installed.
        CompileError: The compiler refused the source.
    """
    return Artifact(
        library=_linked(entry.meta.library, entry.library),
        symbol=entry.meta.symbol,
        ptx=_ptx(source),
        source=source.text,
        names=_NAMES.get(source.config.op, ()),
    )


def compiled(source: Source) -> Artifact:
    """
    Return the artifact of `source`, compiled now and kept nowhere.

    Raises:
        EmulationError: There is no linker.
        ToolchainError: The compiler is not installed.
        CompileError: The compiler refused the source.
    """
    from jitgen.compile import compiler

    made = compiler.compile_source(source, wants_ptx=True, line_info=True)
    return Artifact(
        library=_linked(made.library, made.files[made.library]),
        symbol=made.symbol,
        ptx=made.ptx,
        source=source.text,
        names=_NAMES.get(source.config.op, ()),
    )


@lru_cache(maxsize=64)
def compiled_once(source: Source) -> Artifact:
    """Return what `compiled` does, made by the first call and remembered."""
    return compiled(source)


@lru_cache(maxsize=64)
def _ptx(source: Source) -> str:
    from jitgen.compile import inspect

    return inspect.ptx(source, line_info=True)


def _linked(name: str, library: bytes) -> bytes:
    if not name.endswith(".so"):
        raise EmulationError(
            f"{name} was kept unlinked, and the emulator needs a shared library; install gcc and "
            "compile it again"
        )
    return library
