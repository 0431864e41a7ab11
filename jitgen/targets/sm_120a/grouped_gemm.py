# SPDX-License-Identifier: Apache-2.0
"""What sm_120a says of the grouped GEMM: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from collections.abc import Iterator

from jitgen.config.grouped_gemm import Epilogue, KernelConfig, Problem
from jitgen.targets import gemm
from jitgen.targets.gemm import check_vectors
from jitgen.targets.protocol import Candidate, Device, Template, legal_of
from jitgen.targets.sm_120a import candidates, cost, static
from jitgen.targets.sm_120a.rules import Sm120Rules
from jitgen.targets.sums import SumOrder
from jitgen.templates import ROOT

_PARAMETERS = frozenset(
    (
        *("name", "config_json", "layout", "a_dtype", "b_dtype", "out_dtype", "scale_granularity"),
        *("tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n"),
        *("raster", "stream_b", "use_pdl"),
        *("warps_m", "warps_n", "threads", "math_registers", "load_registers", "num_ab_stage"),
        "lane_tiles",
        *("max_entries", "scale_lines", "scale_blocks", "scale_box", "scale_pitch"),
        *("token_lanes", "bias", "a_scale_granularity"),
    )
)


class GroupedGemm(Sm120Rules):
    """The rules of its kernels, the few that may be chosen, and what they cost."""

    generation = 1
    alignment = 16  # the TMA unit's grain
    row_edges: tuple[int, ...] = (
        *(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512),
        *(640, 768, 1024, 1280, 1536, 2048, 3072, 4096, 6144, 8192),
    )
    sums = SumOrder(
        words=(
            "instruction by instruction along K from the first on; block scales promote every 128"
        ),
        free=(
            "layout",
            "operands",
            "epilogue",
            "tile",
            "cluster",
            "pipeline",
            "schedule.raster",
            "schedule.use_pdl",
            "schedule.stream_b",
            "schedule.safe_selectors",
        ),
    )

    def __init__(self, arch: str) -> None:
        self.arch = arch

    def nearest(self, config: KernelConfig) -> KernelConfig | None:
        """Return the legal config that is nearest to a refused one; None where there is none."""
        return gemm.nearest(config, self)

    def configs(self) -> Iterator[KernelConfig]:
        """Yield every config that the target can be asked for, legal or not."""
        yield from gemm.every(self.space)

    def candidates(self, problem: Problem) -> tuple[KernelConfig, ...]:
        """Return the few configs that may be chosen for `problem`; none where it has no kernel."""
        epilogue = Epilogue(bias=problem.bias)
        listed = candidates.candidates(problem.layout, problem.operands, epilogue)
        if problem.min_latency:
            listed = candidates.min_latency(listed)
        return legal_of(listed, self)

    def of_table(self, problem: Problem) -> KernelConfig:
        """Return what mode ``static`` takes, on every device."""
        return static.choose(problem, self.candidates(problem))

    def predict(
        self, problem: Problem, config: KernelConfig, device: Device, num_sms: int
    ) -> Candidate:
        """Return what `config` would take for `problem` on `num_sms` SMs of `device`."""
        return cost.predict(problem, config, device, num_sms)

    def doubt(self, problem: Problem, device: Device) -> str:  # noqa: ARG002
        """Return that nothing was measured on such a device."""
        return f"the model of an {device.name} is on paper: nothing was measured"

    def templates(self) -> tuple[Template, ...]:
        """Return the template of its kernels."""
        return (Template(root=ROOT, entry="sm120/grouped_gemm.py.jinja", parameters=_PARAMETERS),)

    def check_sizes(self, problem: Problem) -> None:
        """Raise a Refusal where rows of a tensor do not end with what the TMA unit moves."""
        check_vectors(problem, self.arch, vector_bytes=self.alignment)
