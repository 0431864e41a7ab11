# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for modules of vLLM, and for its config of a layer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.moe_cases import EXPERTS, HIDDEN, INTERMEDIATE, TOP_K

LAYERS = "vllm.model_executor.layers"
MOE = f"{LAYERS}.fused_moe"
_KEYS = (
    *("Fp8Dynamic128Sym", "Fp8DynamicTokenSym", "Fp8Static128BlockSym", "Fp8StaticChannelSym"),
    *("Mxfp4Static", "Mxfp8Static", "Mxfp8Dynamic", "Nvfp4Dynamic"),
)


def stand_in(patch: pytest.MonkeyPatch, name: str, **names: Any) -> ModuleType:
    """Put a module of this name where imports look, and into its package."""
    module = ModuleType(name)
    vars(module).update(names)
    patch.setitem(sys.modules, name, module)
    package, _, last = name.rpartition(".")
    if package:
        if package not in sys.modules:
            stand_in(patch, package)
        setattr(sys.modules[package], last, module)
    return module


class Modular:
    """As far as ours asks it: whose scales are those of the layer's config, as they are now."""

    def __init__(self, _moe: Any, quant: Any) -> None:
        self.quant_config = quant

    w1_scale = property(lambda self: self.quant_config.w1_scale)
    w2_scale = property(lambda self: self.quant_config.w2_scale)
    w1_bias = property(lambda self: self.quant_config.w1_bias)
    w2_bias = property(lambda self: self.quant_config.w2_bias)


class Experts:
    """Its checks, as far as they ask ours."""

    @staticmethod
    def is_supported_config(cls: Any, moe: Any, *rest: Any) -> tuple[bool, str | None]:  # noqa: PLW0211
        if not cls._supports_activation(moe.activation):
            return False, f"no {moe.activation.value}"
        if rest and not cls._supports_quant_scheme(*rest[:2]):
            return False, f"quantization scheme {rest[0]}x{rest[1]}"
        if rest and rest[2] != cls.activation_format():
            return False, f"{rest[2]} activation format"
        return True, None


def vllm_modules(patch: pytest.MonkeyPatch) -> None:
    """Put stand-ins for what jitgen's experts import from vLLM where imports look."""
    keys = {f"k{name}": name for name in _KEYS}
    stand_in(patch, f"{LAYERS}.quantization.utils.quant_utils", **keys)
    stand_in(patch, "vllm.platforms", current_platform=SimpleNamespace(is_cpu=lambda: True))
    stand_in(patch, f"{MOE}.topk_weight_and_reduce", TopKWeightAndReduceNoOP=object)
    stand_in(
        patch,
        f"{MOE}.modular_kernel",
        FusedMoEExpertsModular=Modular,
        FusedMoEExperts=Experts,
        FusedMoEActivationFormat=SimpleNamespace(Standard="standard", BatchedExperts="batched"),
    )
    for name in ("vllm_experts", "vllm_packed_experts"):
        patch.delitem(sys.modules, f"jitgen.integrations.{name}", raising=False)


@contextmanager
def loading() -> Iterator[None]:
    """Let torch's default type be that of the tokens, as it is while vLLM loads a model."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(usual)


def layer_of_vllm(**changes: Any) -> Any:
    """Return what vLLM says of a layer."""
    activation = SimpleNamespace(value=changes.pop("activation", "silu"))
    numbers = ("swiglu_limit", "swiglu_alpha", "swiglu_beta")
    caps = ("activation_situ_beta", "activation_situ_linear_beta")
    fields = dict.fromkeys((*numbers, *caps)) | changes
    usual = {
        "in_dtype": torch.bfloat16,
        "has_bias": False,
        "moe_backend": "auto",
        "is_batched": False,
        "enable_eplb": False,
    }
    fields = usual | fields
    return SimpleNamespace(
        activation=activation,
        **fields,
        hidden_dim=HIDDEN,
        intermediate_size_per_partition=INTERMEDIATE,
        num_experts=EXPERTS,
        num_local_experts=EXPERTS,
        experts_per_token=TOP_K,
        max_num_tokens=19,
        moe_parallel_config=SimpleNamespace(
            use_batched_activation_format=fields["is_batched"], enable_eplb=fields["enable_eplb"]
        ),
    )
