# SPDX-License-Identifier: Apache-2.0
"""
Makes a layer from a model's config alone: sizes, activation and encoding, with all weights zero.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from jitgen.config import BLayout
from jitgen.config.config import SCALE_BLOCK
from jitgen.config.prepacked import PrepackedFormat
from jitgen.errors import InputError
from jitgen.formats import prepacked_blocks
from jitgen.formats.prepacked import PrepackedWeights
from jitgen.formats.prepacked_int4 import GROUPS
from jitgen.formats.protocol import ceil_div
from jitgen.layer.checkpoints import destinations, gates, quantised, routers
from jitgen.layer.checkpoints.encodings import ENCODINGS
from jitgen.layer.checkpoints.family import FAMILIES, Family
from jitgen.layer.checkpoints.model_config import Said
from jitgen.layer.checkpoints.part import Columns, Share
from jitgen.layer.config import MoEConfig
from jitgen.layer.weights import BLOCK128, NONE, ROW, ExpertWeights, Matrices


def layer(  # noqa: PLR0913  # each is one thing to say
    said: Said,
    *,
    layer_number: int | None,
    share: Share,
    first_expert: int,
    local_experts: int | None,
    device: torch.device,
    activation_format: str | None,
    dequantize: bool,
    fields: dict[str, Any],
) -> tuple[MoEConfig, ExpertWeights]:
    """
    Return the config of a layer and weights that are zero, with the types and shapes of a
    checkpoint of the model.

    Args:
        said: The model's config.
        layer_number: Number of the layer; None: not given.
        share: The columns of this rank.
        first_expert: The first expert of this rank.
        local_experts: Number of experts of this rank; None: all from `first_expert` on.
        device: Device of the weights.
        activation_format: The format to which tokens are quantised, if the weights allow several.
        dequantize: Whether weights are bfloat16 instead of as the model stores them.
        fields: Further fields of `MoEConfig`.

    Raises:
        InputError: The config lacks a value that is needed, or has one that no layer supports.
        ResourceError: There is no memory for the weights.
    """
    family = _family(said)
    kernel, unit = _kernel(said, dequantize)
    hidden, whole = said.sizes()
    given = {name: value for name, value in fields.items() if value is not None}
    found = gates.fields(family.config, said, given, layer_number, is_gated=family.is_gated)
    routers.require_known_experts(said)
    fills = not (kernel == BLOCK128 and found.get("interleaved"))
    columns = Columns.of(whole, share, unit, fills=fills)
    config = MoEConfig(
        hidden=hidden,
        intermediate=columns.size,
        experts=said.experts(),
        top_k=said.required_top_k(),
        first_expert=first_expert,
        local_experts=local_experts,
        zero_experts=said.zero_experts(share.ranks),
        **found,
    )
    shapes = {
        "w13": (config.groups, family.inputs * columns.size, hidden),
        "w2": (config.groups, hidden, columns.size),
    }
    weights: dict[str, Any] = {}
    for name, shape in shapes.items():
        if prod(shape) >= destinations.MOST_BYTES // 4:
            raise said.error(f"has sizes that no machine has room for: {name} would be {shape}")
        with destinations.allocating(f"from_config, {name}"):
            weights[name], scale = zeros(kernel, shape, device, activation_format)
        if scale is not None:
            weights[f"{name}_scale"] = scale
        if family.has_bias:
            weights[f"{name}_bias"] = torch.zeros(shape[:2], dtype=torch.float32, device=device)
    return config, ExpertWeights(**weights, activation_format=activation_format)


def _family(said: Said) -> Family:
    """
    Return the family of names of a model type; for unknown types, a family without further
    properties.
    """
    kind = said.section.get("model_type")
    return FAMILIES[str(kind) if kind in ("gpt_oss", "nemotron_h") else "deepseek_v3"]


def _kernel(said: Said, dequantize: bool) -> tuple[str, int]:
    """
    Return the format of the weights in the layer, and the number of columns that share a scale.
    """
    names = quantised.stated(said)
    encoding = next(each for each in ENCODINGS if each.name == names[0])
    if dequantize:
        return NONE, 1
    if encoding.kernel is None:
        raise said.error(
            f"says that weights are {encoding.name}, which no layer computes with as it is: give "
            "dequantize=True for bfloat16"
        )
    if encoding.kernel != "int4":
        return encoding.kernel, encoding.unit
    values = quantised.group_size(said)
    if values not in GROUPS:
        groups = "without a group_size" if values is None else f"in groups of {values}"
        raise said.error(
            f"says that weights are int4 {groups}, and layers compute with 32 or 128: "
            "give dequantize=True for bfloat16"
        )
    return GROUPS[values], values


def zeros(
    kernel: str, shape: tuple[int, int, int], device: torch.device, activation_format: str | None
) -> tuple[Matrices, Tensor | None]:
    """Return matrices of zeros (G, N, K), with scales of 1 if the format has scales."""
    groups, n, k = shape
    if kernel in tuple(PrepackedFormat):
        form, is_wide = PrepackedFormat(kernel), activation_format in (None, NONE)
        sizes_of = prepacked_blocks.shape_of(*shape, form)
        values = torch.zeros(sizes_of, dtype=torch.int32, device=device)
        return PrepackedWeights(
            values=values,
            factor=torch.ones(groups, dtype=torch.float32, device=device),
            n=n,
            k=k,
            layout=BLayout.WIDE1 if is_wide else BLayout.EXACT1,
            format=form,
        ), None
    if kernel == NONE:
        return torch.zeros(shape, dtype=torch.bfloat16, device=device), None
    blocks = (groups, ceil_div(n, SCALE_BLOCK), ceil_div(k, SCALE_BLOCK))
    sizes = {BLOCK128: blocks, ROW: (groups, n)}
    values = torch.zeros(shape, dtype=torch.float8_e4m3fn, device=device)
    return values, torch.ones(sizes[kernel], dtype=torch.float32, device=device)


def require_config(said: Said | None) -> Said:
    """Return the statements of a config; refuse a config without experts."""
    if said is None or not said.section:
        raise InputError("config", "must say something of experts (got nothing)")
    return said
