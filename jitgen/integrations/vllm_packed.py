# SPDX-License-Identifier: Apache-2.0
"""
vLLM's functions for weights that are packed: jitgen's experts are chosen first, and their weights
are prepacked for them.

=======  ===================================  ==================================================
weights  checkpoints                          tokens in the products
=======  ===================================  ==================================================
INT4     compressed-tensors, GPTQ, AWQ,       bfloat16
         all without zero points
NVFP4    compressed-tensors, ModelOpt         bfloat16 if the checkpoint says so; e4m3 with a
                                              scale for each 1 x 128 if it quantises tokens
MXFP8    compressed-tensors, ModelOpt         e4m3 with a scale for each 1 x 128
MXFP4    gpt-oss, DeepSeek-V4                 bfloat16
=======  ===================================  ==================================================

vLLM first chooses experts, then loads a checkpoint, and then converts its tensors for the chosen
experts. For jitgen's, conversion returns the tensors of `PrepackedWeights`, with which vLLM
replaces those of the checkpoint: values as weights, and factors as scales.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor

from jitgen.config import BLayout
from jitgen.formats.prepacked import PrepackedWeights, prepack_mxfp4
from jitgen.formats.prepacked_int4 import int4_from_awq, prepack_int4
from jitgen.formats.prepacked_mxfp8 import prepack_mxfp8
from jitgen.formats.prepacked_nvfp4 import prepack_nvfp4

_MOE = "vllm.model_executor.layers.fused_moe"
_MARK = "jitgen"
"""An attribute of functions that were replaced."""

Function = Callable[..., Any]


class Tokens(Enum):
    """
    Names of jitgen's experts for packed weights, where vLLM has names of its backends; each value
    is the layout for which weights are prepacked.
    """

    BFLOAT16 = BLayout.WIDE1
    E4M3 = BLayout.EXACT1


def register() -> list[str]:
    """
    Let vLLM choose jitgen's experts first for packed weights. Further calls have no effect.

    Returns:
        Formats for which this vLLM lacks a function that was to be replaced; they stay vLLM's.
    """
    missing = []
    for form, functions in _FUNCTIONS.items():
        found: list[tuple[Any, str, Callable[[Function], Function]]] = []
        with suppress(ImportError):
            found = [(oracle(module), name, around) for module, name, around in functions]
        if not found or not all(hasattr(module, name) for module, name, _ in found):
            missing.append(form)
            continue
        for module, name, around in found:
            replace(module, name, around)
    return missing


def oracle(name: str) -> Any:
    """Return vLLM's module that chooses experts for a format."""
    return importlib.import_module(f"{_MOE}.oracle.{name}")


def replace(module: Any, name: str, around: Callable[[Function], Function]) -> None:
    """
    Replace a function by the result of `around` for it, once, in its module and in modules of vLLM
    that imported it.

    Raises:
        ImportError: The module has no such function.
    """
    usual = getattr(module, name, None)
    if usual is None:
        raise ImportError(
            f"{module.__name__} must have {name}, as in vLLM 0.32, for which jitgen's plugin was "
            "written: leave jitgen out of VLLM_PLUGINS, or install vLLM 0.32"
        )
    if hasattr(usual, _MARK):
        return
    ours = around(usual)
    setattr(ours, _MARK, True)
    setattr(module, name, ours)
    for other, loaded in list(sys.modules.items()):
        if other.startswith("vllm.") and getattr(loaded, "__dict__", {}).get(name) is usual:
            setattr(loaded, name, ours)


def _selecting(choose: Function, form: str) -> Function:
    """Return a function like `choose`, which chooses jitgen's experts if they fit the layer."""
    signature = inspect.signature(choose)

    def select(*given: Any, **named: Any) -> Any:
        from jitgen.integrations.vllm_packed_experts import selected

        ours = selected(form, signature.bind(*given, **named).arguments)
        return choose(*given, **named) if ours is None else ours

    return select


def _converting(convert: Function, packed: Callable[[dict[str, Any], BLayout], Any]) -> Function:
    """Return a function like `convert`, which prepacks the weights of jitgen's experts."""
    signature = inspect.signature(convert)
    (backend, *_) = signature.parameters

    def converted(*given: Any, **named: Any) -> Any:
        asked = signature.bind(*given, **named).arguments
        if isinstance(asked[backend], Tokens):
            return packed(asked, asked[backend].value)
        return convert(*given, **named)

    return converted


def _listing(choose: Function) -> Function:
    """Return a function like `choose`, which lists jitgen's experts under their own names."""

    def backend_to_kernel_cls(backend: Enum) -> list[type]:
        if not isinstance(backend, Tokens):
            return choose(backend)  # type: ignore[no-any-return]  # vLLM is untyped
        from jitgen.integrations.vllm_packed_experts import EXPERTS

        return [EXPERTS[backend]]

    return backend_to_kernel_cls


