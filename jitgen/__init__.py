# SPDX-License-Identifier: Apache-2.0
"""
jitgen generates, compiles, caches and chooses GPU kernels for the grouped GEMMs of
mixture-of-experts models.

Importing jitgen imports neither torch nor the compiler; public names are loaded when they are first
used.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from jitgen._version import __version__

# The name is a module and a public object as well. Binding the object here, once, is what makes
# `jitgen.settings.on_miss = "error"` mean the object whatever is imported later.
from jitgen.settings import settings
from jitgen.support.moved import MovedFinder, renamed

if TYPE_CHECKING:
    from types import ModuleType

    from jitgen import metrics, parallel, quantize, reference, torch
    from jitgen.config import Arch, BLayout, DType, Layout, ScaleGranularity
    from jitgen.config.activation_backward import (
        ActivationBackwardConfig,
        ActivationBackwardProblem,
    )
    from jitgen.config.activation_quantize import (
        ActivationQuantizeConfig,
        ActivationQuantizeProblem,
    )
    from jitgen.config.add_lora import AddLoraConfig, AddLoraProblem
    from jitgen.config.combine import CombineConfig, CombineProblem
    from jitgen.config.grouped_gemm import (
        Cluster,
        Epilogue,
        GroupedGemmConfig,
        GroupedGemmProblem,
        Operands,
        Pipeline,
        Schedule,
        Tile,
    )
    from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig, GroupedGemmWgradProblem
    from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig, MoEFc2DenseProblem
    from jitgen.config.permute_quantize import PermuteQuantizeConfig, PermuteQuantizeProblem
    from jitgen.config.quantize import QuantizeConfig, QuantizeProblem
    from jitgen.config.route import RouteConfig, RouteProblem
    from jitgen.config.unpack_weights import UnpackWeightsConfig, UnpackWeightsProblem
    from jitgen.events import Event, on_event
    from jitgen.fleet.warm_up import warm_up
    from jitgen.layer.call import moe
    from jitgen.layer.config import MoEConfig
    from jitgen.layer.lora import ExpertLora
    from jitgen.layer.module import MoELayer
    from jitgen.layer.router import RouterConfig
    from jitgen.layer.weights import ExpertWeights
    from jitgen.layer.workspace import Workspace
    from jitgen.ops.activation_backward.call import activation_backward
    from jitgen.ops.activation_quantize.call import activation_quantize
    from jitgen.ops.add_lora.call import add_lora
    from jitgen.ops.combine.call import combine
    from jitgen.ops.grouped_gemm.call import grouped_gemm
    from jitgen.ops.grouped_gemm_wgrad.call import grouped_gemm_wgrad
    from jitgen.ops.moe_fc2_dense.call import moe_fc2_dense
    from jitgen.ops.permute_quantize.call import permute_quantize
    from jitgen.ops.route.call import route, sort_pairs
    from jitgen.ops.route.results import Routing, Sorting
    from jitgen.plans.prewarm import prewarm
    from jitgen.runtime.override import Override, override
    from jitgen.runtime.session import Session, freeze, get_kernel, select
    from jitgen.targets.legality import check
    from jitgen.verify import emulate

__all__ = [
    "ActivationBackwardConfig",
    "ActivationBackwardProblem",
    "ActivationQuantizeConfig",
    "ActivationQuantizeProblem",
    "AddLoraConfig",
    "AddLoraProblem",
    "Arch",
    "BLayout",
    "Cluster",
    "CombineConfig",
    "CombineProblem",
    "DType",
    "Epilogue",
    "Event",
    "ExpertLora",
    "ExpertWeights",
    "GroupedGemmConfig",
    "GroupedGemmProblem",
    "GroupedGemmWgradConfig",
    "GroupedGemmWgradProblem",
    "Layout",
    "MoEConfig",
    "MoEFc2DenseConfig",
    "MoEFc2DenseProblem",
    "MoELayer",
    "Operands",
    "Override",
    "PermuteQuantizeConfig",
    "PermuteQuantizeProblem",
    "Pipeline",
    "QuantizeConfig",
    "QuantizeProblem",
    "RouteConfig",
    "RouteProblem",
    "RouterConfig",
    "Routing",
    "ScaleGranularity",
    "Schedule",
    "Session",
    "Sorting",
    "Tile",
    "UnpackWeightsConfig",
    "UnpackWeightsProblem",
    "Workspace",
    "__version__",
    "activation_backward",
    "activation_quantize",
    "add_lora",
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
    "parallel",
    "permute_quantize",
    "prewarm",
    "quantize",
    "reference",
    "route",
    "select",
    "settings",
    "sort_pairs",
    "torch",
    "warm_up",
]

_MODULES = ("metrics", "parallel", "quantize", "reference", "torch")
"""Public modules, loaded on first use."""

_NAMES = {
    "config": "Arch BLayout DType Layout ScaleGranularity",
    "config.grouped_gemm": (
        "Cluster Epilogue GroupedGemmConfig GroupedGemmProblem Operands Pipeline Schedule Tile"
    ),
    "config.activation_backward": "ActivationBackwardConfig ActivationBackwardProblem",
    "config.activation_quantize": "ActivationQuantizeConfig ActivationQuantizeProblem",
    "config.add_lora": "AddLoraConfig AddLoraProblem",
    "config.grouped_gemm_wgrad": "GroupedGemmWgradConfig GroupedGemmWgradProblem",
    "config.moe_fc2_dense": "MoEFc2DenseConfig MoEFc2DenseProblem",
    "config.combine": "CombineConfig CombineProblem",
    "config.permute_quantize": "PermuteQuantizeConfig PermuteQuantizeProblem",
    "config.quantize": "QuantizeConfig QuantizeProblem",
    "config.route": "RouteConfig RouteProblem",
    "config.unpack_weights": "UnpackWeightsConfig UnpackWeightsProblem",
    "ops.activation_backward.call": "activation_backward",
    "ops.activation_quantize.call": "activation_quantize",
    "ops.add_lora.call": "add_lora",
    "ops.grouped_gemm.call": "grouped_gemm",
    "ops.grouped_gemm_wgrad.call": "grouped_gemm_wgrad",
    "ops.moe_fc2_dense.call": "moe_fc2_dense",
    "ops.combine.call": "combine",
    "ops.permute_quantize.call": "permute_quantize",
    "ops.route.results": "Routing Sorting",
    "ops.route.call": "route sort_pairs",
    "layer.call": "moe",
    "layer.experts": "moe_experts",
    "layer.config": "MoEConfig",
    "layer.lora": "ExpertLora",
    "layer.module": "MoELayer",
    "layer.router": "RouterConfig",
    "layer.weights": "ExpertWeights",
    "layer.workspace": "Workspace",
    "targets.legality": "check",
    "verify": "emulate",
    "events": "Event on_event",
    "runtime.override": "Override override",
    "plans.prewarm": "prewarm",
    "runtime.session": "freeze get_kernel select Session",
    "fleet.warm_up": "warm_up",
}
"""Module of jitgen: the public names that it has, loaded when they are first used."""

_HOME = {name: f"jitgen.{module}" for module, names in _NAMES.items() for name in names.split()}


sys.meta_path.append(MovedFinder)


def _imported(name: str) -> ModuleType:
    """
    Import a module. If it imports torch, torch's warning about NumPy is suppressed:
    `without_numpy`.
    """
    if "torch" in sys.modules:
        return importlib.import_module(name)
    from jitgen.support.lazy import without_numpy

    with without_numpy():
        return importlib.import_module(name)


def __getattr__(name: str) -> object:
    if name not in _HOME and name not in _MODULES:
        return renamed(__name__, name)
    module = _imported(_HOME.get(name, f"jitgen.{name}"))
    value = getattr(module, name) if name in _HOME else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
