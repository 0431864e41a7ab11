# SPDX-License-Identifier: Apache-2.0
"""Words in shared and global memory, for the tests of what moves them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.machine.global_memory import GlobalMemory

AT = 0
BASE = 1024


def shared_words(f: Fragment, number: int, first: int = 0) -> NDArray[np.uint32]:
    """Write 0, 1, ... to words of shared memory, as if from the start; return them."""
    words = np.arange(first, first + number, dtype=np.uint32)
    f.cta.shared.put(slice(BASE, BASE + 4 * number), words.view(np.uint8))
    return words


def with_global(f: Fragment, *arrays: NDArray[Any]) -> list[int]:
    """Declare arrays as global memory; return their addresses."""
    f.machine.memory = GlobalMemory()
    for i, array in enumerate(arrays):
        f.machine.memory.add(array.ctypes.data, array.nbytes, f"tensor {i}")
    return [array.ctypes.data for array in arrays]


def findings(f: Fragment) -> list[str]:
    return [finding.kind for finding in f.machine.findings.values()]
