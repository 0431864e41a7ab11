# SPDX-License-Identifier: Apache-2.0
"""A loaded kernel: something to call, and everything one may ask about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jitgen.config import Arch, Config

if TYPE_CHECKING:
    from jitgen.cache import Entry
    from jitgen.compile.inspect import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """
    A compiled kernel in this process.

    Calling it is one tvm-ffi call: ``kernel(a, b, a_scale, b_scale, groups, out)``, on GPU targets
    with the number of CTAs behind. It launches on the current stream, allocates nothing and does
    not wait.

    Attributes:
        config: What it was generated from.
        arch: The target.
        key: Digest of its key document.
        tier: Where this process got it from: ``disk`` or ``compiled``.
        entry: Its source, native code and record, as they were checked.
        function: The tvm-ffi function itself.
    """

    config: Config
    arch: Arch
    key: str
    tier: str
    entry: Entry = field(repr=False)
    function: Callable[..., Any] = field(repr=False)

    def __call__(self, *arguments: Any) -> None:
        """
        Launch the kernel; the entry checks dtypes, ranks, sizes, strides and devices by itself.
        """
        self.function(*arguments)

    @property
    def name(self) -> str:
        """The readable, unique name."""
        return self.config.name(self.arch)

    @property
    def source(self) -> str:
        """The generated Python source."""
        return self.entry.source

    @property
    def ptx(self) -> str:
        """
        The PTX of a GPU kernel; compiles the source again, for an artifact holds machine code only.
        """
        from jitgen.codegen.render import Source
        from jitgen.compile import inspect

        config = self.config
        source = Source(
            config=config, arch=self.arch, name=self.name, text=self.source, entry=config.op
        )
        return inspect.ptx(source)

    @property
    def sass(self) -> str:
        """The disassembly of a GPU kernel; needs ``pip install jitgen[inspect]``."""
        from jitgen.compile import inspect

        return inspect.sass(self.entry.library)

    @property
    def resources(self) -> Resources:
        """Registers, stack and barriers of a GPU kernel."""
        from jitgen.compile import inspect

        return inspect.resources(self.entry.library)
