# SPDX-License-Identifier: Apache-2.0
"""Rules of sm_90a for grouped GEMMs with prepacked weights."""

from __future__ import annotations

from jitgen.config import Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem
from jitgen.config.prepacked import K_MULTIPLE, PrepackedFormat
from jitgen.targets.fp4_space import format_of
from jitgen.targets.protocol import Candidate, Device, Template, refuse_unless
from jitgen.targets.sm_90a import fp4_candidates, fp4_cost
from jitgen.targets.sm_90a.devices import H200
from jitgen.targets.sm_90a.fp4 import Fp4Rules
from jitgen.targets.sm_90a.plain import PlainGemm
from jitgen.templates import ROOT


class Fp4Gemm(Fp4Rules):
    """Rules of grouped GEMMs with prepacked weights: candidates and cost model."""

    menu = staticmethod(fp4_candidates.candidates)
    row_edges = PlainGemm.row_edges
    sums = PlainGemm.sums  # prepacked weights change how products come about, not their order

    def predict(
        self, problem: GroupedGemmProblem, config: GroupedGemmConfig, device: Device, num_sms: int
    ) -> Candidate:
        """Estimate the time of `config` for `problem` on `num_sms` SMs of `device`."""
        return fp4_cost.predict(problem, config, device, num_sms)

    def confidence_note(self, problem: GroupedGemmProblem, device: Device) -> str:
        """Return a note where the cost model was not fitted, else an empty text."""
        form = format_of(problem.operands)
        if form is not PrepackedFormat.MXFP4:
            return f"the model was fitted to {PrepackedFormat.MXFP4} weights, not to {form}"
        is_fitted = problem.layout is Layout.RAGGED and device is H200
        return "" if is_fitted else f"the model was fitted to ragged rows on an {H200.name}"

    def templates(self) -> tuple[Template, ...]:
        """Return the template of these kernels."""
        return (
            Template(
                root=ROOT,
                entry="sm90/fp4_gemm.py.jinja",
                takes=_is_prepacked,
            ),
        )

    def check_sizes(self, problem: GroupedGemmProblem) -> None:
        """Raise a Refusal where rows of a or out have no whole vectors."""
        out_dtype = problem.operands.out_dtype
        multiple = 128 // out_dtype.bits
        for name, size, step, why in (
            ("K", problem.k, K_MULTIPLE, "16 bytes of e4m3"),
            ("N", problem.n, multiple, f"16 bytes of {out_dtype}"),
        ):
            refuse_unless(
                size % step == 0,
                "E_SIZE",
                f"must have {name} a multiple of {step} on sm_90a, {why} (got {size})",
            )


def _is_prepacked(config: GroupedGemmConfig) -> bool:
    return config.operands.b_layout.is_prepacked
