# SPDX-License-Identifier: Apache-2.0
"""
Configs of a chain of launches in which a kernel starts before the previous kernels have ended.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jitgen.config import Arch, Config
from jitgen.config.add_lora import AddLoraConfig
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.targets.legality import check

_ROWS = 64
"""
Rows of a tile whose weights are loaded early. Taller tiles are for many rows, where kernels are
busy throughout.
"""


def joins(arch: Arch) -> bool:
    """Say whether the launch that gathers rows also sorts the pairs, in chains with few pairs."""
    return arch is Arch.SM_90A  # where it was measured


def early(config: Config, arch: Arch) -> Config:
    """
    Return the config that a chain uses instead of the selector's `config`: the same kernel, but it
    starts early, a product even loads its weights early, and adapters multiply the rows of x.
    Returns `config` if `arch` has no such kernel.

    The promise of `early_b` is the chain's: its weights and the ends of its groups are written at
    least two launches before a product, by kernels for whose end the one before the product waits
    before it lets the product start. So is the promise of adapters, which directly follow a
    product: it waits for the end of all kernels before it, and writes y alone.
    """
    found: Any = config
    tiling: Any = getattr(config, "tiling", None)
    if arch is not Arch.SM_90A:  # likewise
        return config
    if isinstance(config, GroupedGemmConfig):
        if config.tile.m == _ROWS:
            found = replace(config, schedule=replace(config.schedule, early_b=True))
    elif isinstance(config, AddLoraConfig):
        found = replace(config, tiling=replace(config.tiling, use_pdl=True, early=True))
    elif hasattr(tiling, "use_pdl"):
        found = replace(found, tiling=replace(tiling, use_pdl=True))
    return found if check(found, arch) else config
