# SPDX-License-Identifier: Apache-2.0
"""
What targets share for `moe_fc2_dense`: its configs are grouped GEMMs' without a layout, so that the
rules, the search for a legal one and the list of all of them are a grouped GEMM's, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jitgen.config.grouped_gemm import KernelConfig, Tile
from jitgen.config.moe_fc2_dense import LIKE, MoeFc2DenseConfig
from jitgen.targets import gemm, protocol
from jitgen.targets.gemm import GemmRules, Space
from jitgen.targets.protocol import refuse_unless


def check_types(config: KernelConfig, space: Space, arch: str) -> None:
    """
    Require types and scales that `space` has.

    Raises:
        Refusal: They are others, with the code ``E_MMA`` or ``E_SCALES``.
    """
    types = config.operands
    refuse_unless(
        types.a_dtype == types.b_dtype and (types.a_dtype, types.out_dtype) in space.operands,
        "E_MMA",
        f"{types.a_dtype} x {types.b_dtype} -> {types.out_dtype} has no {arch} kernel with experts "
        f"along K; it has {', '.join(f'{a} x {a} -> {out}' for a, out in space.operands)}",
    )
    refuse_unless(
        types.scale_granularity in space.scale_granularity,
        "E_SCALES",
        f"{types.scale_granularity} scales have no {arch} kernel with experts along K; allowed: "
        f"{', '.join(space.scale_granularity)}",
    )


def nearest(config: MoeFc2DenseConfig, rules: GemmRules) -> MoeFc2DenseConfig | None:
    """Return the legal config that is nearest to `config`; None where there is none."""
    found = gemm.nearest(config.gemm, rules)
    return None if found is None else MoeFc2DenseConfig.of_gemm(found)


def every(space: Space) -> Iterator[MoeFc2DenseConfig]:
    """Yield the configs of `space`, legal or not, with the default schedule but for split_k."""
    start = KernelConfig(layout=LIKE, tile=Tile(m=128, n=128, k=128))
    yield from map(MoeFc2DenseConfig.of_gemm, gemm.spanned(start, space))


def legal_of(
    configs: Iterable[MoeFc2DenseConfig], rules: GemmRules
) -> tuple[MoeFc2DenseConfig, ...]:
    """Return those of `configs` that are legal, in their order."""
    found = protocol.legal_of(tuple(config.gemm for config in configs), rules)
    return tuple(map(MoeFc2DenseConfig.of_gemm, found))
