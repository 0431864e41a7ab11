# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for modules of SGLang 0.5.23, with the signatures of its classes and functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch.distributed as dist
from torch import Tensor

from tests.vllm_modules import stand_in

MOE = "sglang.srt.layers.moe"


class MoeA2ABackend(Enum):
    NONE = "none"
    FLASHINFER = "flashinfer"

    def is_flashinfer(self) -> bool:
        return self is MoeA2ABackend.FLASHINFER


class HookType(Enum):
    AROUND = "around"


class StandardTopKOutput(NamedTuple):
    topk_weights: Tensor
    topk_ids: Tensor
    router_logits: Tensor | None


class StandardDispatchOutput(NamedTuple):
    hidden_states: Tensor
    hidden_states_scale: Tensor | None
    topk_output: Any
    hidden_states_pre_quant: tuple[Any, ...] | None = None


class StandardCombineInput(NamedTuple):
    hidden_states: Tensor


class BaseDispatcher(ABC):
    """What SGLang calls: its hooks and overlaps are left out."""

    def __init__(self) -> None:
        self.quant_config: dict[str, Any] = {}
        self.runner_backend: Any = None

    @abstractmethod
    def dispatch(self, hidden_states: Tensor, topk_output: Any) -> Any: ...

    @abstractmethod
    def combine(self, combine_input: Any) -> Tensor: ...

    def set_quant_config(self, quant_config: dict[str, Any]) -> None:
        self.quant_config = quant_config


class Sglang:
    """
    What tests see and change of the modules.

    Attributes:
        functions: The fused functions by the names of an all-to-all and of a runner.
        backend: The all-to-all that SGLang was started with.
        counts: Tokens of each rank; None: SGLang does not know them.
    """

    def __init__(self, patch: pytest.MonkeyPatch, version: str = "0.5.23") -> None:
        self.functions: dict[tuple[str, str], Any] = {("none", "triton"): lambda *_: "its own"}
        self.backend = MoeA2ABackend.FLASHINFER
        self.counts: list[int] | None = None
        self._hooks: list[tuple[str, Callable[..., Any], HookType]] = []
        patch.delitem(_loaded(), "jitgen.integrations.sglang_ranks", raising=False)
        stand_in(patch, "sglang.version", __version__=version)
        pool = SimpleNamespace(
            _fused_funcs=self.functions,
            get_fused_func=lambda *names: self.functions.get(names),
            register_fused_func=self._register,
        )
        for name in ("base", "triton"):
            stand_in(patch, f"{MOE}.moe_runner.{name}", FusedOpPool=pool)
        standard = {
            "StandardDispatchOutput": StandardDispatchOutput,
            "StandardCombineInput": StandardCombineInput,
        }
        stand_in(patch, f"{MOE}.token_dispatcher.base", BaseDispatcher=BaseDispatcher)
        stand_in(patch, f"{MOE}.token_dispatcher.standard", **standard)
        stand_in(patch, f"{MOE}.topk", StandardTopKOutput=StandardTopKOutput)
        stand_in(patch, f"{MOE}.utils", get_moe_a2a_backend=lambda: self.backend)
        stand_in(
            patch, "sglang.srt.layers.dp_attention", get_dp_global_num_tokens=lambda: self.counts
        )
        stand_in(patch, "sglang.srt.runtime_context", get_parallel=_parallel)
        stand_in(patch, "sglang.srt.utils.common", get_device=lambda: "cpu")
        registry = SimpleNamespace(register=lambda *hook: self._hooks.append(hook))
        stand_in(
            patch,
            "sglang.srt.plugins.hook_registry",
            HookRegistry=registry,
            HookType=HookType,
        )

    def _register(self, a2a_backend_name: str, runner_backend_name: str, fused_func: Any) -> None:
        key = a2a_backend_name, runner_backend_name
        if key in self.functions:
            raise ValueError(f"{key} is already registered.")
        self.functions[key] = fused_func

    def create_moe_dispatcher(self, moe_runner_config: Any, quant_method: Any) -> Any:
        """Call SGLang's function as its layers do, after hooks were applied."""
        ((target, hook, kind),) = self._hooks
        assert target == f"{MOE}.fused_moe_triton.layer.create_moe_dispatcher"
        assert kind is HookType.AROUND
        return hook(lambda *_, **__: "theirs", moe_runner_config, quant_method=quant_method)


def runner_config(**changes: Any) -> Any:
    """Return SGLang's config of a runner."""
    usual = {
        **dict.fromkeys(("gemm1_alpha", "gemm1_clamp_limit", "swiglu_limit", "runner_backend")),
        "activation": "silu",
        "is_gated": True,
        "gate_up_interleaved": True,
        "no_combine": False,
        "apply_router_weight_on_input": False,
        "routed_scaling_factor": 2.5,
        "num_fused_shared_experts": 0,
    }
    return SimpleNamespace(**usual | changes)


def _parallel() -> Any:
    """Return what SGLang knows of the ranks; a group that is kept would outlive its threads."""
    return SimpleNamespace(tp_group=SimpleNamespace(device_group=dist.group.WORLD), attn_tp_size=1)


def _loaded() -> Any:
    import sys

    return sys.modules
