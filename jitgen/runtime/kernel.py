# SPDX-License-Identifier: Apache-2.0
"""
Loads verified native code as a `Kernel`: a callable with its source, PTX, SASS and resources.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from jitgen.compile import toolchain
from jitgen.config import Arch, Config
from jitgen.config.operation import loaded, operation
from jitgen.errors import ArtifactError, InputError, ResourceError, ToolchainError
from jitgen.runtime import native
from jitgen.support.boundary import boundary, describe
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.cache import Entry
    from jitgen.compile.inspect import Resources


@frozen
class Kernel:
    """
    A compiled kernel in this process.

    Calling it, ``kernel(a, b, a_scale, b_scale, groups, out)``, on GPU targets followed by the
    number of CTAs, launches on the current stream and does not wait. Arguments are checked by the
    same rules as in a public call with this config, with an `InputError`; that takes some 100 us.
    `function` is the call without these checks, which public calls use after one check.

    Attributes:
        config: The config that it was generated from.
        arch: The target.
        key: Digest of its key document.
        tier: The tier from which this process got it, such as ``disk`` or ``compiled``.
        entry: Its verified source, native code and record.
        function: The tvm-ffi function. It checks types, numbers of dimensions, strides and equal
            sizes, and nothing else: other wrong arguments crash the process or overwrite its
            memory.
    """

    config: Config
    arch: Arch
    key: str
    tier: str
    entry: Entry = field(repr=False)
    function: Callable[..., object] = field(repr=False)

    def __call__(self, *arguments: object) -> None:
        """
        Launch the kernel.

        Raises:
            InputError: An argument is wrong; the message says which, what is required, and what was
                given. Or the operation belongs to another package that does not describe its
                arguments.
        """
        with boundary(self.config.op):
            _check(self, arguments)
            try:
                self.function(*arguments)
            except (TypeError, ValueError) as error:
                raise InputError(
                    "arguments", f"do not fit {self.name}: {describe(error)}"
                ) from error

    @property
    def name(self) -> str:
        """Readable, unique name of the kernel."""
        return self.config.name(self.arch)

    @property
    def source(self) -> str:
        """Generated Python source of the kernel."""
        return self.entry.source

    @property
    def ptx(self) -> str:
        """
        The PTX of a GPU kernel. The source is compiled again for it, because an artifact has only
        machine code.
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


def _check(kernel: Kernel, arguments: tuple[object, ...]) -> None:
    """Check arguments that the native function of `kernel` does not check itself."""
    found = operation(kernel.config.op)
    if not found.direct:
        raise InputError(
            "kernel",
            f"{kernel.name} cannot be called directly, for {found.name} does not say what is to be "
            "looked at before (Operation.direct): call what its package offers, or, knowing what "
            "you do, kernel.function",
        )
    loaded(found.direct)(kernel.config, kernel.arch, arguments)


RUNTIME_LIBRARY = "libcute_dsl_runtime.so"


def unsupported_isa(entry: Entry) -> str:
    """
    Return why this CPU cannot run the host part of `entry`; empty if it can.

    The CPU is assumed not to have a level that this version does not know.
    """
    missing = unsupported_levels(entry.meta.host_isa)
    return f"its host code may use {', '.join(missing)}, which this CPU lacks" if missing else ""


def unsupported_levels(levels: Iterable[str]) -> list[str]:
    """Return the `levels`, as entries record them, that this CPU does not support."""
    return [level for level in levels if not toolchain.runs_level(level)]


_loaded: dict[tuple[str, str, str], Callable[..., object]] = {}
"""
Loaded functions by the kind of library, the symbol, and the digest of the loaded bytes, shared by
all sessions and threads. Nothing is ever unloaded; the bytes themselves are not kept in memory.
"""


def load(entry: Entry) -> Callable[..., object]:
    """
    Return the function of a verified entry. This runs code of the library, from exactly the bytes
    that were checked.

    A library is loaded once per process for all sessions and caches, because it takes three
    mappings, and a process may have only 65,530. Threads that load it at the same time may each
    load it.

    Raises:
        ArtifactError: The bytes are not a library, or do not export their symbol.
        ResourceError: The system's loader refused a good library, which this host, or this process
            with its limits, cannot map.
        ToolchainError: The runtime library, or for an unlinked object the compiler, is not
            installed.
    """
    meta = entry.meta
    what = (meta.library, meta.symbol, meta.files[meta.library]["sha256"])
    function = _loaded.get(what)
    return _loaded.setdefault(what, _load(entry)) if function is None else function


def _load(entry: Entry) -> Callable[..., object]:
    load_runtime_library()
    try:
        if entry.meta.library.endswith(".o"):
            module = _load_object(entry.library)
        else:
            module = native.load(entry.library, entry.meta.name)
        function: Callable[..., object] = module[entry.meta.symbol]
    except (AttributeError, KeyError, ValueError) as error:
        raise ArtifactError(f"{entry.meta.name} cannot be loaded: {describe(error)}") from error
    except (OSError, RuntimeError) as error:
        raise ResourceError(
            f"{entry.meta.name} cannot be loaded here: {describe(error)}"
        ) from error
    return function


def _load_object(content: bytes) -> native.Library:
    """Load an object that was not linked, with the compiler's own loader."""
    try:
        from cutlass.cute.runtime import load_module
    except ImportError as error:
        raise ToolchainError(
            f"the kernel was kept unlinked, and loading it needs nvidia-cutlass-dsl ({error}); "
            "install gcc and compile it again"
        ) from error
    from jitgen.cache.scratch import scratch

    with scratch() as folder:
        path = folder / "kernel.o"
        path.write_bytes(content)
        module: native.Library = load_module(str(path), enable_tvm_ffi=True)
        return module


@cache
def load_runtime_library() -> ctypes.CDLL:
    """
    Load the compiler's runtime library, whose symbols every kernel refers to, for the whole
    process.
    """
    found = runtime_library()
    if found is None:
        raise ToolchainError(
            f"{RUNTIME_LIBRARY} was not found; run: pip install 'nvidia-cutlass-dsl>=4.8,<4.9', or "
            "see docs/install.md for a machine that only runs kernels"
        )
    try:
        return ctypes.CDLL(str(found), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ToolchainError(f"{found.name} cannot be loaded: {error}") from error


def runtime_library() -> Path | None:
    """
    Return the path of the runtime library: that of the code generator in use, otherwise that of any
    generator; None if there is none.
    """
    from jitgen.compile.toolchain import flavour

    spec = importlib.util.find_spec("nvidia_cutlass_dsl")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    own = f"cu{flavour()}"
    found = sorted(
        (path for folder in folders for path in Path(folder).glob(f"cu*/lib/{RUNTIME_LIBRARY}")),
        key=lambda path: (path.parts[-3] != own, path),
    )
    return found[0] if found else None
