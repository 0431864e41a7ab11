# SPDX-License-Identifier: Apache-2.0
"""Verified native code to a callable."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jitgen.boundary import words
from jitgen.compile import toolchain
from jitgen.errors import ArtifactError, ResourceError, ToolchainError
from jitgen.runtime import native

if TYPE_CHECKING:
    from jitgen.cache import Entry

RUNTIME_LIBRARY = "libcute_dsl_runtime.so"


def unsupported_isa(entry: Entry) -> str:
    """
    Return why this CPU cannot run the host part of `entry`; empty when it can.

    A level that this version does not know counts as one that the CPU does not have.
    """
    missing = [level for level in entry.meta.host_isa if not toolchain.runs_level(level)]
    return f"its host code may use {', '.join(missing)}, which this CPU lacks" if missing else ""


def load(entry: Entry) -> Callable[..., Any]:
    """
    Return the function of a verified entry: this runs its code, the very bytes that were checked.

    Raises:
        ArtifactError: They are no library, or do not export their symbol.
        ResourceError: The system's loader refused them: a good library that this host, or this
            process with its limits, cannot map.
        ToolchainError: The runtime library, or for an unlinked object the compiler, is not
            installed.
    """
    _runtime()
    try:
        if entry.meta.library.endswith(".o"):
            module = _load_object(entry.library)
        else:
            module = native.load(entry.library, entry.meta.name)
        function: Callable[..., Any] = module[entry.meta.symbol]
    except (AttributeError, KeyError, ValueError) as error:
        raise ArtifactError(f"{entry.meta.name} cannot be loaded: {words(error)}") from error
    except (OSError, RuntimeError) as error:
        raise ResourceError(f"{entry.meta.name} cannot be loaded here: {words(error)}") from error
    return function


def _load_object(content: bytes) -> Any:
    """Load an object that could not be linked: the compiler's own loader can."""
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
        return load_module(str(path), enable_tvm_ffi=True)


@cache
def _runtime() -> ctypes.CDLL:
    """
    Load the compiler's runtime library, whose symbols every kernel refers to, for the whole
    process.
    """
    found = runtime_libraries()
    if not found:
        raise ToolchainError(
            f"{RUNTIME_LIBRARY} was not found; run: pip install 'nvidia-cutlass-dsl>=4.8,<4.9'"
        )
    try:
        return ctypes.CDLL(str(found[-1]), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ToolchainError(f"{found[-1].name} cannot be loaded: {error}") from error


def runtime_libraries() -> list[Path]:
    """Return where the compiler's runtime library is installed; the last one is used."""
    spec = importlib.util.find_spec("nvidia_cutlass_dsl")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return sorted(
        path
        for folder in folders
        for path in (
            *Path(folder).glob(f"cu*/lib/{RUNTIME_LIBRARY}"),
            Path(folder, "lib", RUNTIME_LIBRARY),
        )
        if path.exists()
    )
