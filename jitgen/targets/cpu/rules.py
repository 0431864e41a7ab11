# SPDX-License-Identifier: Apache-2.0
"""Common part of the rules of all cpu kernels: a kernel is a host function of one thread."""

from __future__ import annotations

from collections.abc import Iterator

from jitgen.support.frozen import frozen
from jitgen.targets.base import BaseRules, ConfigT, Cost, ProblemT, TiledRules, TiledT, tiled
from jitgen.targets.protocol import Device, legal_of, refuse_unless


@frozen
class CpuDerived:
    """
    Numbers that follow from a legal cpu config.

    Attributes:
        scratch_bytes: Stack that one call takes for values that are decoded, and their sums.
    """

    scratch_bytes: int


class CpuRules(BaseRules[ConfigT, ProblemT]):
    """Rules of kernels that run on one thread and accept any size."""

    arch = "cpu"
    limiter = "multiply"

    def work(self, problem: ProblemT, config: ConfigT) -> Cost:
        """Estimate the time of `config` for `problem` on one core."""
        raise NotImplementedError

    def cost(
        self,
        problem: ProblemT,
        config: ConfigT,
        device: Device,  # one core is like another
        num_sms: int,  # and one thread does all of it
    ) -> Cost:
        """Estimate the time of `config` for `problem` on one core."""
        return self.work(problem, config)


class CpuTiledRules(CpuRules[TiledT, ProblemT], TiledRules[TiledT, ProblemT]):
    """Rules of operations with one kernel for each kind: that with the default tiling."""

    def derive(self, config: TiledT) -> CpuDerived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        self.check_kind(config)
        tiling, usual = config.tiling, self.usual.tiling
        refuse_unless(
            tiling == usual,
            "E_TILING",
            f"{tiling.to_name()}: a cpu kernel is one thread, which shares its work with no other",
        )
        return CpuDerived(scratch_bytes=self.scratch_bytes(config))

    def scratch_bytes(self, config: TiledT) -> int:
        """Return the bytes of stack that one call takes."""
        raise NotImplementedError

    def nearest(self, config: TiledT) -> TiledT | None:
        """Return the legal config that is nearest to a refused one: there always is one."""
        return tiled(self.legal_kind(config), self.usual.tiling)

    def configs(self) -> Iterator[TiledT]:
        """Yield every config of the target's space, legal or not."""
        yield from self.kinds()

    def candidates(self, problem: ProblemT) -> tuple[TiledT, ...]:
        """Return the candidate config for `problem`; none if no kernel serves it."""
        return legal_of((self.kind_of(problem),), self)

    def cost_of(self, problem: ProblemT) -> Cost:
        """Estimate the time of the kernel for `problem` on one core."""
        raise NotImplementedError

    def work(self, problem: ProblemT, config: TiledT) -> Cost:  # there is one
        """Estimate the time of `config` for `problem` on one core."""
        return self.cost_of(problem)
