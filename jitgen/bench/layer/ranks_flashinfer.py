# SPDX-License-Identifier: Apache-2.0
"""
FlashInfer between ranks: `NVLinkOneSidedAlltoAll`, its exchange for serving engines, here also with
jitgen's launches between dispatch and combine; and its layer for Hopper that pushes FP8, with the
options that are its default.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from jitgen.bench.layer.ranks_peer import COARSE, Call, Given, Peer, Share
from jitgen.bench.peers import imported
from jitgen.config.config import SCALE_BLOCK
from jitgen.formats.e4m3 import MAX

_LIMIT_S = 30


class OneSided(Peer):
    """FlashInfer's exchange, of bfloat16 tokens."""

    def __init__(self, share: Share) -> None:
        module = imported("flashinfer.moe_ep", "FlashInfer's expert parallelism")
        sizes = module.MoEEpCommParams(
            num_experts=share.case.experts,
            top_k=share.case.top_k,
            max_tokens_per_rank=share.most,
            hidden_size=share.case.hidden,
        )
        ranks = module.BootstrapConfig(
            world_size=dist.get_world_size(),
            rank=dist.get_rank(),
            device=share.device.index,
            process_group=dist.group.WORLD,
        )
        how = module.NVLinkOneSidedConfig(timeout_sec=_LIMIT_S)
        self._wire = module.NVLinkOneSidedAlltoAll(ranks, sizes, how)
        self._alone = share.alone
        self.local_experts = share.case.experts // dist.get_world_size()

    def _sent(self, given: Given, rows: Tensor, scales: Tensor | None = None) -> Any:
        return self._wire.dispatch(
            rows,
            given.ids,
            given.weights,
            hidden_states_scale=scales,
            runtime_max_tokens_per_rank=len(rows),
        )

    def travel(self, given: Given) -> Call:
        """Return dispatch and combine."""
        return partial(self._both, given, given.x)

    def _both(self, given: Given, rows: Tensor, scales: Tensor | None = None) -> Tensor:
        self._sent(given, rows, scales)
        found: Tensor = self._wire.combine(given.y)
        return found

    def layer(self, given: Given) -> Call | None:
        """Return dispatch, jitgen's launches and combine."""

        def call() -> Tensor:
            rows = self._sent(given, given.x)
            y = self._alone(rows.hidden_states, rows.topk_weights, rows.topk_ids)
            found: Tensor = self._wire.combine(y)
            return found

        return call


class OneSidedFp8(OneSided):
    """FlashInfer's exchange, of tokens that its caller has quantised before."""

    tolerance = COARSE

    def travel(self, given: Given) -> Call:
        """Return dispatch and combine."""
        return partial(self._both, given, *_quantised(given.x))

    def layer(self, given: Given) -> None:
        """Return nothing: jitgen's launches take bfloat16, except from jitgen's own exchange."""

    def returned(self, given: Given) -> Tensor:
        """Return tokens that were sent back as they came."""
        found = self._sent(given, *_quantised(given.x))
        scales = found.hidden_states_scale.repeat_interleave(SCALE_BLOCK, -1)
        rows: Tensor = self._wire.combine((found.hidden_states.float() * scales).bfloat16())
        return rows


def _quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return tokens as FP8, with a scale for each block of columns."""
    blocks = x.float().unflatten(-1, (-1, SCALE_BLOCK))
    scales = blocks.abs().amax(-1) / MAX
    return (blocks / scales.unsqueeze(-1)).flatten(-2).to(torch.float8_e4m3fn), scales


class Push(Peer):
    """FlashInfer's layer for Hopper, which sends FP8 both ways."""

    tolerance = COARSE

    def __init__(self, share: Share) -> None:
        module = imported(
            "flashinfer.moe_ep.kernel_src.sm90.push_style_megamoe", "FlashInfer's sm90_push"
        )
        backend = imported("flashinfer.comm.mnnvl", "FlashInfer").TorchDistBackend
        case, weights, ranks = share.case, share.weights, dist.get_world_size()
        self._pipe = module.Sm90PushPipe(
            ep_size=ranks,
            rank=dist.get_rank(),
            num_local_experts=case.experts // ranks,
            hidden_size=case.hidden,
            top_k=case.top_k,
            token_capacity=share.most,
            device_index=share.device.index,
            config=module.Sm90PushConfig(dedup_dispatch=True, grouped_combine=True),
            comm_backend=backend(group=dist.group.WORLD),
            out_dtype=torch.bfloat16,
        )
        bundle = module.Sm90PushWeights(
            w13_fp8=weights.w13,
            w13_sf=weights.w13_scale,
            w2_fp8=weights.w2,
            w2_sf=weights.w2_scale,
        )
        self._layer = module.Sm90PushMoERunner(self._pipe, bundle)

    def travel(self, given: Given) -> Call:
        """Return the launches of the layer without those between dispatch and combine."""
        pipe, layer, out = self._pipe, self._layer, torch.empty_like(given.x)

        def call() -> Tensor:
            pipe.proto_begin_round()
            pipe.proto_dispatch(given.x, given.ids, given.weights)
            pipe.proto_wait_prefix()
            pipe.proto_compact(layer.a1, layer.sfa1, layer.meta, layer.row_expert)
            pipe.proto_combine(layer.y, layer.meta)
            pipe.proto_wait_combine()
            pipe.proto_reduce(out, len(given.x))
            pipe.proto_ack()
            return out

        return call

    def layer(self, given: Given) -> Call:
        """Return its forward pass."""
        out = torch.empty_like(given.x)
        return partial(self._layer, given.x, given.ids, given.weights, output=out)
