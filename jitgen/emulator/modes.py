# SPDX-License-Identifier: Apache-2.0
"""
Modes: when asynchronous work is done and which threads run first.

Hardware promises neither, so a right kernel gives the same result in every mode. Different modes
find different mistakes: deferring everything catches reads before the data has come; eager copies
with deferred readers catch a buffer that is freed too early.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from jitgen.errors import InputError

WORK = frozenset({"load", "matrix", "store"})
"""Kinds of asynchronous work: bulk copies in, matrix instructions, bulk copies out."""

NUM_SEEDS = 6
"""Random schedules of `ALL`, two of each kind."""


class Links(StrEnum):
    """
    How stores to peers arrive: as late as possible, one by one, in the order that the value names.
    """

    SLOW = "in their order"
    LATE = "the last one first"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """
    One way to run a launch; the same mode runs it in the same way every time.

    Attributes:
        name: ``eager``, ``deferred``, ``late-readers``, ``reversed``, ``late-peeks``,
            ``slow-links``, ``late-links``, or with a number ``random-<seed>``, ``last-<cluster>``,
            ``late-device-<device>``, ``lost-device-<device>`` or
            ``lost-device-<device>-from-<launch>``.
        deferred: Kinds of work (of `WORK`) that are put off until no thread can go on without them.
        by_warp: Whether two warps never run as one, so that the schedule decides which is first.
        seed: Seed of the random schedule; None: the first warp that can run runs.
        clusters: Clusters that start at once.
        is_reversed: Whether clusters, warps, and lanes that update a word run in reverse order.
        fails_peeks: Whether a wait that may fail does so the first time, unless the answer is
            certain.
        last: The cluster, in the order of the launch, that starts after all others; -1: none.
        late_device: Of several devices the one that goes on only when no other can; -1: none.
        lost_from: That device begins launches from this number on when all others have ended. Their
            results depend on the loss, and are not compared with those of other modes. -1: it is
            not lost.
        links: How stores to peers arrive; None: at once.
    """

    name: str
    deferred: frozenset[str] = frozenset()
    by_warp: bool = False
    seed: int | None = None
    clusters: int = 1
    is_reversed: bool = False
    fails_peeks: bool = False
    last: int = -1
    late_device: int = -1
    lost_from: int = -1
    links: Links | None = None

    def __post_init__(self) -> None:
        if unknown := sorted(self.deferred - WORK):
            allowed = ", ".join(sorted(WORK))
            raise InputError("modes", f"{unknown[0]!r} cannot be deferred; allowed: {allowed}")

    @property
    def is_lost(self) -> bool:
        """Whether one of the devices is lost in this mode."""
        return self.lost_from >= 0

    def defers(self, kind: str) -> bool:
        """Return whether work of `kind` is put off."""
        return kind in self.deferred


EAGER = Mode(name="eager")
DEFERRED = Mode(name="deferred", deferred=WORK)
LATE_READERS = Mode(name="late-readers", deferred=frozenset({"matrix", "store"}))

_DEFERRED_AT_RANDOM = (WORK, LATE_READERS.deferred, frozenset[str]())


def random_mode(seed: int) -> Mode:
    """
    Return the mode that ``random-<seed>`` names: one warp at a time, in an order that `seed` gives.

    The seed also decides what is deferred (everything, readers, nothing, in turn) and whether one
    or two clusters run at once.
    """
    return Mode(
        name=f"random-{seed}",
        deferred=_DEFERRED_AT_RANDOM[seed % 3],
        by_warp=True,
        seed=seed,
        clusters=1 + seed // 3 % 2,
    )


MOST_SEEDS = 10_000
"""Most seeds of one range: each seed is a separate mode, which takes seconds."""

QUICK = (EAGER, DEFERRED, random_mode(3))
"""One of each kind: the seed defers everything and lets two clusters run at once."""

ALL = (EAGER, DEFERRED, LATE_READERS, *(random_mode(seed) for seed in range(NUM_SEEDS)))

REVERSED = Mode(name="reversed", by_warp=True, is_reversed=True)
LATE_PEEKS = Mode(name="late-peeks", fails_peeks=True)

MOST_EXPLORED = 8
"""Most orders that are tried where a launch observes its schedule."""


def last_mode(cluster: int) -> Mode:
    """Return the mode that ``last-<cluster>`` names: that cluster starts after all others."""
    return Mode(name=f"last-{cluster}", last=cluster)


SLOW_LINKS = Mode(name="slow-links", links=Links.SLOW)
LATE_LINKS = Mode(name="late-links", links=Links.LATE)


def late_device(device: int) -> Mode:
    """
    Return the mode that ``late-device-<device>`` names: that device goes on only when no other can.
    """
    return Mode(name=f"late-device-{device}", late_device=device)


def lost_device(device: int, launch: int = 0) -> Mode:
    """
    Return the mode that ``lost-device-<device>-from-<launch>`` names, or without ``-from-<launch>``
    for launch 0.

    The device begins that launch when all others have ended; see `Mode.lost_from`.
    """
    name = f"lost-device-{device}" + (f"-from-{launch}" if launch else "")
    return Mode(name=name, late_device=device, lost_from=launch)


_NUMBERED = {"last": last_mode, "late-device": late_device, "lost-device": lost_device}
_LAST = re.compile(rf"({'|'.join(_NUMBERED)})-(\d+)")
_LOST = re.compile(r"lost-device-(\d+)-from-(\d+)")
_RANDOM = re.compile(r"random-(\d+)(?:\.\.(\d+))?")
_NAMED: dict[str, tuple[Mode, ...]] = {
    "quick": QUICK,
    "all": ALL,
    **{
        mode.name: (mode,)
        for mode in (EAGER, DEFERRED, LATE_READERS, REVERSED, LATE_PEEKS, SLOW_LINKS, LATE_LINKS)
    },
}


def parse_modes(modes: str | Mode | Sequence[str | Mode]) -> tuple[Mode, ...]:
    """
    Return the modes that `modes` names, each once.

    Args:
        modes: ``quick``, ``all``, names as in ``Mode.name`` or ``random-<first>..<last>``,
            separated by commas; modes; or a sequence of any of these.

    Raises:
        InputError: A name is not known, or there is none.
    """
    words = modes.split(",") if isinstance(modes, str) else modes
    given: Sequence[str | Mode] = (words,) if isinstance(words, Mode) else words
    found: dict[Mode, None] = {}
    for word in given:
        found |= dict.fromkeys((word,) if isinstance(word, Mode) else _named(word.strip()))
    if not found:
        raise InputError("modes", "name at least one")
    return tuple(found)


def modes_of_devices(modes: str | Mode | Sequence[str | Mode], devices: int) -> tuple[Mode, ...]:
    """
    Return the modes that `modes` names where several devices run.

    ``quick`` and ``all`` also have the modes of links and `REVERSED`, and ``all`` a `late_device`
    mode for each device.

    Raises:
        InputError: A name is not known, or is that of a device that is not there.
    """
    found = dict.fromkeys(parse_modes(modes))
    for mode in found:
        if mode.late_device >= devices:
            raise InputError(
                "modes", f"{mode.name!r} is about one of {devices} devices, 0 to {devices - 1}"
            )
    has_all = set(ALL) <= found.keys()
    if has_all or set(QUICK) <= found.keys():
        found |= dict.fromkeys((SLOW_LINKS, LATE_LINKS, REVERSED))
    if has_all:
        found |= dict.fromkeys(late_device(device) for device in range(devices))
    return tuple(found)


def _named(word: str) -> tuple[Mode, ...]:
    if seeds := _RANDOM.fullmatch(word):
        first, last = int(seeds[1]), int(seeds[2] or seeds[1])
        if last < first:
            raise InputError("modes", f"{word!r} is no range of seeds: it ends before it begins")
        if last - first >= MOST_SEEDS:
            raise InputError("modes", f"{word!r} are more than {MOST_SEEDS:,} at once")
        return tuple(random_mode(seed) for seed in range(first, last + 1))
    if found := _LAST.fullmatch(word):
        return (_NUMBERED[found[1]](int(found[2])),)
    if found := _LOST.fullmatch(word):
        return (lost_device(int(found[1]), int(found[2])),)
    if word not in _NAMED:
        numbered = (
            *("random-<seed>", "random-<first>..<last>"),
            *("last-<cluster>", "late-device-<n>", "lost-device-<n>"),
        )
        allowed = ", ".join([*_NAMED, *numbered])
        raise InputError("modes", f"{word!r} is not known; allowed: {allowed}")
    return _NAMED[word]
