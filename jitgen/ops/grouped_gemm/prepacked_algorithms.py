# SPDX-License-Identifier: Apache-2.0
"""
Two algorithms for a grouped GEMM with prepacked MXFP4 weights, and their predicted times. Weights
of other formats have one algorithm.

The kernels for prepacked weights decode each weight once for every tile of rows. That takes little
time with few rows, and most of the time with many. The second algorithm first unpacks all weights
(`unpack_weights`: e4m3 with a scale for each row, into temporary memory) and then multiplies them
with the kernels for FP8 weights. A call uses it only if unpacking is exact
(`PrepackedWeights.has_near_rows`). Both kernels promote sums: those for FP8 weights and folded1
once per 128 of K, those for exact1 once per 32.

All weights are unpacked at once: only the device knows which rows belong to which group, so the
host cannot split the call by groups. If unpacked weights take more memory than JITGEN_MAX_WORKSPACE
allows, weights are not unpacked. They are not unpacked with invariant numerics either: the two
algorithms add up differently, and the number of rows would decide between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from jitgen.config import Arch, BLayout, Config, DType, Numerics, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.config.unpack_weights import UnpackWeightsProblem
from jitgen.errors import UnsupportedConfig
from jitgen.runtime.session import select
from jitgen.selection.choice import Choice, numerics_of
from jitgen.selection.device import chosen_for
from jitgen.settings import settings
from jitgen.support.frozen import frozen
from jitgen.targets.devices import default_arch
from jitgen.targets.legality import rules, target

_OP = UnpackWeightsProblem.op
_LAYOUTS = (BLayout.EXACT1, BLayout.FOLDED1)

Choose = Callable[..., Choice]
"""`jitgen.select`, or that of a session."""


@frozen
class Algorithms:
    """
    The two algorithms for prepacked weights: their kernels and predicted costs.

    Attributes:
        prepacked: The kernel for prepacked weights.
        unpack: The kernel that unpacks them.
        gemm: The kernel that multiplies the unpacked weights.
        unpack_us: Predicted microseconds of unpacking.
        workspace_bytes: Size of the unpacked weights, which exist while a call runs: G N (K + 4)
            bytes.
        max_bytes: Largest size that the unpacked weights may have.
    """

    prepacked: Choice
    unpack: Choice
    gemm: Choice
    unpack_us: float
    workspace_bytes: int
    max_bytes: int

    @property
    def times_us(self) -> tuple[float, float]:
        """
        Microseconds of the kernel for prepacked weights, and of that for unpacked ones: measured
        times if both kernels were measured, otherwise predicted.
        """
        choices = (self.prepacked, self.gemm)
        first, second = (choice.times_us.get(choice.config) for choice in choices)
        if first is None or second is None:
            first, second = (choice.candidates[0].cost for choice in choices)
        return first, second

    @property
    def has_room(self) -> bool:
        """Whether the unpacked weights fit into the allowed memory."""
        return self.workspace_bytes <= self.max_bytes

    @property
    def is_unpacked_faster(self) -> bool:
        """Whether unpacking first is predicted to be faster."""
        prepacked_us, gemm_us = self.times_us
        return self.unpack_us + gemm_us < prepacked_us

    @property
    def is_unpacked(self) -> bool:
        """
        Whether calls unpack the weights first, if the exponents of the weights' rows allow it.
        """
        return self.has_room and self.is_unpacked_faster

    @property
    def kernels(self) -> tuple[Config, Config]:
        """The kernels that unpack the weights and multiply the unpacked ones."""
        return self.unpack.config, self.gemm.config

    @property
    def why(self) -> str:
        """Why calls unpack the weights first, or why they do not, in one sentence."""
        prepacked_us, gemm_us = self.times_us
        text = (
            f"unpacking the weights ({self.unpack_us:.1f} us) and multiplying them as FP8 ones "
            f"({gemm_us:.1f} us) takes {self.unpack_us + gemm_us:.1f} us where the kernel for "
            f"prepacked weights takes {prepacked_us:.1f}"
        )
        if not self.is_unpacked_faster:
            return f"not unpacked first: {text}"
        memory = f"{self.workspace_bytes / 2**20:,.0f} MiB"
        if not self.has_room:
            most = f"{self.max_bytes / 2**20:,.0f} MiB"
            return f"not unpacked first: {text}, but needs {memory}, and {most} are allowed"
        return (
            f"unpacked first where exponents of a row differ by at most 14: {text}, with {memory}"
        )


def algorithms(
    problem: GroupedGemmProblem,
    arch: Arch | str | None = None,
    *,
    device: str | None = None,
    choose: Choose = select,
) -> Algorithms | None:
    """
    Return both algorithms for `problem`; None if there is only one.

    Weights are unpacked for e4m3 activations with scales of rows, if numerics are not invariant.

    Args:
        problem: The sizes, with prepacked weights.
        arch: The target; None for JITGEN_ARCH, else the GPU's, else ``cpu``.
        device: Name of the device; None for JITGEN_DEVICE, else the present GPU, else the first
            device of the target.
        choose: Chooses kernels, as `jitgen.select` does.

    Raises:
        UnsupportedConfig: The target has no kernel for `problem`.
    """
    found = default_arch() if arch is None else Arch.parse(arch)
    if not _can_be_unpacked(problem) or _OP not in target(found).operations:
        return None
    if numerics_of(problem) is Numerics.INVARIANT:
        return None
    rows = problem.n * problem.groups
    weights = UnpackWeightsProblem(
        groups=problem.groups, m=rows, k=problem.k, b_layout=problem.b_layout
    )
    try:
        unpack = choose(weights, found, device=device)
        gemm = choose(unpacked_problem(problem), found, device=device)
    except UnsupportedConfig:  # each of its kernels failed when it was measured here
        return None
    at, _ = chosen_for(found, device)
    predicted = rules(found, _OP).predict(weights, unpack.config, at, at.num_sms)
    return Algorithms(
        prepacked=choose(problem, found, device=device),
        unpack=unpack,
        gemm=gemm,
        unpack_us=predicted.cost,
        workspace_bytes=weights.result_bytes,
        max_bytes=settings.max_workspace,
    )


def unpacked_problem(problem: GroupedGemmProblem) -> GroupedGemmProblem:
    """Return the problem with the same sizes for unpacked weights."""
    return replace(
        problem,
        b_dtype=DType.E4M3,
        scale_granularity=ScaleGranularity.ROW,
        a_scale_granularity=None,
        b_layout=BLayout.PLAIN,
    )


def kernels(
    problem: GroupedGemmProblem, arch: Arch, choose: Choose, device: str | None = None
) -> tuple[Config, ...]:
    """
    Return the kernels that calls of `problem` may launch besides the chosen one; `device` is as in
    `algorithms`.
    """
    if not problem.b_layout.is_prepacked:
        return ()
    found = algorithms(problem, arch, device=device, choose=choose)
    return found.kernels if found is not None and found.is_unpacked else ()


def _can_be_unpacked(problem: GroupedGemmProblem) -> bool:
    """Say whether kernels for FP8 weights with scales of rows take the activations of `problem`."""
    return (
        problem.b_layout in _LAYOUTS
        and problem.b_dtype is DType.E2M1
        and problem.a_dtype is DType.E4M3
        and problem.a_scale_granularity is ScaleGranularity.ROW
    )
