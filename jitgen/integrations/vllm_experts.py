# SPDX-License-Identifier: Apache-2.0
"""
The class that vLLM instantiates for each layer: experts with bfloat16 tokens, and weights in the
layout of checkpoints. vLLM's log gets a line for each kind of layer that jitgen computes, and a
line with the reason for each kind that it does not.

Importing this module imports vLLM; `jitgen.integrations.vllm` imports it when vLLM chooses experts.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.fused_moe import modular_kernel
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    kFp8Dynamic128Sym,
    kFp8DynamicTokenSym,
    kFp8Static128BlockSym,
    kFp8StaticChannelSym,
)
from vllm.platforms import current_platform

from jitgen.config import Numerics
from jitgen.integrations.sizes import Sizes, chain_of, prewarmed
from jitgen.integrations.vllm_activations import NAMES, fields_of
from jitgen.layer.call import run
from jitgen.layer.chain import Chain
from jitgen.layer.weights import BLOCK128, NONE, ROW, ExpertWeights
from jitgen.ops.versions import Places
from jitgen.settings import settings

_HOPPER = 90
_SCHEMES = (
    (None, None),
    (kFp8Static128BlockSym, kFp8Dynamic128Sym),
    (kFp8StaticChannelSym, kFp8DynamicTokenSym),
)
"""Formats of weights and of tokens."""

_logger = logging.getLogger("vllm.jitgen")  # below vLLM's, whose handlers and level it has

_told: set[str] = set()


def _tell_once(level: int, message: str, *arguments: object) -> None:
    """Log a line to vLLM's log, once."""
    line = message % arguments
    if line not in _told:
        _told.add(line)
        _logger.log(level, "%s", line)


def tell_left(moe: Any, why: str | None) -> None:
    """Log, once, why jitgen does not compute layers of this kind."""
    _tell_once(logging.WARNING, "jitgen does not compute layers of %s: %s", _described(moe), why)


def fits(experts: Any, moe: Any, weights: Any, tokens: Any) -> bool:
    """Return whether a class of experts computes a layer with these formats, as vLLM asks it."""
    formats = modular_kernel.FusedMoEActivationFormat
    is_batched = moe.moe_parallel_config.use_batched_activation_format
    batches = formats.BatchedExperts if is_batched else formats.Standard
    return bool(experts.is_supported_config(experts, moe, weights, tokens, batches)[0])


def _described(moe: Any) -> str:
    """Return a description of a layer, which is the same for equal layers."""
    sizes = f"{moe.hidden_dim} x {moe.intermediate_size_per_partition}"
    return (
        f"{moe.num_local_experts} of {moe.num_experts} experts of {sizes}, "
        f"{moe.experts_per_token} for each token, {moe.activation.value}"
    )


