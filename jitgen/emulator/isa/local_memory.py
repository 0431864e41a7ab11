# SPDX-License-Identifier: Apache-2.0
"""
Local memory: what ``ld.local``, ``st.local`` and generic addresses of local variables lead to.

Each thread has its own, so there are no races; reads of unwritten bytes are found. The address of a
variable is the same number for all threads.

PTX ISA, sections "Local State Space", "ld" and "st".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Integers
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.program.parse import LOCAL_BASE

Threads = NDArray[np.int64] | slice
Bytes = NDArray[np.uint8]


def _places(
    f: Fragment, at: int, addresses: Integers, width: int, threads: Threads
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return threads [k, 1] and offsets [k, width] of accesses."""
    offsets = addresses.astype(np.int64) - LOCAL_BASE
    end = f.machine.program.local_end
    for what, bad in (
        ("out of bounds", (offsets < 0) | (offsets + width > end)),
        (f"not a multiple of {width}", offsets % width != 0),
    ):
        if np.count_nonzero(bad):
            offset = int(offsets[bad.argmax()])
            f.fault(at, f"local memory at {offset:#x}, of {end} bytes, is {what}")
    return f.lanes[threads][:, None], offsets[:, None] + np.arange(width)


def fetch(f: Fragment, at: int, addresses: Integers, width: int, threads: Threads) -> Bytes:
    """
    Return the bytes that threads load from their local memories [k, width].

    Raises:
        MachineFault: Out of bounds or not aligned.
    """
    places = _places(f, at, addresses, width, threads)
    if not f.cta.local_written[places].all():
        f.warn(at, "uninitialised", "local memory is read and was never written")
    return f.cta.local[places]


def put(f: Fragment, at: int, addresses: Integers, data: Bytes, threads: Threads) -> None:
    """Store bytes [k, width] in the threads' local memories; raise what `fetch` does."""
    places = _places(f, at, addresses, data.shape[1], threads)
    f.cta.local[places] = data
    f.cta.local_written[places] = True
