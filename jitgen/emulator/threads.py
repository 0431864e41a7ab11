# SPDX-License-Identifier: Apache-2.0
"""
One thread for numpy's matrix products, which are too small for several.

A product of one instruction takes microseconds; waking other threads takes as long, and on a busy
machine a thousand times longer. OpenBLAS, which comes with numpy's wheels, decides by the number of
operations, but the number of threads can be set.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

_SPELLINGS = ("scipy_openblas_{}64_", "openblas_{}64_", "scipy_openblas_{}", "openblas_{}")
"""How builds of OpenBLAS spell a function."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Let matrix products of this process use one thread, if the BLAS allows that."""
    get, put = _controls()
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)


@cache
def _controls() -> tuple[Callable[[], int], Callable[[int], object]]:
    """
    Return the functions that read and set the number of threads; without OpenBLAS, functions that
    change nothing.
    """
    for path in sorted(Path(np.__file__).parents[1].glob("numpy.libs/*openblas*")):
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        for spelling in _SPELLINGS:
            get, put = (spelling.format(name) for name in ("get_num_threads", "set_num_threads"))
            if hasattr(library, get) and hasattr(library, put):
                return getattr(library, get), getattr(library, put)
    return lambda: 1, lambda _: None
