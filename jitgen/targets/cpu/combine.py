# SPDX-License-Identifier: Apache-2.0
"""What the cpu target says of `combine`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jitgen.config.combine import CombineConfig, CombineProblem, Tiling
from jitgen.support.frozen import frozen
from jitgen.targets.protocol import Candidate, Device, Template, refuse_unless
from jitgen.targets.sums import SumOrder
from jitgen.templates import ROOT

_VALUE_US = 1.5e-3
"""One value that is added, on one core of a cloud x86-64 server."""

_PARAMETERS = frozenset(("name", "config_json", "has_shared"))


@frozen
class CpuCombineDerived:
    """
    What follows from a legal cpu config.

    Attributes:
        scratch_bytes: Stack that one call takes: a block of values and one of sums, as bits and as
            float32.
    """

    scratch_bytes: int


class Combine:
    """The rules of its kernels, the one that may be chosen, and what it costs."""

    generation = 1
    alignment = 1
    row_edges: tuple[int, ...] = (1,)
    sums = SumOrder(
        words="expert by expert, as the token lists them; what is shared last",
        free=(
            "has_shared",
            "tiling",
        ),
    )

    def derive(self, config: CombineConfig) -> CpuCombineDerived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        refuse_unless(
            config.tiling == Tiling(),
            "E_TILING",
            f"{'_'.join(config.tiling.words())}: a cpu kernel is one thread, which has nobody to "
            "share its work with",
        )
        return CpuCombineDerived(scratch_bytes=2 * 128 * (2 + 4))

    def nearest(self, config: CombineConfig) -> CombineConfig | None:
        """Return the legal config that is nearest to a refused one: there always is one."""
        return replace(config, tiling=Tiling())

    def configs(self) -> Iterator[CombineConfig]:
        """Yield every config that the target can be asked for, legal or not."""
        yield from (CombineConfig(has_shared=has_shared) for has_shared in (False, True))

    def candidates(self, problem: CombineProblem) -> tuple[CombineConfig, ...]:
        """Return the config that may be chosen for `problem`."""
        return (CombineConfig(has_shared=problem.has_shared),)

    def predict(
        self,
        problem: CombineProblem,
        config: CombineConfig,
        device: Device,  # noqa: ARG002  # one core is like another
        num_sms: int,  # noqa: ARG002  # and one thread does all of it
    ) -> Candidate:
        """Return what `config` would take for `problem` on one core."""
        added = problem.m * problem.n * (problem.top_k + problem.has_shared)
        return Candidate(
            config=config,
            cost=added * _VALUE_US,
            padding_ratio=1.0,
            waves=max(1, problem.m),
            traffic_bytes=problem.traffic_bytes,
            limiter="multiply",
        )

    def doubt(self, problem: CombineProblem, device: Device) -> str:  # noqa: ARG002
        """Return nothing: there is one candidate."""
        return ""

    def check_sizes(self, problem: CombineProblem) -> None:
        """Take any size: a host kernel reads what exists, value by value."""

    def templates(self) -> tuple[Template, ...]:
        """Return the template of its kernels."""
        return (Template(root=ROOT, entry="cpu/combine.py.jinja", parameters=_PARAMETERS),)
