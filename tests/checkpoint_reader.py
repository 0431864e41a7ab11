# SPDX-License-Identifier: Apache-2.0
"""A plain reader of layers in checkpoints, with nothing of jitgen's in it, to compare with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import jitgen
from jitgen.formats.prepacked import PrepackedWeights

Numbers = list[tuple[Tensor, Tensor]]
"""For each expert, the matrix of its gates and ups, and that of its downs."""


class Unreadable(Exception):
    """The plain reader finds something that it does not know."""


def plainly(tensors: dict[str, Any], prefix: str) -> Numbers:
    """Return the numbers that a layer's tensors stand for; any exception if that is not known."""
    own = {
        name.removeprefix(f"{prefix}.experts."): each
        for name, each in tensors.items()
        if name.startswith(f"{prefix}.experts.")
    }
    if "gate_up_proj_blocks" in own:
        found, used = _mxfp4(own)
    else:
        found, used = _by_expert(own)
    if own.keys() != used:
        raise Unreadable(own.keys() ^ used)
    for pair in found:
        (twice, hidden), (hidden2, inner) = (each.shape for each in pair)
        if (twice, hidden) != (2 * inner, hidden2):
            raise Unreadable((twice, hidden, hidden2, inner))
    return found


def _by_expert(own: dict[str, Any]) -> tuple[Numbers, set[str]]:
    names = ("w1", "w3", "w2") if "0.w1.weight" in own else ("gate_proj", "up_proj", "down_proj")
    count = 1 + max(int(name.partition(".")[0]) for name in own)
    used: set[str] = set()
    found = []
    for e in range(count):
        matrices = []
        for name in names:
            full = f"{e}.{name}.weight"
            weight = own[full]
            used.add(full)
            if weight.dtype is torch.float8_e4m3fn:
                used.add(f"{full}_scale_inv")
                matrices.append(weight.float() * _scale(own[f"{full}_scale_inv"], weight.shape))
            elif weight.dtype in (torch.bfloat16, torch.float16, torch.float32):
                matrices.append(weight.bfloat16().float())
            else:
                raise Unreadable(weight.dtype)
        found.append((torch.cat(matrices[:2]), matrices[2]))
    return found, used


def _scale(scale: Tensor, shape: torch.Size) -> Tensor:
    if scale.dtype is torch.uint8:
        scale = scale.view(torch.float8_e8m0fnu)
    if not scale.dtype.is_floating_point or scale.dtype is torch.float64:
        raise Unreadable(scale.dtype)
    numbers = scale.float()
    if not (numbers.isfinite() & (numbers > 0)).all():
        raise Unreadable("values")
    if numbers.shape != (-(-shape[0] // 128), -(-shape[1] // 128)):
        raise Unreadable(numbers.shape)
    wide = numbers.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return wide[: shape[0], : shape[1]]


def _mxfp4(own: dict[str, Any]) -> tuple[Numbers, set[str]]:
    codes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    codes = torch.cat([codes, -codes])
    used, found = set(), []
    for name in ("gate_up_proj", "down_proj"):
        blocks, scales, bias = (own[f"{name}_{last}"] for last in ("blocks", "scales", "bias"))
        used |= {f"{name}_{last}" for last in ("blocks", "scales", "bias")}
        if blocks.dtype is not torch.uint8 or blocks.shape[-1] != 16:
            raise Unreadable(blocks.dtype)
        scales = scales.view(torch.uint8)
        if scales.shape != blocks.shape[:-1] or (scales == 255).any():
            raise Unreadable(scales.shape)
        if bias.shape != blocks.shape[:2] or not bias.isfinite().all():
            raise Unreadable(bias.shape)
        if bias.dtype not in (torch.bfloat16, torch.float16, torch.float32):
            raise Unreadable(bias.dtype)
        pairs = torch.stack([codes[(blocks & 15).long()], codes[(blocks >> 4).long()]], -1)
        values = pairs.flatten(-2) * torch.exp2(scales.float() - 127).unsqueeze(-1)
        found.append(values.flatten(-2))
    if len(found[0]) != len(found[1]):
        raise Unreadable("experts")
    up = torch.cat([found[0][:, 0::2], found[0][:, 1::2]], 1)  # gates in front of ups
    return list(zip(up, found[1], strict=True)), used


def of_layer(layer: jitgen.MoELayer) -> Numbers:
    """Return the numbers that a layer computes with."""
    weights, found = layer.weights, []
    for name in ("w13", "w2"):
        each, scale = getattr(weights, name), getattr(weights, f"{name}_scale")
        if isinstance(each, PrepackedWeights):
            found.append(each.weights())
        elif scale is None:
            found.append(each.float())
        else:
            wide = scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
            found.append(each.float() * wide[:, : each.shape[1], : each.shape[2]])
    if layer.config.interleaved:
        found[0] = torch.cat([found[0][:, 0::2], found[0][:, 1::2]], 1)
    return list(zip(*found, strict=True))
