# SPDX-License-Identifier: Apache-2.0
"""
Reads layers from checkpoints. The names of tensors and the encoding of their values are
independent: `FAMILIES` lists the names, `ENCODINGS` the encodings, and any names may have any
encoding.

An unknown tensor below the prefix is an error that names it (`jitgen.layer.checkpoints.names`). So
is an entry of the model's ``config.json`` that no layer supports (`jitgen.layer.checkpoints.gates`
and `quantised`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.layer.checkpoints import blank, forms, gates, matrices, model_config, names, quantised
from jitgen.layer.checkpoints.encodings import ENCODINGS
from jitgen.layer.checkpoints.family import FAMILIES
from jitgen.layer.checkpoints.matrices import Progress
from jitgen.layer.checkpoints.model_config import ModelConfig, Said
from jitgen.layer.checkpoints.part import Form, Part, Share
from jitgen.layer.checkpoints.source import Source
from jitgen.layer.config import MoEConfig
from jitgen.layer.weights import ExpertWeights
from jitgen.support.text import shown

_OF_GPT_OSS = ("gpt_oss",)
"""Model types whose experts have a bias, and alternating rows of gates and ups."""

__all__ = ["ENCODINGS", "FAMILIES", "load", "of_config"]


def load(  # noqa: PLR0913  # each is one thing to say
    source: str | Path | Mapping[str, Tensor],
    prefix: str | None = None,
    *,
    layer: int | None = None,
    top_k: int | None = None,
    config: ModelConfig | None = None,
    family: str | None = None,
    first_expert: int = 0,
    local_experts: int | None = None,
    rank: int = 0,
    ranks: int = 1,
    device: str | torch.device = "cpu",
    activation_format: str | None = None,
    dequantize: bool = False,
    ignore_input_scales: bool = False,
    progress: Progress | None = None,
    **fields: Any,
) -> tuple[MoEConfig, ExpertWeights]:
    """
    Read a layer, or one rank's share of it. Arguments and errors are those of
    `jitgen.MoELayer.from_checkpoint`; `fields` are its arguments that are fields of `MoEConfig`,
    None for those that config and family say.
    """
    tensors = Source.open(source)
    prefix = _prefix(tensors, prefix, layer)
    _require_arguments(top_k, first_expert, local_experts)
    _require_more(rank, ranks, dequantize, ignore_input_scales)
    if progress is not None and not callable(progress):
        raise InputError(
            "progress", f"must take two numbers, as print does (got {shown(progress)})"
        )
    device = _device(device)
    name, form = forms.form_of(tensors, prefix, family, is_static_left_out=ignore_input_scales)
    experts = names.count(tensors, prefix, form)
    if not experts:
        raise InputError("prefix", f"{prefix!r} has no experts of {name} in {tensors}")
    names.require_all_read(tensors, prefix, name, form, experts)
    said = model_config.said(config, tensors.folder, prefix)
    top_k = _require_known(tensors, said, experts, top_k)
    asked = quantised.Asked(is_static_left_out=ignore_input_scales, is_dequantized=dequantize)
    scale_format = quantised.scale_format(said, prefix, form, asked)
    given = {name: value for name, value in fields.items() if value is not None}
    _require_own_order(form, said, given)
    number = forms.layer_of(prefix)
    is_gated = form.family.is_gated
    found = gates.fields(form.family.config, said, given, number, is_gated=is_gated)
    _require_computed(form, dequantize, is_interleaved=bool(found.get("interleaved")))
    last = experts if local_experts is None else first_expert + local_experts
    if not 0 <= first_expert < last <= experts:
        raise InputError(
            "first_expert",
            f"must begin a share of the {experts} experts in {tensors} (got {first_expert} to "
            f"{last})",
        )
    zero_experts = 0 if said is None else said.zero_experts(ranks)
    part = Part(
        source=tensors,
        prefix=prefix,
        form=form,
        experts=range(first_expert, last),
        share=Share(rank=rank, ranks=ranks),
        device=device,
        activation_format=activation_format,
        scale_format=scale_format,
        dequantize=dequantize,
        interleaved=bool(found.get("interleaved")),
    )
    weights = matrices.read(part, progress)
    if said is not None:
        said.require_sizes(*matrices.sizes(part))
    return (
        MoEConfig(
            hidden=weights.hidden,
            intermediate=weights.intermediate,
            experts=experts,
            top_k=top_k,
            first_expert=first_expert,
            local_experts=weights.groups,
            zero_experts=zero_experts,
            **found,
        ),
        weights,
    )


def of_config(  # noqa: PLR0913  # each is one thing to say
    config: ModelConfig,
    *,
    layer: int | None = None,
    first_expert: int = 0,
    local_experts: int | None = None,
    rank: int = 0,
    ranks: int = 1,
    device: str | torch.device = "cpu",
    activation_format: str | None = None,
    dequantize: bool = False,
    **fields: Any,
) -> tuple[MoEConfig, ExpertWeights]:
    """
    Return a layer of a model with all weights zero. Arguments and errors are those of
    `jitgen.MoELayer.from_config`; `fields` are as for `load`.
    """
    _require_more(rank, ranks, dequantize, False)
    said = blank.require_config(model_config.said(config, None, ""))
    if layer is not None:
        model_config.require_number(layer)
        said.require_layer(layer)
    return blank.layer(
        said,
        layer_number=layer,
        share=Share(rank=rank, ranks=ranks),
        first_expert=first_expert,
        local_experts=local_experts,
        device=_device(device),
        activation_format=activation_format,
        dequantize=dequantize,
        fields=fields,
    )


def _prefix(source: Source, prefix: object, layer: int | None) -> str:
    """Return the prefix that was given, or that of a layer."""
    if (prefix is None) == (layer is None):
        raise InputError("prefix", f"or layer is required, and not both (got {shown(prefix)})")
    if layer is not None:
        model_config.require_number(layer)
        return forms.prefix_of(source, layer)
    if not isinstance(prefix, str) or prefix.endswith("."):
        raise InputError(
            "prefix", f"must be what stands before '.experts', as text (got {shown(prefix)})"
        )
    return prefix


def _require_computed(form: Form, dequantize: bool, *, is_interleaved: bool) -> None:
    """
    Refuse weights that layers do not support, and alternating gates and ups if their scales do not
    allow it.
    """
    encoding = form.encoding
    if encoding.kernel is None and not dequantize:
        raise InputError(
            "source",
            f"has {form.reads[0]} in {encoding.name}, which no layer computes with as it is: give "
            "dequantize=True to read it as bfloat16",
        )
    if is_interleaved and not form.family.is_fused and encoding.kernel == "block128":
        raise InputError(
            "interleaved",
            f"must be False for {form.reads[0]} in {encoding.name}: a block of scales has gates or "
            "ups (got True)",
        )


def _require_own_order(form: Form, said: Said | None, given: Mapping[str, Any]) -> None:
    """
    Require `interleaved` and `activation` from the caller if another model has the names of
    gpt-oss, because the names do not say then whether gates and ups alternate, and which activation
    they have.
    """
    kind = None if said is None else said.section.get("model_type")
    if not form.family.config or kind in (None, *_OF_GPT_OSS):
        return
    for name in ("interleaved", "activation"):
        if name not in given:
            raise InputError(
                name,
                f"is required: {form.reads[0]} and its bias are names of gpt-oss, and the config "
                f"says model_type = {shown(kind)} (got None)",
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


def _require_arguments(top_k: object, first_expert: object, local_experts: object) -> None:
    for name, value, least in (
        ("top_k", top_k, 1),
        ("first_expert", first_expert, 0),
        ("local_experts", local_experts, 1),
    ):
        is_left_out = value is None and name != "first_expert"
        if not is_left_out and (type(value) is not int or value < least):
            raise InputError(name, f"must be an integer of at least {least} (got {shown(value)})")


def _require_more(
    rank: object, ranks: object, dequantize: object, ignore_input_scales: object
) -> None:
    if type(ranks) is not int or ranks < 1:
        raise InputError("ranks", f"must be an integer of at least 1 (got {shown(ranks)})")
    if type(rank) is not int or not 0 <= rank < ranks:
        raise InputError("rank", f"must be one of {ranks} ranks, from 0 on (got {shown(rank)})")
    for name, value in (
        ("dequantize", dequantize),
        ("ignore_input_scales", ignore_input_scales),
    ):
        if type(value) is not bool:
            raise InputError(name, f"must be True or False (got {shown(value)})")


def _device(device: str | torch.device) -> torch.device:
    """Return the device, after checking that it exists."""
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
