# SPDX-License-Identifier: Apache-2.0
"""What the cpu target says of `permute_quantize`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jitgen.config.config import SCALE_BLOCK
from jitgen.config.permute_quantize import (
    Format,
    PermuteQuantizeConfig,
    PermuteQuantizeProblem,
    Tiling,
    Walk,
)
from jitgen.support.frozen import frozen
from jitgen.targets import permute_space
from jitgen.targets.protocol import Candidate, Device, Template, legal_of, refuse_unless
from jitgen.targets.sums import SumOrder
from jitgen.templates import ROOT

_VALUE_US = 2e-3
"""One value: read, quantised and stored, on one core of a cloud x86-64 server."""

_PARAMETERS = frozenset(("name", "config_json", "layout", "format", "walk", "power_of_two"))


@frozen
class CpuPermuteDerived:
    """
    What follows from a legal cpu config.

    Attributes:
        scratch_bytes: Stack that one call takes: a block of values, as bits and as float32.
    """

    scratch_bytes: int


class PermuteQuantize:
    """The rules of its kernels, the one that may be chosen, and what it costs."""

    generation = 1
    alignment = 1
    row_edges: tuple[int, ...] = (1,)
    sums = SumOrder(
        words="nothing: scales are maxima",
        free=(
            "layout",
            "format",
            "walk",
            "power_of_two",
            "rounding",
            "tiling",
        ),
    )

    def derive(self, config: PermuteQuantizeConfig) -> CpuPermuteDerived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        permute_space.check_kind(config)
        refuse_unless(
            not config.format.has_atoms,
            "E_FORMAT",
            f"{config.format}: on a CPU jitgen.quantize makes scales in atoms, of rows that were "
            "gathered before",
        )
        refuse_unless(
            config.walk is not Walk.SCATTER,
            "E_WALK",
            "scatter: a cpu kernel is one thread, whose caches remember a token: gather",
        )
        refuse_unless(
            config.tiling == Tiling(),
            "E_TILING",
            f"{'_'.join(config.tiling.words())}: a cpu kernel is one thread, which has nobody to "
            "share its work with",
        )
        return CpuPermuteDerived(scratch_bytes=SCALE_BLOCK * (2 + 4))

    def nearest(self, config: PermuteQuantizeConfig) -> PermuteQuantizeConfig | None:
        """Return the legal config that is nearest to a refused one: there always is one."""
        plain = config
        if config.format.has_atoms:
            plain = replace(config, format=Format.BLOCK128)
        kind = permute_space.legal_kind(plain)
        walk = Walk.GATHER if kind.walk is Walk.SCATTER else kind.walk
        return replace(kind, walk=walk, tiling=Tiling())

    def configs(self) -> Iterator[PermuteQuantizeConfig]:
        """Yield every config that the target can be asked for, legal or not."""
        yield from permute_space.kinds()

    def candidates(self, problem: PermuteQuantizeProblem) -> tuple[PermuteQuantizeConfig, ...]:
        """Return the config that may be chosen for `problem`; none where it has no kernel."""
        return legal_of((permute_space.of_problem(problem),), self)

    def predict(
        self,
        problem: PermuteQuantizeProblem,
        config: PermuteQuantizeConfig,
        device: Device,  # noqa: ARG002  # one core is like another
        num_sms: int,  # noqa: ARG002  # and one thread does all of it
    ) -> Candidate:
        """Return what `config` would take for `problem` on one core: scales of rows take two."""
        passes = 2 if problem.format is Format.ROW else 1
        return Candidate(
            config=config,
            cost=problem.m * problem.top_k * problem.k * _VALUE_US * passes,
            padding_ratio=float(passes),
            waves=max(1, problem.m),
            traffic_bytes=problem.traffic_bytes,
            limiter="multiply",
        )

    def doubt(self, problem: PermuteQuantizeProblem, device: Device) -> str:  # noqa: ARG002
        """Return nothing: there is one candidate."""
        return ""

    def check_sizes(self, problem: PermuteQuantizeProblem) -> None:
        """Take any size: a host kernel reads what exists, value by value."""

    def templates(self) -> tuple[Template, ...]:
        """Return the template of its kernels."""
        return (Template(root=ROOT, entry="cpu/permute_quantize.py.jinja", parameters=_PARAMETERS),)
