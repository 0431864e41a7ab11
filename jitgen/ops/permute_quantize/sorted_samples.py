# SPDX-License-Identifier: Apache-2.0
"""Additions to the samples of `permute_quantize` for kernels that sort the pairs themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen.config.permute_quantize import PermuteQuantizeConfig
from jitgen.ops.route import reference
from jitgen.ops.solved import Output, untouched

FIRST = 3
"""
The first local expert. The experts before it, and two after the last one, are on other devices.
"""


def in_order(pairs: Tensor, rows: tuple[int, ...]) -> Tensor:
    """Return the pairs sorted within each group; `rows` are the rows of each group."""
    parts = torch.split(pairs, list(rows))
    return torch.cat([part.sort().values for part in parts])


def experts_of(pairs: Tensor, rows: tuple[int, ...], tokens: int, top_k: int) -> Tensor:
    """
    Return (T, k) experts whose local pairs are `pairs`, in groups of `rows`; all other pairs have
    an expert of another device, or none.
    """
    groups = len(rows)
    others = torch.tensor([-1, 0, FIRST - 1, FIRST + groups, FIRST + groups + 1])
    ids = others.repeat(-(-tokens * top_k // len(others)))[: tokens * top_k].to(torch.int32)
    local = torch.arange(groups).repeat_interleave(torch.tensor(rows))
    ids[pairs.cpu().long()] = (local + FIRST).to(torch.int32)
    return ids.view(tokens, top_k).to(pairs.device)


def order_of(topk_ids: Tensor, groups: int) -> list[Output]:
    """Return the order of the pairs, as a kernel writes it."""
    expected = reference.sort_pairs(
        topk_ids, experts=FIRST + groups + 2, first_expert=FIRST, local_experts=groups
    )
    return [
        Output(name=name, found=untouched(torch.empty_like(each)), expected=each)
        for name, each in expected._asdict().items()
    ]


def named_of(topk_ids: Tensor, groups: int, given: Tensor | None, config: Any) -> dict[str, Any]:
    """Return the arguments of `sort_quantize` by name, without x."""
    kind: PermuteQuantizeConfig = config
    return {
        "topk_ids": topk_ids,
        "experts": FIRST + groups + 2,
        "first_expert": FIRST,
        "local_experts": groups,
        "format": str(kind.format),
        "global_scale": given,
        "power_of_two": kind.power_of_two,
    }