def _making(make: Function) -> Function:
    """
    Return a function like `make`, which makes a layer's kernel of any experts as vLLM does for FP8:
    the one for INT4 takes vLLM's own experts alone.
    """
    signature = inspect.signature(make)

    def made(*given: Any, **named: Any) -> Any:
        asked = signature.bind(*given, **named).arguments
        if not isinstance(asked.get("backend"), Tokens):
            return make(*given, **named)
        asked["fp8_backend"] = asked.pop("backend")
        return oracle("fp8").make_fp8_moe_kernel(**asked)

    return made


def _int4(asked: dict[str, Any], layout: BLayout) -> tuple[Tensor | None, ...]:
    w13, w2 = (_of_int4(asked, name, layout) for name in ("w13", "w2"))
    biases = _float(asked.get("w13_bias")), _float(asked.get("w2_bias"))
    return w13.values, w2.values, w13.factor, w2.factor, None, None, None, None, *biases


def _of_int4(asked: dict[str, Any], name: str, layout: BLayout) -> PrepackedWeights:
    """Prepack words along K, (G, N, K / 8) int32 or as bytes; or AWQ's along N."""
    words, scale = asked[name].detach(), asked[f"{name}_scale"].detach()
    if type(asked["quant_config"]).__name__ == "AutoAWQConfig":
        words, scale = int4_from_awq(words, scale)
    return prepack_int4(words.contiguous().view(torch.int32), scale, layout=layout)


def _nvfp4(asked: dict[str, Any], layout: BLayout) -> tuple[Tensor, ...]:
    """
    Prepack NVFP4 weights. Tokens are not quantised with the checkpoint's scales, in whose place
    vLLM gets ones.
    """
    found: list[Tensor] = []
    for name in ("w13", "w2"):
        overall = asked[f"{name}_scale_2"].detach()
        scale = asked[f"{name}_scale"].detach()
        made = prepack_nvfp4(asked[name].detach(), scale, overall.float(), layout=layout)
        found += [made.values, made.factor, overall, torch.ones_like(overall)]
    return tuple(found)


def _mxfp8(asked: dict[str, Any], layout: BLayout) -> tuple[Tensor, ...]:
    w13, w2 = (
        prepack_mxfp8(asked[name].detach(), asked[f"{name}_scale"].detach(), layout=layout)
        for name in ("w13", "w2")
    )
    return w13.values, w2.values, w13.factor, w2.factor


def _mxfp4(asked: dict[str, Any], layout: BLayout) -> tuple[Tensor | None, ...]:
    w13, w2 = (
        prepack_mxfp4(
            asked[f"{name}_weight"].detach(), asked[f"{name}_weight_scale"].detach(), layout=layout
        )
        for name in ("w13", "w2")
    )
    biases = _float(asked.get("w13_bias")), _float(asked.get("w2_bias"))
    return w13.values, w2.values, w13.factor, w2.factor, *biases


def _float(bias: Tensor | None) -> Tensor | None:
    """Return a bias as kernels read it."""
    return None if bias is None else bias.detach().float()


_FUNCTIONS: dict[str, tuple[tuple[str, str, Callable[[Function], Function]], ...]] = {
    "INT4": (
        ("int_wna16", "select_wna16_moe_backend", partial(_selecting, form="INT4")),
        ("int_wna16", "convert_to_wna16_moe_kernel_format", partial(_converting, packed=_int4)),
        ("int_wna16", "make_wna16_moe_kernel", _making),
    ),
    "NVFP4": (
        ("nvfp4", "select_nvfp4_moe_backend", partial(_selecting, form="NVFP4")),
        ("nvfp4", "convert_to_nvfp4_moe_kernel_format", partial(_converting, packed=_nvfp4)),
    ),
    "MXFP8": (
        ("mxfp8", "select_mxfp8_moe_backend", partial(_selecting, form="MXFP8")),
        ("fp8", "convert_to_fp8_moe_kernel_format", partial(_converting, packed=_mxfp8)),
    ),
    "MXFP4": (
        ("mxfp4", "select_mxfp4_moe_backend", partial(_selecting, form="MXFP4")),
        ("mxfp4", "select_deepseek_v4_mxfp4_moe_backend", partial(_selecting, form="MXFP4")),
        ("mxfp4", "backend_to_kernel_cls", _listing),
        *(
            (
                "mxfp4",
                f"convert_{name}_to_mxfp4_moe_kernel_format",
                partial(_converting, packed=_mxfp4),
            )
            for name in ("weight", "gpt_oss_weight")
        ),
    ),
}
"""For each format the functions that are replaced: module, name, and what makes the replacement."""
