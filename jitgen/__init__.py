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

# Both names are a module and a public object as well. Binding the objects here, once, is what makes
# `jitgen.settings.on_miss = "error"` and `jitgen.select(problem)` mean the objects whatever is
# imported later.
from jitgen.select import select
from jitgen.settings import settings

if TYPE_CHECKING:
    from jitgen.events import Event, on_event
    from jitgen.model import (
        Arch,
        Cluster,
        DType,
        KernelConfig,
        Layout,
        Operands,
        Pipeline,
        Problem,
        ScaleGranularity,
        Schedule,
        Tile,
        check,
    )
    from jitgen.ops import quantize, reference
    from jitgen.ops.grouped_gemm import grouped_gemm
    from jitgen.runtime.prewarm import prewarm
    from jitgen.runtime.registry import freeze, get_kernel
    from jitgen.verify import emulate

__all__ = [
    "Arch",
    "Cluster",
    "DType",
    "Event",
    "KernelConfig",
    "Layout",
    "Operands",
    "Pipeline",
    "Problem",
    "ScaleGranularity",
    "Schedule",
    "Tile",
    "__version__",
    "check",
    "emulate",
    "freeze",
    "get_kernel",
    "grouped_gemm",
    "on_event",
    "prewarm",
    "quantize",
    "reference",
    "select",
    "settings",
]

_HOME = {
    "emulate": "jitgen.verify",
    "Event": "jitgen.events",
    "on_event": "jitgen.events",
    "quantize": "jitgen.ops",
    "reference": "jitgen.ops",
    "grouped_gemm": "jitgen.ops.grouped_gemm",
    "prewarm": "jitgen.runtime.prewarm",
    "freeze": "jitgen.runtime.registry",
    "get_kernel": "jitgen.runtime.registry",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'jitgen' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME.get(name, "jitgen.model")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
