# SPDX-License-Identifier: Apache-2.0
"""
Two algorithms for the second GEMM of an MoE layer, and their predicted times: the dense GEMM of
this operation; or a grouped GEMM over the rows of each expert, followed by a sum over the rows of
each token.
"""

from __future__ import annotations

from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.config.moe_fc2_dense import MoEFc2DenseProblem
from jitgen.runtime.session import select
from jitgen.selection.device import chosen_for
from jitgen.support.frozen import frozen

_COMBINE_US = 9.0
_COMBINE_SHARE = 0.16
"""
Fixed time of a combine, and the fraction of the memory rate at which it moves its bytes. Fitted to
torch's multiplication and ``index_add_`` on an H200 (docs/fc2.md): right to 6 % for 8 to 64 tokens,
and to a third for more.
"""

_SHORT_K = 512
_OF_SHORT_K = 1.22
"""
A K up to which the model of the grouped GEMM was not fitted, and the factor by which such a grouped
GEMM takes longer than the model says. Measured at K = 256 on an H200: 1.20 to 1.24 for 8 to 384
tokens. A new fit of the grouped GEMM changes it; `tests/unit/test_fc2_ways.py` has the
measurements.
"""


@frozen
class Ways:
    """
    Predicted microseconds of each algorithm; `jitgen.select` returns their kernels.

    Attributes:
        dense_us: Microseconds of `moe_fc2_dense`.
        grouped_us: Microseconds of `grouped_gemm` over ragged rows, without padding.
        combine_us: Microseconds for reading the rows of the grouped GEMM, weighting them and adding
            them up.
    """

    dense_us: float
    grouped_us: float
    combine_us: float

    @property
    def is_dense_faster(self) -> bool:
        """Whether the dense GEMM is predicted to be the faster way."""
        return self.dense_us < self.grouped_us + self.combine_us


def ways(
    problem: MoEFc2DenseProblem, arch: Arch | str | None = None, *, device: str | None = None
) -> Ways:
    """
    Predict the time of both algorithms for `problem`, whose `top_k` is the number of experts of a
    token.

    Both leave out experts without tokens; the other experts share the rows evenly.

    Args:
        problem: The sizes.
        arch: The target; None for JITGEN_ARCH, else the GPU's, else ``cpu``.
        device: Name of the device; None for JITGEN_DEVICE, else the present GPU, else the first
            device of the target.

    Raises:
        UnsupportedConfig: The target has no kernel for one of them.
    """
    dense = select(problem, arch, device=device)
    rows = problem.m * min(problem.top_k, problem.groups)
    grouped = GroupedGemmProblem(
        layout=Layout.RAGGED,
        groups=max(1, round(problem.live_experts(problem.m))),
        m=rows,
        n=problem.n,
        k=problem.k,
        a_dtype=problem.a_dtype,
        out_dtype=problem.out_dtype,
        scale_granularity=problem.scale_granularity,
    )
    other = select(grouped, dense.arch, device=device)
    at, _ = chosen_for(dense.arch, device)
    rate = at.dram_gbps * 1e3  # bytes per microsecond
    moved = (rows + problem.m) * problem.n * problem.out_dtype.bits / 8
    return Ways(
        dense_us=dense.candidates[0].cost,
        grouped_us=other.candidates[0].cost * (_OF_SHORT_K if problem.k <= _SHORT_K else 1),
        combine_us=_COMBINE_US + moved / (rate * _COMBINE_SHARE),
    )
