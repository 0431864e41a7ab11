# SPDX-License-Identifier: Apache-2.0
"""Rules of sm_120a for the grouped GEMM: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from jitgen.config.grouped_gemm import Epilogue, GroupedGemmConfig, GroupedGemmProblem
from jitgen.targets.base import ON_PAPER
from jitgen.targets.gemm import FREE
from jitgen.targets.protocol import Candidate, Device, legal_of
from jitgen.targets.sm_120a import candidates, cost, static
from jitgen.targets.sm_120a.rules import Sm120Rules
from jitgen.targets.sums import SumOrder


class GroupedGemm(Sm120Rules):
    """Rules of the `grouped_gemm` kernels, their candidates and their cost model."""

    entry = "sm120/grouped_gemm.py.jinja"
    note = ON_PAPER
    row_edges: tuple[int, ...] = (
        *(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512),
        *(640, 768, 1024, 1280, 1536, 2048, 3072, 4096, 6144, 8192),
    )
    sums = SumOrder(
        words=(
            "instruction by instruction along K from the first on; block scales promote every 128"
        ),
        free=(*FREE, "schedule.safe_selectors"),
    )

    def candidates(self, problem: GroupedGemmProblem) -> tuple[GroupedGemmConfig, ...]:
        """Return the candidate configs for `problem`; none if no kernel serves it."""
        epilogue = Epilogue(bias=problem.bias)
        listed = candidates.candidates(problem.layout, problem.operands, epilogue)
        if problem.min_latency:
            listed = candidates.min_latency(listed)
        return legal_of(listed, self)

    def of_table(self, problem: GroupedGemmProblem) -> GroupedGemmConfig:
        """Return the kernel of mode ``static``, which is the same on every device."""
        return static.choose(problem, self.candidates(problem))

    def predict(
        self, problem: GroupedGemmProblem, config: GroupedGemmConfig, device: Device, num_sms: int
    ) -> Candidate:
        """Estimate the time of `config` for `problem` on `num_sms` SMs of `device`."""
        return cost.predict(problem, config, device, num_sms)
