# SPDX-License-Identifier: Apache-2.0
"""
The artifact that the emulator runs: native code for the host, PTX for the device, their source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from jitgen.errors import EmulationError

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
        source: The Python source that line information in the PTX refers to; empty if there is
            none.
        names: Names of the function's arguments in messages.
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
