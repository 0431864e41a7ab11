# SPDX-License-Identifier: Apache-2.0
"""What the cpu target says of the grouped GEMM: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from collections.abc import Iterator

from jitgen import templates
from jitgen.config.dtypes import SCALE_BLOCK
from jitgen.ops.grouped_gemm.config import KernelConfig, Tile
from jitgen.ops.grouped_gemm.problem import Problem
from jitgen.targets import gemm_space
from jitgen.targets.cpu import cost
from jitgen.targets.cpu.rules import CpuRules
from jitgen.targets.protocol import Candidate, Device, Template

_ROWS = (8, 16, 32, 64)
"""Rows of the tiles that may be chosen: of equally good ones the first needs the least memory."""


_PARAMETERS = frozenset(
    (
        *("name", "config_json", "layout", "a_dtype", "out_dtype", "scale_granularity"),
        *("tile_m", "tile_n", "tile_k"),
    )
)


class GroupedGemm(CpuRules):
    """The rules of its kernels, the few that may be chosen, and what they cost."""

    generation = 1
    alignment = 1
    row_edges: tuple[int, ...] = _ROWS

    def nearest(self, config: KernelConfig) -> KernelConfig | None:
        """Return the legal config that is nearest to a refused one; None where there is none."""
        return gemm_space.nearest(config, self)

    def configs(self) -> Iterator[KernelConfig]:
        """Yield every config that the target can be asked for, legal or not."""
        yield from gemm_space.every(self.space)

    def candidates(self, problem: Problem) -> tuple[KernelConfig, ...]:
        """Return the few configs that may be chosen for `problem`; none where it has no kernel."""
        listed = tuple(
            KernelConfig(
                layout=problem.layout,
                operands=problem.operands,
                tile=Tile(m=rows, n=128, k=SCALE_BLOCK),
            )
            for rows in _ROWS
        )
        return gemm_space.legal_of(listed, self)

    def predict(
        self,
        problem: Problem,
        config: KernelConfig,
        device: Device,  # noqa: ARG002  # one core is like another
        num_sms: int,  # noqa: ARG002  # and one thread does all of it
    ) -> Candidate:
        """Return what `config` would take for `problem` on one core."""
        return cost.predict(problem, config)

    def doubt(self, problem: Problem, device: Device) -> str:  # noqa: ARG002
        """Return nothing: only work counts, on every processor."""
        return ""

    def template(self) -> Template:
        """Return the template of its kernels."""
        return Template(
            root=templates.ROOT, entry="cpu/grouped_gemm.py.jinja", parameters=_PARAMETERS
        )

    def check_sizes(self, problem: Problem) -> None:
        """Take any size: a host kernel reads what exists, value by value where it must."""
