# SPDX-License-Identifier: Apache-2.0
"""What the cpu target says of `silu_mul_quantize`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jitgen.config.config import SCALE_BLOCK
from jitgen.config.silu_mul_quantize import (
    Scales,
    SiluMulQuantizeConfig,
    SiluMulQuantizeProblem,
    Tiling,
)
from jitgen.support.frozen import frozen
from jitgen.targets import silu_space
from jitgen.targets.protocol import Candidate, Device, Template, legal_of, refuse_unless
from jitgen.targets.sums import SumOrder
from jitgen.templates import ROOT

_VALUE_US = 3e-3
"""One result: activated, quantised and stored, on one core of a cloud x86-64 server."""

_PARAMETERS = frozenset(
    (
        *("name", "config_json", "layout", "scale_granularity"),
        *("activation", "interleaved", "power_of_two"),
    )
)


@frozen
class CpuSiluDerived:
    """
    What follows from a legal cpu config.

    Attributes:
        scratch_bytes: Stack that one call takes: the bits of a block of gates and ups, and its y.
    """

    scratch_bytes: int


class SiluMulQuantize:
    """The rules of its kernels, the one that may be chosen, and what it costs."""

    generation = 1
    alignment = 1
    row_edges: tuple[int, ...] = (1,)
    sums = SumOrder(
        words="nothing: scales are maxima",
        free=(
            "layout",
            "scale_granularity",
            "activation",
            "interleaved",
            "power_of_two",
            "tiling",
        ),
    )

    def derive(self, config: SiluMulQuantizeConfig) -> CpuSiluDerived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        silu_space.check_kind(config)
        refuse_unless(
            config.tiling == Tiling(),
            "E_TILING",
            f"{'_'.join(config.tiling.words())}: a cpu kernel is one thread, which has nobody to "
            "share its work with",
        )
        return CpuSiluDerived(scratch_bytes=SCALE_BLOCK * (2 * 2 + 4))

    def nearest(self, config: SiluMulQuantizeConfig) -> SiluMulQuantizeConfig | None:
        """Return the legal config that is nearest to a refused one: there always is one."""
        return replace(silu_space.legal_kind(config), tiling=Tiling())

    def configs(self) -> Iterator[SiluMulQuantizeConfig]:
        """Yield every config that the target can be asked for, legal or not."""
        yield from silu_space.kinds()

    def candidates(self, problem: SiluMulQuantizeProblem) -> tuple[SiluMulQuantizeConfig, ...]:
        """Return the config that may be chosen for `problem`; none where it has no kernel."""
        return legal_of((silu_space.of_problem(problem),), self)

    def predict(
        self,
        problem: SiluMulQuantizeProblem,
        config: SiluMulQuantizeConfig,
        device: Device,  # noqa: ARG002  # one core is like another
        num_sms: int,  # noqa: ARG002  # and one thread does all of it
    ) -> Candidate:
        """Return what `config` would take for `problem` on one core: scales of rows take two."""
        passes = 2 if problem.scale_granularity is Scales.ROW else 1
        return Candidate(
            config=config,
            cost=problem.m * problem.n * _VALUE_US * passes,
            padding_ratio=float(passes),
            waves=max(1, problem.m),
            traffic_bytes=problem.traffic_bytes,
            limiter="multiply",
        )

    def doubt(self, problem: SiluMulQuantizeProblem, device: Device) -> str:  # noqa: ARG002
        """Return nothing: there is one candidate."""
        return ""

    def check_sizes(self, problem: SiluMulQuantizeProblem) -> None:
        """Take any size: a host kernel reads what exists, value by value."""

    def templates(self) -> tuple[Template, ...]:
        """Return the template of its kernels."""
        return (
            Template(root=ROOT, entry="cpu/silu_mul_quantize.py.jinja", parameters=_PARAMETERS),
        )
