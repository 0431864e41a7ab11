# SPDX-License-Identifier: Apache-2.0
"""
jitgen generates, compiles, caches and chooses GPU kernels for the grouped GEMMs of
mixture-of-experts models.

Importing it imports neither torch nor the compiler; public names are loaded when they are first
used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jitgen._version import __version__

# The name is a module and a public object as well. Binding the object here, once, is what makes
# `jitgen.settings.on_miss = "error"` mean the object whatever is imported later.
from jitgen.settings import settings

if TYPE_CHECKING:
    from jitgen import metrics, quantize, reference
    from jitgen.config import Arch, BLayout, DType, Layout, ScaleGranularity
    from jitgen.events import Event, on_event
    from jitgen.fleet.warm_up import warm_up
    from jitgen.ops.grouped_gemm.call import grouped_gemm
    from jitgen.ops.grouped_gemm.config import (
        Cluster,
        Epilogue,
        KernelConfig,
        Operands,
        Pipeline,
        Problem,
        Schedule,
        Tile,
    )
    from jitgen.ops.moe_fc2_dense.call import moe_fc2_dense
    from jitgen.ops.moe_fc2_dense.config import MoeFc2DenseConfig, MoeFc2DenseProblem
    from jitgen.ops.quantize.config import QuantizeConfig, QuantizeProblem
    from jitgen.ops.silu_mul_quantize.call import silu_mul_quantize
    from jitgen.ops.silu_mul_quantize.config import SiluMulQuantizeConfig, SiluMulQuantizeProblem
    from jitgen.runtime.override import Override, override
    from jitgen.runtime.prewarm import prewarm
    from jitgen.runtime.session import Session, freeze, get_kernel, select
    from jitgen.targets.legality import check
    from jitgen.verify import emulate

__all__ = [
    "Arch",
    "BLayout",
    "Cluster",
    "DType",
    "Epilogue",
    "Event",
    "KernelConfig",
    "Layout",
    "MoeFc2DenseConfig",
    "MoeFc2DenseProblem",
    "Operands",
    "Override",
    "Pipeline",
    "Problem",
    "QuantizeConfig",
    "QuantizeProblem",
    "ScaleGranularity",
    "Schedule",
    "Session",
    "SiluMulQuantizeConfig",
    "SiluMulQuantizeProblem",
    "Tile",
    "__version__",
    "check",
    "emulate",
    "freeze",
    "get_kernel",
    "grouped_gemm",
    "metrics",
    "moe_fc2_dense",
    "on_event",
    "override",
    "prewarm",
    "quantize",
    "reference",
    "select",
    "settings",
    "silu_mul_quantize",
    "warm_up",
]

_GEMM = "jitgen.ops.grouped_gemm"
_FC2 = "jitgen.ops.moe_fc2_dense"
_SILU = "jitgen.ops.silu_mul_quantize"
_HOME = {
    "metrics": "",
    "quantize": "",
    "reference": "",
    "Arch": "jitgen.config",
    "BLayout": "jitgen.config",
    "DType": "jitgen.config",
    "Layout": "jitgen.config",
    "ScaleGranularity": "jitgen.config",
    "Cluster": f"{_GEMM}.config",
    "Epilogue": f"{_GEMM}.config",
    "KernelConfig": f"{_GEMM}.config",
    "Operands": f"{_GEMM}.config",
    "Pipeline": f"{_GEMM}.config",
    "Schedule": f"{_GEMM}.config",
    "Tile": f"{_GEMM}.config",
    "Problem": f"{_GEMM}.config",
    "grouped_gemm": f"{_GEMM}.call",
    "MoeFc2DenseConfig": f"{_FC2}.config",
    "MoeFc2DenseProblem": f"{_FC2}.config",
    "moe_fc2_dense": f"{_FC2}.call",
    "QuantizeConfig": "jitgen.ops.quantize.config",
    "QuantizeProblem": "jitgen.ops.quantize.config",
    "SiluMulQuantizeConfig": f"{_SILU}.config",
    "SiluMulQuantizeProblem": f"{_SILU}.config",
    "silu_mul_quantize": f"{_SILU}.call",
    "check": "jitgen.targets.legality",
    "emulate": "jitgen.verify",
    "Event": "jitgen.events",
    "on_event": "jitgen.events",
    "Override": "jitgen.runtime.override",
    "override": "jitgen.runtime.override",
    "prewarm": "jitgen.runtime.prewarm",
    "freeze": "jitgen.runtime.session",
    "get_kernel": "jitgen.runtime.session",
    "select": "jitgen.runtime.session",
    "Session": "jitgen.runtime.session",
    "warm_up": "jitgen.fleet.warm_up",
}
"""Module of each public name that is loaded when it is first used; empty: it is a module itself."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'jitgen' has no attribute {name!r}")
    home = _HOME[name]
    value = (
        getattr(importlib.import_module(home), name)
        if home
        else importlib.import_module(f"jitgen.{name}")
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
