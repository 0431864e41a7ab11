# SPDX-License-Identifier: Apache-2.0
"""What sm_90a says of the grouped GEMM: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from collections.abc import Iterator

from jitgen.config import DType
from jitgen.ops.grouped_gemm.config import KernelConfig
from jitgen.ops.grouped_gemm.problem import Problem
from jitgen.targets import gemm_space
from jitgen.targets.gemm_sizes import check_vectors
from jitgen.targets.protocol import Candidate, Device
from jitgen.targets.sm_90a import candidates, cost
from jitgen.targets.sm_90a.devices import H200, fit_of
from jitgen.targets.sm_90a.rules import Sm90Rules


class GroupedGemm(Sm90Rules):
    """The rules of its kernels, the few that may be chosen, and what they cost."""

    alignment = 16  # the TMA unit's grain
    row_edges = (
        *(8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512),
        *(640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 6144, 8192),
    )

    def nearest(self, config: KernelConfig) -> KernelConfig | None:
        """Return the legal config that is nearest to a refused one; None where there is none."""
        return gemm_space.nearest(config, self)

    def configs(self) -> Iterator[KernelConfig]:
        """Yield every config that the target can be asked for, legal or not."""
        yield from gemm_space.every(self.space)

    def candidates(self, problem: Problem) -> tuple[KernelConfig, ...]:
        """Return the few configs that may be chosen for `problem`; none where it has no kernel."""
        listed = candidates.candidates(problem.layout, problem.operands)
        return gemm_space.legal_of(listed, self)

    def predict(
        self, problem: Problem, config: KernelConfig, device: Device, num_sms: int
    ) -> Candidate:
        """Return what `config` would take for `problem` on `num_sms` SMs of `device`."""
        return cost.predict(problem, config, fit_of(device), num_sms)

    def doubt(self, problem: Problem, device: Device) -> str:
        """Return what the cost model was not fitted to, if so."""
        is_fitted = problem.operands.a_dtype is DType.E4M3 and device is H200
        return "" if is_fitted else f"the model was fitted to e4m3 operands on an {H200.name}"

    def check_sizes(self, problem: Problem) -> None:
        """Raise a Refusal where rows of a tensor do not end with what the TMA unit moves."""
        check_vectors(problem, "sm_90a", vector_bytes=self.alignment)
