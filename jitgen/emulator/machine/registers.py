# SPDX-License-Identifier: Apache-2.0
"""
The registers of a CTA: how many each warp may use, and the pool of those that no warp owns.

At the start every warp has the registers of the launch and the pool is empty: registers of the SM
that are left over because of rounding belong to no warp. (Measured: with 5 warpgroups the sum over
them is 480 for each thread, 5 times 96, and not 512.) Another warp can have what a warp gives back;
a warp that exits keeps its registers, as the PTX ISA does not say otherwise.

PTX ISA, section "setmaxnreg".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

WARPS_OF_GROUP = 4


@dataclass(frozen=True, slots=True)
class Step:
    """
    A setmaxnreg that a warp executed.

    Attributes:
        number: Registers that it asked for.
        agent, epoch: Clock agent of the warp, and its epoch then.
    """

    number: int
    agent: int
    epoch: int


@dataclass(slots=True)
class RegisterPool:
    """
    The registers of one CTA, counted for each thread of a warp.

    Attributes:
        num_warps: Warps of the CTA.
        at_launch: Registers that each thread has at the start; 0 where nothing says how many.
        free: Registers that no warp has.
        limits: Registers of each warp.
        steps: The setmaxnreg instructions of each warp.
        served: Warps that were served while others of their fragment wait, and meet the same
            instruction again.
    """

    num_warps: int
    at_launch: int
    free: int = 0
    limits: list[int] = field(default_factory=list)
    steps: list[list[Step]] = field(default_factory=list)
    served: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.limits = [self.at_launch] * self.num_warps
        self.steps = [[] for _ in range(self.num_warps)]

    def lacks(self, warp: int, number: int) -> int:
        """Return how many registers the pool lacks to give a warp `number`; 0 if none."""
        return max(0, number - self.limits[warp] - self.free)

    def set(self, warp: int, number: int) -> None:
        """
        Set the registers of a thread of `warp` to `number`, which takes registers from the pool, or
        returns them to it.
        """
        self.free += self.limits[warp] - number
        self.limits[warp] = number

    def group_of(self, warp: int) -> range:
        """Return the warps of the CTA that belong to the warpgroup of `warp`."""
        first = warp - warp % WARPS_OF_GROUP
        return range(first, min(first + WARPS_OF_GROUP, self.num_warps))

    def disagreements(self) -> Iterator[tuple[int, list[list[int]]]]:
        """
        Yield each warpgroup of four warps that did not all ask for the same numbers of registers:
        its first warp, and for each warp the numbers that it asked for (setmaxnreg), in order.
        """
        for first in range(0, self.num_warps - WARPS_OF_GROUP + 1, WARPS_OF_GROUP):
            numbers = [[step.number for step in self.steps[warp]] for warp in self.group_of(first)]
            if any(one != numbers[0] for one in numbers):
                yield first, numbers
