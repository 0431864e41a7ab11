# SPDX-License-Identifier: Apache-2.0
"""
The `Host` that jitgen gives the emulator: its loader of native code, compiler driver and cache.

The cache holds the emulator's stub runtime (`jitgen.verify.cached`). If the cache may not be
written, each process compiles its own.
"""

from __future__ import annotations

from collections.abc import Callable

from jitgen.cache.scratch import scratch
from jitgen.compile.linker import driver
from jitgen.emulator import Host
from jitgen.runtime import native
from jitgen.verify import cached as files


def cached(name: str, make: Callable[[], bytes]) -> bytes:
    """
    Return the library `name` from the cache, else from `make`.

    Raises:
        Exception: Whatever `make` raises.
    """
    content = files.find(f"{name}.so")
    if content is None:
        content = make()
        files.store(f"{name}.so", content)
    return content


HOST = Host(load=native.load, compiler=driver, cached=cached, folder=scratch)
"""This machine, for the emulator."""
