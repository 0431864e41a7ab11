# SPDX-License-Identifier: Apache-2.0
"""
Layers out of checkpoints: one file for each family of names.

A family says which tensors below a prefix are the matrices of an expert, and what else follows from
the family: the activation, the order of gates and ups. `FAMILIES` lists them; a layer's is found by
the names that are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.layer.checkpoints import deepseek_v3, gpt_oss, mixtral, qwen3_moe
from jitgen.layer.checkpoints.family import Family, Part
from jitgen.layer.checkpoints.source import Source
from jitgen.layer.config import MoEConfig
from jitgen.layer.weights import ExpertWeights

FAMILIES: dict[str, Family] = {
    "deepseek_v3": deepseek_v3.FAMILY,
    "qwen3_moe": qwen3_moe.FAMILY,
    "mixtral": mixtral.FAMILY,
    "gpt_oss": gpt_oss.FAMILY,
}
"""Every family, by name; the first whose names are there is taken."""


def load(  # each is one thing to say
    source: str | Path | Mapping[str, Tensor],
    prefix: str,
    *,
    top_k: int,
    family: str | None = None,
    first_expert: int = 0,
    local_experts: int | None = None,
    device: str | torch.device = "cpu",
    activations: str | None = None,
    **config: Any,
) -> tuple[MoEConfig, ExpertWeights]:
    """
    Read a layer, or the share of it that a rank has; see `jitgen.MoELayer.from_checkpoint`.

    Args:
        source: A folder or file of safetensors, or tensors by name.
        prefix: What the layer's names begin with.
        top_k: Experts of a token.
        family: One of `FAMILIES`; None: found by the names.
        first_expert: The first expert of this rank.
        local_experts: How many follow it here; None: all.
        device: Where the weights go.
        activations: What tokens are quantised to, where the weights leave a choice.
        config: Further fields of `MoEConfig`, which win over the family's.

    Raises:
        InputError: There is no such layer, or one of another form.
        ToolchainError: safetensors is not installed.
        OSError: A file cannot be read.
    """
    tensors = Source.open(source)
    name = _named(family) if family is not None else _found(tensors, prefix)
    chosen = FAMILIES[name]
    experts = chosen.count(tensors, prefix)
    if not experts:
        raise InputError("prefix", f"{prefix!r} has no experts of {name} in {tensors}")
    last = experts if local_experts is None else first_expert + local_experts
    if not 0 <= first_expert < last <= experts:
        raise InputError(
            "first_expert",
            f"must begin a share of the {experts} experts in {tensors} (got {first_expert} to "
            f"{last})",
        )
    part = Part(
        source=tensors,
        prefix=prefix,
        experts=range(first_expert, last),
        device=_device(device),
        activations=activations,
    )
    weights = chosen.read(part)
    fields = {**chosen.config, **config}
    return (
        MoEConfig(
            hidden=weights.hidden,
            intermediate=weights.intermediate,
            experts=experts,
            top_k=top_k,
            first_expert=first_expert,
            local_experts=weights.groups,
            **fields,
        ),
        weights,
    )


def _device(device: str | torch.device) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise InputError(
            "device", f"must be one that torch knows, such as cpu or cuda:0 (got {device!r})"
        ) from None


def _named(family: str) -> str:
    if family not in FAMILIES:
        raise InputError("family", f"must be one of {', '.join(FAMILIES)} (got {family!r})")
    return family


def _found(tensors: Source, prefix: str) -> str:
    """Return the family whose names are there."""
    for name, family in FAMILIES.items():
        if family.is_in(tensors, prefix):
            return name
    below = [each for each in tensors.names if each.startswith(prefix)]
    what = f"begins with {', '.join(below[:3])}" if below else "has no tensor"
    raise InputError(
        "prefix",
        f"{prefix!r} of {tensors} {what}, and experts of {', '.join(FAMILIES)} can be read; give "
        "what stands before '.experts'",
    )
