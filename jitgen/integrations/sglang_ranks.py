# SPDX-License-Identifier: Apache-2.0
"""
The exchange of tokens and sums between SGLang's ranks that share the experts: `jitgen.parallel` in
the place of FlashInfer's all-to-all, and jitgen's experts behind it.

Importing this module imports SGLang; `jitgen.integrations.sglang` imports it when SGLang makes a
layer.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.dp_attention import get_dp_global_num_tokens
from sglang.srt.layers.moe.token_dispatcher.base import BaseDispatcher
from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput
from sglang.srt.layers.moe.topk import StandardTopKOutput
from sglang.srt.layers.moe.utils import get_moe_a2a_backend
from sglang.srt.runtime_context import get_parallel
from sglang.srt.utils.common import get_device
from torch import Tensor

from jitgen.errors import InputError
from jitgen.formats.protocol import ceil_div
from jitgen.integrations.sglang_experts import Fused, fused
from jitgen.integrations.wires import wires_of
from jitgen.parallel import share


def choosing(usual: Any, moe_runner_config: Any, *given: Any, **named: Any) -> Any:
    """Return jitgen's dispatcher for a layer in the place of FlashInfer's, and others as usual."""
    if get_moe_a2a_backend().is_flashinfer():
        return JitgenDispatcher(moe_runner_config)
    return usual(moe_runner_config, *given, **named)


class JitgenDispatcher(BaseDispatcher):  # SGLang is untyped
    """
    Sends the tokens of all ranks to the experts of this rank, as a class of SGLang's.

    Args:
        moe_runner_config: SGLang's config of the layer.

    Raises:
        InputError: The layer has shared experts among its experts, or its ranks do not hold equal
            numbers of experts.
    """

    def __init__(self, moe_runner_config: Any) -> None:
        super().__init__()
        layer = moe_runner_config
        self.runner_backend = layer.runner_backend
        group = get_parallel().tp_group.device_group
        self._first, local_experts = share(layer.num_experts, group.rank(), group.size())
        if layer.num_fused_shared_experts or local_experts != layer.num_local_experts:
            raise InputError(
                "moe_runner_config",
                f"must have {layer.num_experts} experts shared equally by {group.size()} ranks, "
                f"and no shared ones among them (got {layer.num_local_experts} on a rank, "
                f"{layer.num_fused_shared_experts or 0} shared): give "
                "--disable-shared-experts-fusion, or leave jitgen-ranks out of SGLANG_PLUGINS",
            )
        self._local_experts = local_experts
        self._wires = wires_of(
            group, hidden=layer.hidden_size, top_k=layer.top_k, device=get_device()
        )
        self._sent: tuple[int, int] | None = None

    def dispatch(self, hidden_states: Tensor, topk_output: Any) -> StandardDispatchOutput:
        """
        Return the tokens of all ranks, with the experts of this rank and their weights. Places of
        other ranks' experts, and rows of no token, have experts of -1.

        Args:
            hidden_states: (T, H) bfloat16: the tokens of this rank.
            topk_output: SGLang's routing of these tokens.

        Raises:
            InputError: Tokens are not bfloat16, or the numbers of tokens of other ranks are
                unknown.
        """
        if hidden_states.dtype is not torch.bfloat16:
            raise InputError(
                "hidden_states", f"must be bfloat16, as kernels are (got {hidden_states.dtype})"
            )
        if not hasattr(topk_output, "topk_ids"):  # SGLang has not routed yet
            topk_output = topk_output.to_standard()
        room = self._room(len(hidden_states))
        every = self._wires.of_room(room).dispatch(
            hidden_states.contiguous(),
            topk_output.topk_ids.int().contiguous(),
            topk_output.topk_weights.float().contiguous(),
            room,
        )
        self._sent = room, len(hidden_states)
        ids = every.topk_ids - self._first
        ids = ids.masked_fill((ids < 0) | (ids >= self._local_experts), -1)
        return StandardDispatchOutput(
            hidden_states=every.x,
            hidden_states_scale=None,
            topk_output=StandardTopKOutput(every.topk_weights, ids, topk_output.router_logits),
        )

    def combine(self, combine_input: Any) -> Tensor:
        """
        Return the sum of all ranks' results for this rank's tokens, (T, H) bfloat16.

        Raises:
            InputError: There is no dispatch before it.
        """
        if self._sent is None:
            raise InputError("combine_input", "must be of a dispatch, and follow it (got none)")
        (room, tokens), self._sent = self._sent, None
        wire = self._wires.of_room(room)
        return wire.combine(combine_input.hidden_states.contiguous(), tokens)

    def _room(self, tokens: int) -> int:
        """Return the largest number of tokens of a rank, which all ranks compute alike."""
        counts = get_dp_global_num_tokens()
        if counts is not None and len(counts) > 1:
            return max(1, ceil_div(max(counts), get_parallel().attn_tp_size))
        if self._wires.few.ranks > 1:
            raise InputError(
                "hidden_states",
                "must belong to ranks that know each other's numbers of tokens: start SGLang with "
                "--attn-dp-size as large as --tp-size",
            )
        return max(1, tokens)


def of_ranks(dispatched: Any, weights: Any, layer: Any) -> Any:
    """
    Compute a layer for tokens that `JitgenDispatcher` brought, with weights as SGLang's runner
    ``deep_gemm`` has them.

    Raises:
        InputError: jitgen does not compute the layer.
    """
    return _ours()(dispatched, _as_triton(weights), layer)


@cache
def _ours() -> Fused:
    return fused(None)


def _as_triton(given: Any) -> Any:
    """Return weights of the runner ``deep_gemm`` with the fields of those of ``triton``."""
    is_other = bool(given.is_fp4_experts or given.use_mxfp8)
    return SimpleNamespace(
        w13_weight=given.w13_weight,
        w2_weight=given.w2_weight,
        w13_scale=given.w13_scale,
        w2_scale=given.w2_scale,
        b13=None,
        b2=None,
        a13_scale=None,
        a2_scale=None,
        use_fp8_w8a8=given.w13_weight.dtype is torch.float8_e4m3fn,
        per_channel_quant=False,
        block_shape=given.block_shape,
        use_mxfp8=is_other,  # stands for both: layers with packed weights are refused
        use_int8_w8a8=False,
        use_int8_w8a16=False,
        use_int4_w4a16=False,
        fuse_swiglu_interleaved=False,
    )
