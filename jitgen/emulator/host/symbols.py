# SPDX-License-Identifier: Apache-2.0
"""
Lists the functions that the host part of an artifact calls, and makes a copy that calls the stub.

A process that runs cpu kernels holds the real runtime library, whose symbols win over any that are
loaded later. So the names that the host part looks up are changed, in a private copy, to others of
the same length, which only the stub has; nothing else in the file moves. Names of symbols that a
library merely uses are in no hash table, so nothing else has to change.

Source: System V ABI, chapters "Object Files" and "Dynamic Linking" (64-bit ELF, little-endian).
"""

from __future__ import annotations

import ctypes
import ctypes.util
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata

from jitgen.emulator.host import elf
from jitgen.errors import EmulationError, UnsupportedPtx

STUBBED = {
    "CuteDSLRT_TVMFFISetRaisedCudaError": "EmulDSLRT_TVMFFISetRaisedCudaError",
    "_cuKernelGetAttribute": "_emKernelGetAttribute",
    "_cuTensorMapEncodeTiled": "_emTensorMapEncodeTiled",
    "_cudaDeviceGetAttribute": "_emulDeviceGetAttribute",
    "_cudaFuncSetAttribute": "_emulFuncSetAttribute",
    "_cudaGetDevice": "_emulGetDevice",
    "_cudaKernelSetAttributeForDevice": "_emulKernelSetAttributeForDevice",
    "_cudaLaunchKernelEx": "_emulLaunchKernelEx",
    "_cudaLibraryGetKernel": "_emulLibraryGetKernel",
    "_cudaLibraryLoadData": "_emulLibraryLoadData",
    "_cudaSetDevice": "_emulSetDevice",
    "cuda_dialect_assert_success": "emul_dialect_assert_success",
    "cuda_dialect_init_library_once": "emul_dialect_init_library_once",
    "cuda_dialect_unload_library_once": "emul_dialect_unload_library_once",
}
"""Functions of the compiler's runtime library, and the stub's that stand for them."""

COMPILER = "nvidia-cutlass-dsl"
"""Python distribution of the compiler that makes the artifacts."""

CALLING_CONVENTION = "TVMFFI"
"""Prefix of what libtvm_ffi provides, in every process that calls a kernel."""

_UNDEFINED = 0
_WEAK = 2


@dataclass(frozen=True, slots=True)
class Symbol:
    """
    A dynamic symbol.

    Attributes:
        name: Its name.
        offset: Offset in the file at which the name begins.
        is_undefined: Whether another library has to provide it.
        is_weak: Whether the library works without it.
    """

    name: str
    offset: int
    is_undefined: bool
    is_weak: bool


def symbols(library: bytes) -> list[Symbol]:
    """
    Return the dynamic symbols of a shared library.

    Raises:
        EmulationError: `library` is not a shared library, or is truncated.
    """
    try:
        return list(_symbols(library))
    except (struct.error, ValueError, IndexError) as error:
        raise EmulationError(f"the host part is no shared library for this CPU: {error}") from None


def _symbols(library: bytes) -> Iterator[Symbol]:
    if not library.startswith(elf.MAGIC):
        raise ValueError("it is no 64-bit ELF file")
    found = list(elf.symbols(library, elf.sections(library), elf.DYNAMIC_SYMBOLS))
    if not found:
        raise ValueError("it has no dynamic symbols")
    for symbol in found[1:]:  # the first is empty
        yield Symbol(
            name=symbol.name,
            offset=symbol.offset,
            is_undefined=symbol.section == _UNDEFINED,
            is_weak=symbol.info >> 4 == _WEAK,
        )


def with_stub(library: bytes) -> bytes:
    """
    Return `library` with the names of the runtime's functions replaced by those of the stub.

    Raises:
        EmulationError: `library` is not a shared library, or stores such a name as the end of
            another.
        UnsupportedPtx: It calls functions that the stub does not have.
    """
    wanted = [symbol for symbol in symbols(library) if symbol.is_undefined]
    _refuse_unknown(wanted)
    changed = bytearray(library)
    for symbol in wanted:
        if symbol.name in STUBBED:
            new = STUBBED[symbol.name].encode("ascii")
            changed[symbol.offset : symbol.offset + len(new)] = new
    lost = {s.name for s in symbols(library)} - {s.name for s in symbols(bytes(changed))}
    if shared := sorted(lost - set(STUBBED)):  # a linker may store a name as the end of another
        raise EmulationError(f"{shared[0]} shares its bytes with a function of the runtime")
    return bytes(changed)


def _refuse_unknown(wanted: list[Symbol]) -> None:
    unknown = tuple(
        symbol.name
        for symbol in wanted
        if not (
            symbol.is_weak
            or symbol.name in STUBBED
            or symbol.name.startswith(CALLING_CONVENTION)
            or _is_standard(symbol.name)
        )
    )
    if unknown:
        raise UnsupportedPtx(
            f"the host part calls what the emulator does not know: {', '.join(unknown)}; "
            f"the compiler is {COMPILER} {_version()}, and the emulator was made for 4.8",
            unknown=unknown,
        )


def _version() -> str:
    try:
        return metadata.version(COMPILER)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _is_standard(name: str) -> bool:
    """Return whether the C library has a function `name`."""
    return any(hasattr(library, name) for library in _standard_libraries())


@cache
def _standard_libraries() -> tuple[ctypes.CDLL, ...]:
    found = (ctypes.util.find_library(name) for name in ("c", "m"))
    return tuple(ctypes.CDLL(path) for path in found if path)
