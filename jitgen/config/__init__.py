# SPDX-License-Identifier: Apache-2.0
"""What a kernel is: pure data, no torch, no cutlass, no input or output."""

from jitgen.config.arch import Arch
from jitgen.config.config import Config
from jitgen.config.dtypes import BLayout, DType, Layout, ScaleGranularity

__all__ = ["Arch", "BLayout", "Config", "DType", "Layout", "ScaleGranularity"]
