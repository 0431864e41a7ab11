# SPDX-License-Identifier: Apache-2.0
"""Descriptions of kernels: pure data, without torch, cutlass, input or output."""

from jitgen.config.config import BLayout, Config, DType, Layout, Numerics, ScaleGranularity
from jitgen.config.plugins import Arch

__all__ = ["Arch", "BLayout", "Config", "DType", "Layout", "Numerics", "ScaleGranularity"]
