# SPDX-License-Identifier: Apache-2.0
"""
What jitgen lends the emulator: its loader of native code, its compiler driver, its cache.

The emulator's stub runtime lies beside compiled kernels, under a root that nobody else can write
to, with its SHA-256, and what has another digest is made again. Where the cache may not be written,
each process makes one for itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from jitgen.cache.folder import Damaged
from jitgen.cache.root import Root
from jitgen.compile.linker import driver
from jitgen.emulator.host.native import Host
from jitgen.errors import CacheError, SettingError
from jitgen.runtime import native
from jitgen.settings import settings

_MOST_BYTES = 2**24


def kept(name: str, make: Callable[[], bytes]) -> bytes:
    """
    Return the library `name` from the cache, made by `make` if the cache has or keeps none.

    Raises:
        Exception: Whatever `make` raises.
    """
    made = cache(make)  # once, though what was made could not be kept
    if settings.cache == "rw":
        with suppress(OSError, CacheError, SettingError):
            return _kept(name, made)
    return made()


def _kept(name: str, make: Callable[[], bytes]) -> bytes:
    """
    Return the library that the cache keeps, made now if need be.

    Raises:
        OSError, CacheError, SettingError: It keeps nothing.
    """
    with (
        Root(settings.cache_dir).create() as base,
        base.service("emulator") as folder,
        base.service("tmp") as drafts,
    ):
        with suppress(OSError, Damaged):
            content = folder.read(f"{name}.so", _MOST_BYTES)
            if folder.read(f"{name}.sha256", 64) == _digest(content):
                return content
        content = make()
        folder.replace(f"{name}.so", content, drafts, sync=False)
        folder.replace(f"{name}.sha256", _digest(content), drafts, sync=False)
        return content


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode("ascii")


HOST = Host(load=native.load, compiler=driver, kept=kept)
"""jitgen's machine, as the emulator asks for it."""
