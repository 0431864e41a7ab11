# SPDX-License-Identifier: Apache-2.0
"""
Rules of sm_90a for grouped GEMMs with weights in their original layout, that is, not prepacked.

Kernels for one group of few rows have rules of their own, and are candidates beside these.
"""

from __future__ import annotations

from jitgen.config import DType
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem
from jitgen.targets.gemm import FREE
from jitgen.targets.protocol import Candidate, Device, Template
from jitgen.targets.sm_90a import candidates, cost
from jitgen.targets.sm_90a.devices import H100, H200, fit_of
from jitgen.targets.sm_90a.one_group import OneGroupGemm
from jitgen.targets.sm_90a.rules import Sm90Rules
from jitgen.targets.sums import SumOrder
from jitgen.templates import ROOT

ONE_GROUP = OneGroupGemm()


class PlainGemm(Sm90Rules):
    """
    Rules of grouped GEMMs with weights in their original layout, their candidates and their cost
    model.
    """

    menu = staticmethod(candidates.candidates)
    row_edges: tuple[int, ...] = (
        *(8, 16, 32, 48, 64, 96, 128, 160, 192, 208, 224, 256, 320, 384, 448, 512),
        *(640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 7168),
        *(8192, 10_240, 12_288, 16_384, 24_576, 32_768),
    )
    sums = SumOrder(
        words="blocks of 128 bytes along K from the first on, in instructions of 32; sums of e4m3 "
        "are promoted at the same values of K",
        free=(*FREE, "schedule.early_b", "schedule.swap_tail", "schedule.extra_rows"),
    )

    def candidates(self, problem: GroupedGemmProblem) -> tuple[GroupedGemmConfig, ...]:
        """Return the candidate configs for `problem`; none if no kernel serves it."""
        return (*super().candidates(problem), *ONE_GROUP.candidates(problem))

    def predict(
        self, problem: GroupedGemmProblem, config: GroupedGemmConfig, device: Device, num_sms: int
    ) -> Candidate:
        """Estimate the time of `config` for `problem` on `num_sms` SMs of `device`."""
        if config.schedule.one_group:
            return ONE_GROUP.predict(problem, config, device, num_sms)
        return cost.predict(problem, config, fit_of(device), num_sms)

    def confidence_note(self, problem: GroupedGemmProblem, device: Device) -> str:
        """Return a note where the cost model was not fitted, else an empty text."""
        is_fitted = problem.operands.a_dtype is DType.E4M3 and device in (H200, H100)
        known = f"{H200.name} and an {H100.name}"
        return "" if is_fitted else f"the model was fitted to e4m3 operands on an {known}"

    def templates(self) -> tuple[Template, ...]:
        """Return the template of these kernels."""
        return (
            Template(
                root=ROOT,
                entry="sm90/grouped_gemm.py.jinja",
                takes=_is_plain,
            ),
        )


def _is_plain(config: GroupedGemmConfig) -> bool:
    return not (config.operands.b_layout.is_prepacked or config.schedule.one_group)
