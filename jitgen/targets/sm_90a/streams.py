# SPDX-License-Identifier: Apache-2.0
"""
Common rules of kernels that stream rows through registers: the resources of an SM, the tilings that
are searched, and the sizes that are accepted.

These rules depend on no generation: such a kernel has loads and stores of 16 bytes, shuffles,
votes, stores to the shared memory of a cluster and float32 arithmetic. So Blackwell uses them, too,
under its own name. It has as many registers, but `needed` is what the compiler needs on sm_90a: on
sm_100a 11 of the 230 candidate configs of `activation_quantize` spill two to six instructions'
worth, on 8 or 16 bytes of stack.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jitgen.config.config import Part
from jitgen.support.frozen import frozen
from jitgen.targets.base import ON_PAPER, ProblemT, TiledRules, TiledT, tiled
from jitgen.targets.protocol import Derived, Device, legal_of, refuse_unless
from jitgen.targets.sm_90a.devices import H200
from jitgen.targets.spaces import Sides, check_sides, distance, tilings

WARP = 32

MOST_CTAS = 32
"""Most CTAs that an SM has at once."""

MOST_THREADS = 2048
"""Most threads that an SM has at once."""

_PARTITIONS = 4  # of an SM, each with registers of its own for every fourth warp
_REGISTERS_PER_PARTITION = 16_384
_MAX_REGISTERS = 255
_REGISTER_UNIT = 8  # a thread gets whole units


@frozen
class StreamDerived:
    """
    Numbers that follow from a legal config.

    Attributes:
        registers: Registers of a thread if an SM has `ctas_per_sm` CTAs.
        bytes_ahead: Bytes of all loads that an SM has in flight at the same time.
    """

    registers: int
    bytes_ahead: int


def threads_of(threads: int, ctas_per_sm: int) -> int:
    """
    Return the threads of an SM that holds `ctas_per_sm` CTAs.

    Raises:
        Refusal: It does not hold them, with the code ``E_CTAS``.
    """
    every = threads * ctas_per_sm
    refuse_unless(
        ctas_per_sm <= MOST_CTAS and every <= MOST_THREADS,
        "E_CTAS",
        f"{ctas_per_sm} CTAs of {threads} threads are more than an SM holds: {MOST_CTAS} CTAs, "
        f"{MOST_THREADS} threads",
    )
    return every


def registers_of(threads: int) -> int:
    """Return the registers of each thread if an SM holds so many threads."""
    warps = -(-threads // (WARP * _PARTITIONS))
    registers = _REGISTERS_PER_PARTITION // (WARP * warps) // _REGISTER_UNIT * _REGISTER_UNIT
    return min(registers, _MAX_REGISTERS)


def share_of(device: Device, num_sms: int) -> float:
    """Return the part of an H200's rate of memory that `num_sms` SMs of a device have."""
    return min(1.0, num_sms / device.num_sms) * device.dram_gbps / H200.dram_gbps


class StreamRules(TiledRules[TiledT, ProblemT]):
    """
    Rules of kernels that stream rows. A subclass gives the data below and a cost model, and
    overrides what differs.

    Attributes:
        sides: Numbers of a tiling and the values that each may have.
        span: Sides that are searched: `sides`, and the CTAs of an SM where only that bounds them.
        listed: Tilings that may be chosen, the best for most rows first.
        columns: Name of the size of a problem that has to be whole vectors, for example ``n``.
        multiple: Values in a whole vector of that size.
    """

    arch = "sm_90a"
    alignment = 16
    sides: Sides
    span: Sides
    listed: tuple[Part, ...] = ()
    columns = "k"
    multiple: int

    def derive(self, config: TiledT) -> Derived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        self.check_kind(config)
        tiling = config.tiling
        check_sides(tiling, self.sides)
        self.check_flags(config)
        threads = threads_of(tiling.threads, tiling.ctas_per_sm)
        registers, needed = registers_of(threads), self.needed(config)
        refuse_unless(
            needed <= registers,
            "E_REGS",
            f"{self.work_words(config)} need {needed} registers a thread, and {threads} threads "
            f"leave each {registers}",
        )
        return StreamDerived(registers=registers, bytes_ahead=self.thread_bytes(config) * threads)

    def check_flags(self, config: TiledT) -> None:
        """
        Accept every tiling; a subclass raises a Refusal for one that does not go with the kind.
        """

    def needed(self, config: TiledT) -> int:
        """Return the registers that a thread needs; raise a Refusal where they never suffice."""
        raise NotImplementedError

    def work_words(self, config: TiledT) -> str:
        """Describe the loads that a warp has in flight, for errors."""
        raise NotImplementedError

    def thread_bytes(self, config: TiledT) -> int:
        """Return the bytes of all loads that a thread has in flight at the same time."""
        raise NotImplementedError

    def variants(self, start: TiledT) -> Iterator[TiledT]:
        """Yield the configs, legal or not, among which the nearest to `start` is searched."""
        for tiling in tilings(start.tiling, self.span):
            yield tiled(start, tiling)

    def sizes_of(self, config: TiledT) -> Iterable[int]:
        """
        Return the numbers of a config that `nearest` compares: configs are near if their ratios are
        near 1.
        """
        return [getattr(config.tiling, name) for name in self.span]

    def nearest(self, config: TiledT) -> TiledT | None:
        """
        Return the legal config nearest to a refused one, whose sizes are compared by their ratios;
        None if there is none.
        """
        start = self.legal_kind(config)
        wanted = tuple(self.sizes_of(start))
        return min(
            legal_of(self.variants(start), self),
            key=lambda other: distance(wanted, self.sizes_of(other)),
            default=None,
        )

    def configs(self) -> Iterator[TiledT]:
        """
        Yield every kind with all tilings of `span`, legal or not; other fields of a tiling are the
        default.
        """
        for kind in self.kinds():
            for tiling in tilings(self.usual.tiling, self.span):
                yield tiled(kind, tiling)

    def candidates(self, problem: ProblemT) -> tuple[TiledT, ...]:
        """Return the candidate configs for `problem`; none if no kernel serves it."""
        return self.legal(self.kind_of(problem), self.listed_for(problem))

    def listed_for(self, problem: ProblemT) -> tuple[Part, ...]:  # some look at it
        """Return the tilings that may be chosen, legal or not."""
        return self.listed

    def is_fitted(self, problem: ProblemT) -> bool:  # some look at it
        """
        Say whether the cost model was fitted to calls like `problem`, on an H200: to none, unless a
        subclass says so.
        """
        return False

    def confidence_note(self, problem: ProblemT, device: Device) -> str:
        """Return a note where the cost model was not fitted, else an empty text."""
        if self.arch != "sm_90a":
            return ON_PAPER.format(device=device.name)
        return "" if device is H200 and self.is_fitted(problem) else self.note

    def check_sizes(self, problem: ProblemT) -> None:
        """Raise a Refusal where a row does not end with a whole vector."""
        size = getattr(problem, self.columns)
        refuse_unless(
            size % self.multiple == 0,
            "E_SIZE",
            f"must have {self.columns.upper()} a multiple of {self.multiple} on {self.arch} (got "
            f"{size})",
        )
