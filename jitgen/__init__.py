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
    from jitgen import metrics, quantize, reference, torch
    from jitgen.config import Arch, BLayout, DType, Layout, ScaleGranularity
    from jitgen.events import Event, on_event
    from jitgen.fleet.warm_up import warm_up
    from jitgen.layer.call import moe
    from jitgen.layer.config import MoEConfig
    from jitgen.layer.module import MoELayer
    from jitgen.layer.weights import ExpertWeights
    from jitgen.layer.workspace import Workspace
    from jitgen.ops.combine.call import combine
    from jitgen.ops.combine.config import CombineConfig, CombineProblem
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
    from jitgen.ops.grouped_gemm_wgrad.call import grouped_gemm_wgrad
    from jitgen.ops.grouped_gemm_wgrad.config import (
        GroupedGemmWgradConfig,
        GroupedGemmWgradProblem,
    )
    from jitgen.ops.moe_fc2_dense.call import moe_fc2_dense
    from jitgen.ops.moe_fc2_dense.config import MoeFc2DenseConfig, MoeFc2DenseProblem
    from jitgen.ops.permute_quantize.call import permute_quantize
    from jitgen.ops.permute_quantize.config import PermuteQuantizeConfig, PermuteQuantizeProblem
    from jitgen.ops.quantize.config import QuantizeConfig, QuantizeProblem
    from jitgen.ops.route.call import route, sort_pairs
    from jitgen.ops.route.config import RouteConfig, RouteProblem
    from jitgen.ops.route.results import Routing, Sorting
    from jitgen.ops.silu_mul_quantize.call import silu_mul_quantize
    from jitgen.ops.silu_mul_quantize.config import SiluMulQuantizeConfig, SiluMulQuantizeProblem
    from jitgen.ops.unpack_weights.config import UnpackWeightsConfig, UnpackWeightsProblem
    from jitgen.runtime.override import Override, override
    from jitgen.runtime.prewarm import prewarm
    from jitgen.runtime.session import Session, freeze, get_kernel, select
    from jitgen.targets.legality import check
    from jitgen.verify import emulate

__all__ = [
    "Arch",
    "BLayout",
    "Cluster",
    "CombineConfig",
    "CombineProblem",
    "DType",
    "Epilogue",
    "Event",
    "ExpertWeights",
    "GroupedGemmWgradConfig",
    "GroupedGemmWgradProblem",
    "KernelConfig",
    "Layout",
    "MoEConfig",
    "MoELayer",
    "MoeFc2DenseConfig",
    "MoeFc2DenseProblem",
    "Operands",
    "Override",
    "PermuteQuantizeConfig",
    "PermuteQuantizeProblem",
    "Pipeline",
    "Problem",
    "QuantizeConfig",
    "QuantizeProblem",
    "RouteConfig",
    "RouteProblem",
    "Routing",
    "ScaleGranularity",
    "Schedule",
    "Session",
    "SiluMulQuantizeConfig",
    "SiluMulQuantizeProblem",
    "Sorting",
    "Tile",
    "UnpackWeightsConfig",
    "UnpackWeightsProblem",
    "Workspace",
    "__version__",
    "check",
    "combine",
    "emulate",
    "freeze",
    "get_kernel",
    "grouped_gemm",
    "grouped_gemm_wgrad",
    "metrics",
    "moe",
    "moe_experts",
    "moe_fc2_dense",
    "on_event",
    "override",
    "permute_quantize",
    "prewarm",
    "quantize",
    "reference",
    "route",
    "select",
    "settings",
    "silu_mul_quantize",
    "sort_pairs",
    "torch",
    "warm_up",
]

_GEMM = "jitgen.ops.grouped_gemm"
_WGRAD = "jitgen.ops.grouped_gemm_wgrad"
_FC2 = "jitgen.ops.moe_fc2_dense"
_PERMUTE = "jitgen.ops.permute_quantize"
_COMBINE = "jitgen.ops.combine"
_ROUTE = "jitgen.ops.route"
_SILU = "jitgen.ops.silu_mul_quantize"
_LAYER = "jitgen.layer"
_HOME = {
    "metrics": "",
    "quantize": "",
    "reference": "",
    "torch": "",
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
    "GroupedGemmWgradConfig": f"{_WGRAD}.config",
    "GroupedGemmWgradProblem": f"{_WGRAD}.config",
    "grouped_gemm_wgrad": f"{_WGRAD}.call",
    "MoeFc2DenseConfig": f"{_FC2}.config",
    "MoeFc2DenseProblem": f"{_FC2}.config",
    "moe_fc2_dense": f"{_FC2}.call",
    "CombineConfig": f"{_COMBINE}.config",
    "CombineProblem": f"{_COMBINE}.config",
    "combine": f"{_COMBINE}.call",
    "PermuteQuantizeConfig": f"{_PERMUTE}.config",
    "PermuteQuantizeProblem": f"{_PERMUTE}.config",
    "permute_quantize": f"{_PERMUTE}.call",
    "QuantizeConfig": "jitgen.ops.quantize.config",
    "QuantizeProblem": "jitgen.ops.quantize.config",
    "RouteConfig": f"{_ROUTE}.config",
    "RouteProblem": f"{_ROUTE}.config",
    "Routing": f"{_ROUTE}.results",
    "Sorting": f"{_ROUTE}.results",
    "route": f"{_ROUTE}.call",
    "sort_pairs": f"{_ROUTE}.call",
    "SiluMulQuantizeConfig": f"{_SILU}.config",
    "SiluMulQuantizeProblem": f"{_SILU}.config",
    "silu_mul_quantize": f"{_SILU}.call",
    "UnpackWeightsConfig": "jitgen.ops.unpack_weights.config",
    "UnpackWeightsProblem": "jitgen.ops.unpack_weights.config",
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
    "moe": f"{_LAYER}.call",
    "moe_experts": f"{_LAYER}.experts",
    "MoEConfig": f"{_LAYER}.config",
    "MoELayer": f"{_LAYER}.module",
    "ExpertWeights": f"{_LAYER}.weights",
    "Workspace": f"{_LAYER}.workspace",
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
