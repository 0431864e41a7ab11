# SPDX-License-Identifier: Apache-2.0
"""Rules of sm_100a for the grouped GEMM: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem
from jitgen.targets.base import ON_PAPER
from jitgen.targets.gemm import FREE
from jitgen.targets.protocol import Candidate, Device, refuse_unless
from jitgen.targets.sm_100a import candidates, cost
from jitgen.targets.sm_100a.rules import Sm100Rules
from jitgen.targets.sm_100a.sizes import UNPACKED_K
from jitgen.targets.sums import SumOrder


class GroupedGemm(Sm100Rules):
    """Rules of the `grouped_gemm` kernels, their candidates and their cost model."""

    entry = "sm100/grouped_gemm.py.jinja"
    note = ON_PAPER
    menu = staticmethod(candidates.candidates)
    row_edges: tuple[int, ...] = (
        *(8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512),
        *(640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 6144, 8192),
    )
    sums = SumOrder(
        words=(
            "blocks of 128 bytes along K from the first on; block scales promote the sums "
            "of each, all others stay in tensor memory"
        ),
        free=(*FREE, "schedule.two_cta"),
    )

    def predict(
        self, problem: GroupedGemmProblem, config: GroupedGemmConfig, device: Device, num_sms: int
    ) -> Candidate:
        """Estimate the time of `config` for `problem` on `num_sms` SMs of `device`."""
        return cost.predict(problem, config, device, num_sms)

    def check_sizes(self, problem: GroupedGemmProblem) -> None:
        """
        Raise a Refusal if rows of a tensor are not a multiple of the TMA unit's alignment, or, for
        mixed types, of the values that it unpacks at once.
        """
        super().check_sizes(problem)
        types = problem.operands
        if types.b_layout.is_prepacked:  # of no size is there a kernel
            return
        refuse_unless(
            types.a_dtype is types.b_dtype or problem.k % UNPACKED_K == 0,
            "E_SIZE",
            f"must have K a multiple of {UNPACKED_K} on {self.arch} for {types.a_dtype} x "
            f"{types.b_dtype}: the TMA unit unpacks so many {types.b_dtype} values to bytes at "
            f"once (got {problem.k})",
        )
