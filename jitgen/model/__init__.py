# SPDX-License-Identifier: Apache-2.0
"""What a kernel is: pure data, no torch, no cutlass, no input or output."""

from jitgen.model.arch import Arch
from jitgen.model.config import (
    Cluster,
    KernelConfig,
    Operands,
    Pipeline,
    Schedule,
    Tile,
)
from jitgen.model.dtypes import DType, Layout, ScaleGranularity
from jitgen.model.legality import Verdict, check, require
from jitgen.model.problem import Problem

__all__ = [
    "Arch",
    "Cluster",
    "DType",
    "KernelConfig",
    "Layout",
    "Operands",
    "Pipeline",
    "Problem",
    "ScaleGranularity",
    "Schedule",
    "Tile",
    "Verdict",
    "check",
    "require",
]
