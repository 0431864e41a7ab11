# SPDX-License-Identifier: Apache-2.0
"""What the emulator runs: native code for the host, PTX for the device, and the source of both."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from jitgen.build.render import Source
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
        library: ``kernel.so``: the host part, whose code is run, so it must be trusted.
        symbol: The function in it.
        ptx: The device part.
        source: The Python source that line information in the PTX speaks of; empty if there is
            none.
        names: What to call the function's arguments in messages.
    """

    library: Path
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
        library=_linked(entry.library),
        symbol=entry.meta.symbol,
        ptx=_ptx(source),
        source=source.text,
        names=_GROUPED_GEMM,
    )


@contextmanager
def compiled(source: Source) -> Iterator[Artifact]:
    """
    Yield the artifact of `source`, compiled into a folder that is removed at the end.

    Raises:
        EmulationError: There is no linker.
        ToolchainError: The compiler is not installed.
        CompileError: The compiler refused the source.
    """
    from jitgen.build import compiler

    with TemporaryDirectory(prefix="jitgen-") as folder:
        directory = Path(folder)
        made = compiler.compile_source(source, directory, keep_ptx=True, line_info=True)
        yield Artifact(
            library=_linked(directory / made.library),
            symbol=made.symbol,
            ptx=Path(directory, compiler.PTX_FILE).read_text(encoding="utf-8"),
            source=source.text,
            names=_GROUPED_GEMM,
        )


@lru_cache(maxsize=64)
def _ptx(source: Source) -> str:
    from jitgen.build import inspect

    return inspect.ptx(source, line_info=True)


def _linked(library: Path) -> Path:
    if library.suffix != ".so":
        raise EmulationError(
            f"{library.name} was kept unlinked, and the emulator needs a shared library; install "
            "gcc and compile it again"
        )
    return library
