# SPDX-License-Identifier: Apache-2.0
"""Verified native code to a callable; beside the emulator, nothing else loads native code."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jitgen.build import toolchain
from jitgen.errors import ArtifactError, ToolchainError

if TYPE_CHECKING:
    from jitgen.cache import Entry

RUNTIME_LIBRARY = "libcute_dsl_runtime.so"


def unsupported_isa(entry: Entry) -> str:
    """Return why this CPU cannot run the host part of `entry`; empty when it can."""
    missing = sorted(set(entry.meta.host_isa) - toolchain.host_isa())
    return f"its host code may use {', '.join(missing)}, which this CPU lacks" if missing else ""


def load(entry: Entry) -> Callable[..., Any]:
    """
    Return the function of a verified entry.

    The file must have been checked against its digest just before: this runs its code.

    Raises:
        ArtifactError: The system's loader refused the file, or it does not export its symbol.
        ToolchainError: The runtime library, or for an unlinked object the compiler, is not
            installed.
    """
    _runtime()
    try:
        if entry.library.suffix == ".o":
            module = _load_object(entry.library)
        else:
            import tvm_ffi

            module = tvm_ffi.load_module(str(entry.library))
        function: Callable[..., Any] = module[entry.meta.symbol]
    except (AttributeError, KeyError, OSError, RuntimeError, ValueError) as error:
        raise ArtifactError(f"{entry.meta.name} cannot be loaded: {error}") from error
    return function


def _load_object(path: Path) -> Any:
    try:
        from cutlass.cute.runtime import load_module
    except ImportError as error:
        raise ToolchainError(
            f"{path.name} was kept unlinked, and loading it needs nvidia-cutlass-dsl ({error}); "
            "install gcc and compile it again"
        ) from error
    return load_module(str(path), enable_tvm_ffi=True)


@cache
def _runtime() -> ctypes.CDLL:
    """
    Load the compiler's runtime library, whose symbols every kernel refers to, for the whole
    process.
    """
    spec = importlib.util.find_spec("nvidia_cutlass_dsl")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = sorted(
        path
        for folder in folders
        for path in (
            *Path(folder).glob(f"cu*/lib/{RUNTIME_LIBRARY}"),
            Path(folder, "lib", RUNTIME_LIBRARY),
        )
        if path.exists()
    )
    if not found:
        raise ToolchainError(
            f"{RUNTIME_LIBRARY} was not found; run: pip install 'nvidia-cutlass-dsl>=4.8,<4.9'"
        )
    try:
        return ctypes.CDLL(str(found[-1]), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ToolchainError(f"{found[-1].name} cannot be loaded: {error}") from error
