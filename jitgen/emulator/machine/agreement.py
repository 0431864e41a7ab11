# SPDX-License-Identifier: Apache-2.0
"""
Threads of one instruction that store to the same place: they must store the same value.

The order of several ordinary stores is not defined. If all store the same value the order does not
matter, and kernels do that on purpose.

CUDA C++ Programming Guide, "SIMT Architecture": which thread of a warp performs the final write to
a location is undefined. PTX ISA, section "Data races" of the memory consistency model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from jitgen.emulator.machine.fragment import Fragment


def check_agreement(
    f: Fragment,
    at: int,
    addresses: NDArray[np.int64],
    data: NDArray[np.uint8],
    threads: NDArray[np.int64] | slice,
    where: str,
) -> None:
    """
    Report two threads that store different values to one place.

    Args:
        f: The fragment that executes the instruction.
        at: Index of the instruction.
        addresses: The address to which each thread stores [k], a multiple of the width.
        data: The stored bytes, uint8 [k, width].
        threads: The threads [k], as indices 0..n-1.
        where: Name of the memory, for the message.
    """
    ascending = np.sort(addresses)
    if not np.count_nonzero(ascending[1:] == ascending[:-1]):
        return
    order = addresses.argsort(kind="stable")
    places = addresses[order]
    pairs = np.flatnonzero(places[1:] == places[:-1])
    if not len(pairs):
        return
    one, other = order[pairs], order[pairs + 1]
    differs = (data[one] != data[other]).any(axis=1)
    if not np.count_nonzero(differs):
        return
    pair = int(differs.argmax())
    lanes = f.lanes[threads]
    first, second = sorted((int(lanes[one[pair]]), int(lanes[other[pair]])))
    f.warn(
        at,
        "race",
        f"threads {first} and {second} store different values to {int(addresses[one[pair]]):#x} in "
        f"{where} by one instruction: which of them stays is undefined",
    )
