# SPDX-License-Identifier: Apache-2.0
"""
Zeros that cost nothing until they are written.

The histories of a CTA are sized for everything that may happen and use a part of it. `numpy.zeros`
gets such memory for free only the first time: memory that an earlier CTA gave back is cleared as a
whole.
"""

from __future__ import annotations

import math
import mmap

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Scalar


def lazy_zeros(shape: tuple[int, ...], dtype: type[Scalar]) -> NDArray[Scalar]:
    """Return new zeros, which the system backs with memory page by page."""
    number = math.prod(shape)
    if not number:
        return np.zeros(shape, dtype)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    room = mmap.mmap(-1, number * np.dtype(dtype).itemsize, flags=flags)
    return np.frombuffer(room, dtype, number).reshape(shape)
