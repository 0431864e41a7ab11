# SPDX-License-Identifier: Apache-2.0
"""What the emulator runs: native code for the host, PTX for the device, and the source of both."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from jitgen.codegen.render import Source
from jitgen.errors import EmulationError

if TYPE_CHECKING:
    from jitgen.cache import Entry

_TARGET = re.compile(r"^\.target\s+(sm_\d+\w?)", re.MULTILINE)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """
    A compiled kernel with its PTX.

    Attributes:
        library: The host part, a shared library, whose code is run, so it must be trusted.
        symbol: The function in it.
        ptx: The device part.
        source: The Python source that line information in the PTX speaks of; empty if there is
            none.
        names: What to call the function's arguments in messages.
    """

    library: bytes = field(repr=False)
    symbol: str
    ptx: str = field(repr=False)
    source: str = field(default="", repr=False)
    names: tuple[str, ...] = ()

    @property
    def arch(self) -> str:
        """The target that the PTX names."""
        found = _TARGET.search(self.ptx)
        if found is None:
            raise EmulationError(f"the PTX of {self.symbol} names no target")
        return found[1]

    @property
    def entries(self) -> list[str]:
        """Names of the kernels in the PTX."""
        return _ENTRY.findall(self.ptx)


_GROUPED_GEMM = ("a", "b", "a_scale", "b_scale", "groups", "out")


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
        names=_GROUPED_GEMM,
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
        names=_GROUPED_GEMM,
    )


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
