# SPDX-License-Identifier: Apache-2.0
"""
The exchange of tokens and sums between data parallel ranks that share the experts:
`jitgen.parallel` replaces vLLM's gather and reduce-scatter.

Importing this module imports vLLM; `jitgen.integrations.vllm` imports it when vLLM needs it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.distributed import get_ep_group
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.fused_moe import modular_kernel
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP

from jitgen.events import warn_once
from jitgen.integrations.wires import Wires, wires_of


def made(moe: Any, quant_config: Any, asked: dict[str, Any]) -> Any:
    """
    Return the object that sends tokens to ranks, for a layer whose ranks would gather them;
    otherwise None.

    Args:
        moe: vLLM's config of the layer.
        quant_config: vLLM's config of its formats.
        asked: Other arguments of vLLM's function, by name.
    """
    parallel = moe.moe_parallel_config
    would_gather = parallel.use_all2all_kernels and moe.use_ag_rs_all2all_kernels
    if not would_gather or not asked.get("allow_new_interface") or asked.get("use_monolithic"):
        return None
    why = ""
    if parallel.is_sequence_parallel or parallel.ep_size != parallel.dp_size:
        why = "ranks are not data parallel ranks alone"
    elif moe.in_dtype is not torch.bfloat16:
        why = f"tokens are {moe.in_dtype}, and kernels take bfloat16"
    if why:
        warn_once(f"ranks of vLLM: {why}", "vLLM brings tokens to other ranks itself: %s", why)
        return None
    return JitgenRanks(moe, quant_config, _connected(moe))


def _connected(moe: Any) -> Wires:
    """Return the wires of a layer."""
    coordinator = get_ep_group()
    return wires_of(
        coordinator.device_group,
        hidden=moe.hidden_dim,
        top_k=moe.experts_per_token,
        device=coordinator.device,
    )


class JitgenRanks(modular_kernel.FusedMoEPrepareAndFinalizeModular):  # vLLM is untyped
    """
    Sends the tokens of all ranks to the experts of this rank, as a class of vLLM's.

    Args:
        moe_config: vLLM's config of the layer.
        quant_config: vLLM's config of its formats.
        wires: The connection to the other ranks.
    """

    def __init__(self, moe_config: Any, quant_config: Any, wires: Wires) -> None:
        self.moe_config, self.quant_config = moe_config, quant_config
        self._wires = wires

    @property
    def activation_format(self) -> Any:
        """Return vLLM's word for tokens that are not sorted yet."""
        return modular_kernel.FusedMoEActivationFormat.Standard

    def max_num_tokens_per_rank(self) -> int | None:
        """Return None: the number of tokens is not limited."""
        return None

    def topk_indices_dtype(self) -> torch.dtype | None:
        """Return the type of the ids that are sent."""
        return torch.int32

    def num_dispatchers(self) -> int:
        """Return the number of ranks."""
        return self._wires.few.ranks

    def output_is_reduced(self) -> bool:
        """Return True: `finalize` adds up the results of all ranks."""
        return True

    def prepare(
        self,
        a1: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        num_experts: int,  # vLLM's own
        expert_map: Tensor | None,
        apply_router_weight_on_input: bool,
        quant_config: Any,
        defer_input_quant: bool = False,
    ) -> tuple[Tensor, None, None, Tensor, Tensor]:
        """
        Return the tokens of all ranks, with the experts and weights of each. Rows of no token have
        experts of -1, and their results are never read.

        Raises:
            ValueError: The experts require quantised tokens.
        """
        if quant_config.quant_dtype is not None and not defer_input_quant:
            raise ValueError(
                "jitgen-ranks brings bfloat16 tokens to experts, which have to quantise them "
                "themselves, as jitgen's do: VLLM_PLUGINS=jitgen,jitgen-ranks"
            )
        if apply_router_weight_on_input:
            a1 = a1 * topk_weights.to(a1.dtype)
        counts = get_forward_context().dp_metadata.num_tokens_across_dp_cpu
        room = max(1, int(counts.max()))
        x, ids, weights, *_ = self._wires.of_room(room).dispatch(
            a1.contiguous(), topk_ids.int().contiguous(), topk_weights.float().contiguous(), room
        )
        return x, None, None, ids, weights

    def finalize(
        self,
        output: Tensor,
        fused_expert_output: Tensor,
        topk_weights: Tensor,  # vLLM's own
        topk_ids: Tensor,
        apply_router_weight_on_input: bool,
        weight_and_reduce_impl: Any,
    ) -> None:
        """
        Write the sum of all ranks' results for this rank's tokens to `output`.

        Raises:
            ValueError: The experts leave the sum over a token's places to this method.
        """
        if not isinstance(weight_and_reduce_impl, TopKWeightAndReduceNoOP):
            kind = type(weight_and_reduce_impl).__name__
            raise ValueError(
                f"jitgen-ranks needs experts that add up a token's places, as jitgen's do (got "
                f"{kind}): VLLM_PLUGINS=jitgen,jitgen-ranks"
            )
        room = len(fused_expert_output) // self.num_dispatchers()
        self._wires.of_room(room).combine(fused_expert_output, len(output), out=output)
