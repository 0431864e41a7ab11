# SPDX-License-Identifier: Apache-2.0
"""Types of the arrays that hold registers, memory and matrices."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bound=np.generic)
"""The type of the elements of an array, which does not change."""

Integers = NDArray[np.integer]
"""Integers of any width: addresses, counts, or the bits of registers."""

Numbers = NDArray[np.number]
"""Numbers of one type: integers, or floats."""

DType = type[np.number]
"""The type in numpy of `Numbers`."""

Elements = NDArray[np.generic]
"""Elements of any type, which are moved but not computed with."""

PerThread = NDArray[np.integer] | np.integer
"""An operand of an instruction: an element for each thread [n], or a number that all share."""

Vector = tuple[PerThread, ...]
"""Registers of a vector or of a matrix, each an operand."""

Where = slice | NDArray[np.integer]
"""Positions in an array; a slice where they are adjacent."""
