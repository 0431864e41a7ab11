# SPDX-License-Identifier: Apache-2.0
"""
DeepEP and DeepGEMM between ranks: DeepEP's low-latency kernels, which need NVSHMEM, and its kernels
for one host, with memory for the most rows, so that the host need not wait for their number;
DeepGEMM's layer in one launch ("mega MoE"), of SGLang's build, which has it for Hopper.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from jitgen.bench.layer.ranks_peer import COARSE, Call, Given, Peer, Share
from jitgen.bench.peers import imported, require
from jitgen.config.config import SCALE_BLOCK


class LowLatency(Peer):
    """DeepEP's low-latency kernels: rows of single experts travel, tokens as FP8."""

    tolerance = COARSE

    def __init__(self, share: Share) -> None:
        module = imported("deep_ep", "DeepEP")
        case, ranks = share.case, dist.get_world_size()
        most = share.most
        size = module.Buffer.get_low_latency_rdma_size_hint(most, case.hidden, ranks, case.experts)
        self._buffer = module.Buffer(
            dist.group.WORLD, 0, size, low_latency_mode=True, num_qps_per_rank=case.experts // ranks
        )
        self._experts, self._most = case.experts, most
        rows = case.experts // ranks, ranks * most, case.hidden
        self._rows = torch.zeros(rows, dtype=torch.bfloat16, device=share.device)

    def travel(self, given: Given) -> Call:
        """Return dispatch and combine."""
        numbers, out = given.ids.long(), torch.empty_like(given.x)

        def call() -> Tensor:
            handle = self._sent(given.x, numbers)[1]
            self._buffer.low_latency_combine(self._rows, numbers, given.weights, handle, out=out)
            return out

        return call

    def _sent(self, x: Tensor, numbers: Tensor) -> tuple[tuple[Tensor, Tensor], Any]:
        """Return rows of the rank's experts with their scales, and what combine needs."""
        rows, _, handle, _, _ = self._buffer.low_latency_dispatch(
            x, numbers, self._most, self._experts, use_fp8=True
        )
        return rows, handle

    def returned(self, given: Given) -> Tensor:
        """Return tokens that were sent back as they came."""
        numbers = given.ids.long()
        (rows, scales), handle = self._sent(given.x, numbers)
        for into, row, scale in zip(self._rows, rows, scales, strict=True):
            into.copy_(row.float() * scale.repeat_interleave(SCALE_BLOCK, -1))
        out: Tensor = self._buffer.low_latency_combine(self._rows, numbers, given.weights, handle)[
            0
        ]
        return out

    def copies(self, given: Given) -> Tensor:
        """Return the sums of weights: each expert's row comes back with its weight."""
        return given.weights.sum(-1, keepdim=True)


class Intranode(Peer):
    """DeepEP's kernels for one host."""

    def __init__(self, share: Share) -> None:
        module = imported("deep_ep", "DeepEP")
        ranks, self._experts = dist.get_world_size(), share.case.experts
        self.local_experts = self._experts // ranks
        bytes_of = 2 * share.case.hidden
        buffer = module.Buffer
        size = max(
            config(ranks).get_nvl_buffer_size_hint(bytes_of, ranks)
            for config in (buffer.get_dispatch_config, buffer.get_combine_config)
        )
        self._buffer = buffer(dist.group.WORLD, size, 0)

    def travel(self, given: Given) -> Call:
        """Return the layout, dispatch and combine."""
        numbers = given.ids.long()

        def call() -> Tensor:
            out: Tensor = self._buffer.combine(given.y, self._sent(given, numbers)[1])[0]
            return out

        return call

    def _sent(self, given: Given, numbers: Tensor) -> tuple[Tensor, Any]:
        """Return a rank's rows, and what combine needs."""
        per_rank, _, per_expert, is_in_rank, _ = self._buffer.get_dispatch_layout(
            numbers, self._experts
        )
        rows, _, _, _, handle, _ = self._buffer.dispatch(
            given.x,
            num_tokens_per_rank=per_rank,
            is_token_in_rank=is_in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=numbers,
            topk_weights=given.weights,
            num_worst_tokens=len(given.y),
        )
        return rows, handle

    def returned(self, given: Given) -> Tensor:
        """Return tokens that were sent back as they came."""
        rows, handle = self._sent(given, given.ids.long())
        out: Tensor = self._buffer.combine(rows, handle)[0]
        return out


class Mega(Peer):
    """
    DeepGEMM's layer in one launch, after a launch that quantises tokens into its memory. It
    quantises activations with other scales than jitgen.
    """

    tolerance = COARSE

    def __init__(self, share: Share) -> None:
        self._module = module = imported("deep_gemm", "DeepGEMM")
        for name in ("fp8_mega_moe", "mega_moe_pre_dispatch_sm90"):
            require(hasattr(module, name), f"this deep_gemm has no {name}: no such layer on Hopper")
        case, weights = share.case, share.weights
        self._memory = module.get_symm_buffer_for_sm90_mega_moe(
            dist.group.WORLD, case.experts, share.most, case.top_k, case.hidden, case.intermediate
        )
        self._w13, self._w2 = module.transform_weights_for_mega_moe_sm90(
            (weights.w13, weights.w13_scale), (weights.w2, weights.w2_scale)
        )

    def layer(self, given: Given) -> Call:
        """Return both launches."""
        module, memory, out = self._module, self._memory, torch.empty_like(given.x)
        rows = given.x, given.ids, given.weights
        places = memory.x, memory.x_sf, memory.topk_idx, memory.topk_weights

        def call() -> Tensor:
            module.mega_moe_pre_dispatch_sm90(*rows, *places, len(given.x))
            module.fp8_mega_moe(out, self._w13, self._w2, memory)
            return out

        return call
