# SPDX-License-Identifier: Apache-2.0
"""
The scale formats of operands, each in its own file.

A config has a format for a and one for b. The format of a tensor of scales follows from its type
and its number of dimensions, never from sizes, which would be ambiguous.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING

from jitgen.config.config import SCALES

if TYPE_CHECKING:
    from torch import Tensor

    from jitgen.config import ScaleGranularity
    from jitgen.formats.protocol import ScaleFormat


@cache
def find_format(granularity: ScaleGranularity) -> ScaleFormat:
    """Return the format of `granularity`: ``FORMAT`` of the file of its name."""
    module = importlib.import_module(f"jitgen.formats.{granularity}")
    found: ScaleFormat = module.FORMAT
    return found


def every_format() -> tuple[ScaleFormat, ...]:
    """Return all formats."""
    return tuple(map(find_format, SCALES))


def format_of_b(scale: Tensor) -> ScaleFormat | None:
    """
    Return the format of scales of b; None if no format has their type and number of dimensions.
    Formats after it in `SCALES` are not imported.

    float64 counts as float32: a reference may be computed so.
    """
    import torch

    dtype = torch.float32 if scale.dtype is torch.float64 else scale.dtype
    formats = map(find_format, SCALES)
    return next((f for f in formats if (f.dtype, f.b_rank) == (dtype, scale.dim())), None)
