# SPDX-License-Identifier: Apache-2.0
"""
Common parts of targets for `moe_fc2_dense`. Its configs are those of a grouped GEMM without a
layout, so that the rules, the search for a legal config and the list of all configs are a grouped
GEMM's, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.config.moe_fc2_dense import LIKE, MoEFc2DenseConfig, MoEFc2DenseProblem
from jitgen.targets import gemm
from jitgen.targets.base import BaseRules
from jitgen.targets.gemm import GemmRules, Space, check_vectors
from jitgen.targets.protocol import legal_of, refuse_unless


def check_types(config: GroupedGemmConfig, space: Space, arch: str) -> None:
    """
    Require types and scales that `space` has.

    Raises:
        Refusal: `space` lacks them; the code is ``E_MMA`` or ``E_SCALES``.
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


class Fc2Rules(BaseRules[MoEFc2DenseConfig, MoEFc2DenseProblem]):
    """
    Rules of `moe_fc2_dense` kernels, whose parts are those of a grouped GEMM.

    Attributes:
        parts: The rules of that grouped GEMM.
    """

    alignment = 16  # the TMA unit's grain
    parts: GemmRules

    @property
    def space(self) -> Space:
        """Space of configs in which proposals are searched."""
        return self.parts.space

    def nearest(self, config: MoEFc2DenseConfig) -> MoEFc2DenseConfig | None:
        """Return the legal config nearest to a refused one; None if there is none."""
        found = gemm.nearest(config.gemm, self.parts)
        return None if found is None else MoEFc2DenseConfig.of_gemm(found)

    def configs(self) -> Iterator[MoEFc2DenseConfig]:
        """Yield every config of the target's space, legal or not."""
        start = GroupedGemmConfig(layout=LIKE, tile=Tile(m=128, n=128, k=128))
        yield from map(MoEFc2DenseConfig.of_gemm, gemm.spanned(start, self.space))

    def legal(self, configs: Iterable[MoEFc2DenseConfig]) -> tuple[MoEFc2DenseConfig, ...]:
        """Return the legal `configs`, in their order."""
        found = legal_of(tuple(config.gemm for config in configs), self.parts)
        return tuple(map(MoEFc2DenseConfig.of_gemm, found))

    def check_sizes(self, problem: MoEFc2DenseProblem) -> None:
        """Raise a Refusal if rows of a tensor are not a multiple of the TMA unit's alignment."""
        check_vectors(problem, self.arch, vector_bytes=self.alignment)
