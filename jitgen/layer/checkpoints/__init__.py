# SPDX-License-Identifier: Apache-2.0
"""
Layers out of checkpoints: one file for each family of names.

A family says which tensors below a prefix are the matrices of an expert, and implies the activation
and the order of gates and ups. `FAMILIES` lists them; the family of a layer is found by the names
that are present. Unknown tensors below the prefix are refused by name
(`jitgen.layer.checkpoints.names`), as are statements of the model's ``config.json`` that no layer
computes (`jitgen.layer.checkpoints.gates` and `quantised`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.layer.checkpoints import (
    deepseek_v3,
    gates,
    gpt_oss,
    mixtral,
    model_config,
    names,
    quantised,
    qwen3_moe,
)
from jitgen.layer.checkpoints.family import Family, Form, Part, below
from jitgen.layer.checkpoints.model_config import ModelConfig, Said
from jitgen.layer.checkpoints.source import Source
from jitgen.layer.config import MoEConfig
from jitgen.layer.weights import ExpertWeights
from jitgen.support.text import shown

FAMILIES: dict[str, Family] = {
    "deepseek_v3": deepseek_v3.FAMILY,
    "qwen3_moe": qwen3_moe.FAMILY,
    "mixtral": mixtral.FAMILY,
    "gpt_oss": gpt_oss.FAMILY,
}
"""Every family, by name; the first whose names are there is taken."""


def load(  # noqa: PLR0913  # each is one thing to say
    source: str | Path | Mapping[str, Tensor],
    prefix: str,
    *,
    top_k: int | None = None,
    config: ModelConfig | None = None,
    family: str | None = None,
    first_expert: int = 0,
    local_experts: int | None = None,
    device: str | torch.device = "cpu",
    activation_format: str | None = None,
    **fields: Any,
) -> tuple[MoEConfig, ExpertWeights]:
    """
    Read a layer, or the share of it that a rank has; see `jitgen.MoELayer.from_checkpoint`.

    Args:
        source: A folder or file of safetensors, or tensors by name.
        prefix: Prefix of the layer's names.
        top_k: Experts of a token; None: as the model's config says.
        config: The model's config; None: the ``config.json`` beside the files, if there is one.
        family: One of `FAMILIES`; None: found by the names.
        first_expert: The first expert of this rank.
        local_experts: How many follow it here; None: all.
        device: Where the weights go.
        activation_format: What tokens are quantised to, where the weights leave a choice.
        fields: Further fields of `MoEConfig`; None: as config and family say. They win over the
            family's.

    Raises:
        InputError: There is no such layer, or one of another form; something below the prefix or
            in the config is not understood; or what they and the call say differs.
        ToolchainError: safetensors is not installed.
        ResourceError: There is no memory for the weights.
        OSError: A file cannot be read.
    """
    _require_arguments(prefix, top_k, first_expert, local_experts)
    device = _device(device)
    tensors = Source.open(source)
    name, form = _form(tensors, prefix, family)
    experts = names.count(tensors, prefix, form)
    if not experts:
        raise InputError("prefix", f"{prefix!r} has no experts of {name} in {tensors}")
    names.require_all_read(tensors, prefix, name, form, experts)
    said = model_config.said(config, tensors.folder, prefix)
    top_k = _require_known(tensors, said, experts, top_k)
    scale_format = quantised.scale_format(said, prefix, form)
    given = {name: value for name, value in fields.items() if value is not None}
    found = gates.fields(FAMILIES[name].config, said, given)
    last = experts if local_experts is None else first_expert + local_experts
    if not 0 <= first_expert < last <= experts:
        raise InputError(
            "first_expert",
            f"must begin a share of the {experts} experts in {tensors} (got {first_expert} to "
            f"{last})",
        )
    weights = form.read(
        Part(
            source=tensors,
            prefix=prefix,
            experts=range(first_expert, last),
            device=device,
            activation_format=activation_format,
            scale_format=scale_format,
        )
    )
    if said is not None:
        said.require_sizes(weights.hidden, weights.intermediate)
    return (
        MoEConfig(
            hidden=weights.hidden,
            intermediate=weights.intermediate,
            experts=experts,
            top_k=top_k,
            first_expert=first_expert,
            local_experts=weights.groups,
            **found,
        ),
        weights,
    )


def _require_known(source: Source, said: Said | None, experts: int, top_k: int | None) -> int:
    """
    Check the config's number of experts against the tensors, and return the number of experts of a
    token.
    """
    if said is not None:
        said.require_experts(experts)
        top_k = said.top_k(top_k)
    elif source.is_shard:
        raise InputError(
            "source",
            f"{source} is one of several files, so that there may be more than its {experts} "
            "experts: give the folder, or config=",
        )
    if top_k is None:
        where = "there is no config.json" if said is None else f"{said.what} does not say it"
        raise InputError("top_k", f"is required, or config= that says it: {where} (got None)")
    return top_k


def _require_arguments(
    prefix: object, top_k: object, first_expert: object, local_experts: object
) -> None:
    if not isinstance(prefix, str) or prefix.endswith("."):
        raise InputError(
            "prefix", f"must be what stands before '.experts', as text (got {shown(prefix)})"
        )
    for name, value, least in (
        ("top_k", top_k, 1),
        ("first_expert", first_expert, 0),
        ("local_experts", local_experts, 1),
    ):
        is_left_out = value is None and name != "first_expert"
        if not is_left_out and (type(value) is not int or value < least):
            raise InputError(name, f"must be an integer of at least {least} (got {shown(value)})")


def _device(device: str | torch.device) -> torch.device:
    """Return a device on which there can be tensors."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except torch.OutOfMemoryError:
        return found
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        raise InputError(
            "device",
            f"must be one that torch has here, such as cpu or cuda:0 (got {device!r})",
        ) from error
    return found


def _form(source: Source, prefix: str, family: str | None) -> tuple[str, Form]:
    """Return the family that was asked for, or whose names are present, and its form."""
    if family is not None and (not isinstance(family, str) or family not in FAMILIES):
        raise InputError("family", f"must be one of {', '.join(FAMILIES)} (got {family!r})")
    for name in FAMILIES if family is None else (family,):
        for form in FAMILIES[name].forms:
            if form.is_in(source, prefix):
                return name, form
    if family is not None:
        raise InputError("prefix", f"{prefix!r} has no experts of {family} in {source}")
    start = below(prefix, "")
    found = [each for each in source.names if each.startswith(start)]
    what = f"begins with {', '.join(map(shown, found[:3]))}" if found else "has no tensor"
    raise InputError(
        "prefix",
        f"{prefix!r} of {source} {what}, and experts of {', '.join(FAMILIES)} can be read: "
        f"{'; '.join(_marks())}; give what stands before '.experts'",
    )


def _marks() -> list[str]:
    """Return by which names families are known."""
    return [" with ".join(form.marks) for family in FAMILIES.values() for form in family.forms]
