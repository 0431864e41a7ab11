# SPDX-License-Identifier: Apache-2.0
"""
What torch.compile reads in the place of `permute_quantize` and `combine`: see `compiled`.

Nothing else imports this module, because it imports the whole of torch.compile.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config import Config
from jitgen.config.combine import CombineConfig
from jitgen.config.permute_quantize import PermuteQuantizeConfig
from jitgen.ops.combine.validate import Arguments as CombineArguments
from jitgen.ops.permute_quantize.validate import Arguments
from jitgen.ops.tracing import combine as combining
from jitgen.ops.tracing import permute_quantize as permuting
from jitgen.runtime.override import Override

_kept: dict[int, Config | Override] = {}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _permute_name(config: PermuteQuantizeConfig | Override, device: torch.device) -> str | None:
    """
    Return what stands for `config` in a graph.

    torch.compile asks once and guards on its identity. So we keep it: its address must not become
    another's.
    """
    _kept[id(config)] = config
    return permuting.name_of(config, device)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _combine_name(config: CombineConfig | Override, device: torch.device) -> str | None:
    """Return the same for another operation."""
    _kept[id(config)] = config
    return combining.name_of(config, device)


def permute_quantize(  # noqa: PLR0913, PLR0917  # as the public one
    x: Tensor,
    permutation: Tensor,
    top_k: int,
    offs: Tensor | None,
    m_indices: Tensor | None,
    masked_m: Tensor | None,
    inverse: Tensor | None,
    scale_granularity: str,
    q_dtype: torch.dtype | None,
    scale: Tensor | None,
    power_of_two: bool,
    rounding: str,
    out: Tensor | None,
    config: PermuteQuantizeConfig | Override | None,
) -> tuple[Tensor, Tensor | None]:
    """Call the operation, which is all that the graph holds."""
    given = Arguments(
        x=x,
        permutation=permutation,
        top_k=top_k,
        offs=offs,
        m_indices=m_indices,
        masked_m=masked_m,
        inverse=inverse,
        scale_granularity=scale_granularity,
        q_dtype=q_dtype,
        scale=scale,
        power_of_two=power_of_two,
        rounding=rounding,
        out=out,
    )
    return permuting.call(given, None if config is None else _permute_name(config, x.device))


def combine(
    y: Tensor,
    inverse: Tensor,
    topk_weights: Tensor,
    shared: Tensor | None,
    out: Tensor | None,
    config: CombineConfig | Override | None,
) -> Tensor:
    """Call the operation, which is all that the graph holds."""
    given = CombineArguments(
        y=y, inverse=inverse, topk_weights=topk_weights, shared=shared, out=out
    )
    return combining.call(given, None if config is None else _combine_name(config, y.device))