class JitgenExperts(modular_kernel.FusedMoEExpertsModular):  # vLLM is untyped
    """
    The experts of one layer as a class of vLLM's.

    The constructor compiles the layer's kernels into the store, so that no request waits for a
    compile.
    """

    expects_unquantized_inputs = True
    activation_form: str | None = None

    def __init__(self, moe_config: Any, quant_config: Any) -> None:
        super().__init__(moe_config, quant_config)
        self._kept: tuple[tuple[int, int], Places, Chain] | None = None
        gate = fields_of(moe_config, quant_config)
        if gate is None:
            raise ValueError(f"jitgen's experts have no {_described(moe_config)} with its numbers")
        self.sizes = Sizes(
            hidden=moe_config.hidden_dim,
            intermediate=moe_config.intermediate_size_per_partition,
            experts=moe_config.num_experts,
            local_experts=moe_config.num_local_experts,
            top_k=moe_config.experts_per_token,
            form=self.form_of(quant_config),
            activation_format=self.activation_form,
            gate=tuple(gate.items()),
            has_bias=bool(moe_config.has_bias),
        )
        prewarmed(self.sizes, max_tokens=moe_config.max_num_tokens)
        words = "jitgen computes layers of %s, quantised: %s"
        _tell_once(logging.INFO, words, _described(moe_config), self.sizes.formats)

    @staticmethod
    def is_supported_config(
        cls: Any,  # noqa: PLW0211  # vLLM's own
        moe_config: Any,
        *rest: Any,
    ) -> tuple[bool, str | None]:
        """Return whether there is a chain for layers of this kind, and otherwise the reason."""
        fits, why = modular_kernel.FusedMoEExperts.is_supported_config(cls, moe_config, *rest)
        if fits and moe_config.in_dtype is not torch.bfloat16:
            fits, why = False, f"tokens are {moe_config.in_dtype}, and kernels take bfloat16"
        if fits and fields_of(moe_config) is None:
            fits, why = False, f"no kernel has {moe_config.activation.value} with its numbers"
        if not fits:
            tell_left(moe_config, why)
        return fits, why

    def form_of(self, quant_config: Any) -> str:
        """Return the format of the weights according to vLLM's config of quantisation."""
        if quant_config.quant_dtype is None:
            return NONE
        return ROW if quant_config.per_act_token_quant else BLOCK128

    @staticmethod
    def activation_format() -> Any:
        """Return vLLM's name of the format of tokens that are not sorted."""
        return modular_kernel.FusedMoEActivationFormat.Standard

    @staticmethod
    def _supports_current_device() -> bool:
        return bool(current_platform.is_cpu() or current_platform.is_device_capability(_HOPPER))

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return True

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        return (weight_key, activation_key) in _SCHEMES

    @staticmethod
    def _supports_activation(activation: Any) -> bool:
        return activation.value in NAMES

    @staticmethod
    def _supports_parallel_config(moe_parallel_config: Any) -> bool:
        return True

    @staticmethod
    def _supports_batch_invariance() -> bool:
        """Return whether JITGEN_NUMERICS promises the batch invariance of VLLM_BATCH_INVARIANT."""
        return bool(settings.numerics == Numerics.INVARIANT)

    def workspace_shapes(self, M: int, N: int, K: int, *rest: Any) -> Any:  # noqa: N803
        """Return the shapes of workspaces: vLLM allocates no memory except for the result."""
        return (0,), (0,), (M, K)

    def finalize_weight_and_reduce_impl(self) -> Any:
        """Return vLLM's class for results that need no further sum."""
        return TopKWeightAndReduceNoOP()

    def apply(
        self,
        output: Tensor,
        hidden_states: Tensor,
        w1: Tensor,
        w2: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        **rest: Any,
    ) -> None:
        """Write the layer's result for (T, H) tokens into `output`."""
        expert_map = rest["expert_map"]
        if expert_map is not None:  # numbers of the whole layer to those of this rank, or -1
            topk_ids = expert_map[topk_ids.long()]
        if rest["apply_router_weight_on_input"]:  # and so it was
            topk_weights = torch.ones_like(topk_weights)
        experts = max(rest["global_num_experts"], w1.shape[0], topk_ids.shape[1])
        chain = self._chain(w1, w2, topk_ids.shape[1], experts)
        with torch.no_grad():
            run(chain, hidden_states, topk_weights.float(), topk_ids, out=output)

    def _chain(self, w1: Tensor, w2: Tensor, top_k: int, experts: int) -> Chain:
        """
        Return the chain of the layer's weights and scales; it is kept while these stay in the same
        memory.
        """
        sources = w1, w2, self.w1_scale, self.w2_scale, self.w1_bias, self.w2_bias
        if self._kept is not None:
            asked, places, chain = self._kept
            if asked == (top_k, experts) and places.hold(sources):
                return chain
        w13_bias, w2_bias = (None if x is None else x.detach().float() for x in sources[4:])
        weights = ExpertWeights(**self.matrices(w1, w2), w13_bias=w13_bias, w2_bias=w2_bias)
        chain = chain_of(weights, experts, top_k, **dict(self.sizes.gate))
        if all(x is None or x.dtype is torch.float32 for x in sources[4:]):  # else they are copies
            self._kept = (top_k, experts), Places(sources), chain
        return chain

    def matrices(self, w1: Tensor, w2: Tensor) -> dict[str, Any]:
        """Return the fields of `ExpertWeights` for the matrices and their scales."""
        scales = [None if x is None else x.detach() for x in (self.w1_scale, self.w2_scale)]
        if self.sizes.form == ROW:  # (E, N, 1) in vLLM
            scales = [None if x is None else x.flatten(1) for x in scales]
        w13_scale, w2_scale = scales
        return {
            "w13": w1.detach(),
            "w2": w2.detach(),
            "w13_scale": w13_scale,
            "w2_scale": w2_scale,
        }
