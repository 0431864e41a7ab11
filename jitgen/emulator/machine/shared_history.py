# SPDX-License-Identifier: Apache-2.0
"""
The accesses of a shared memory, word by word, or byte by byte where a kernel accesses single bytes.

Nearly all accesses are of whole 4-byte words. A word that an instruction accesses in part is split
for good: its history is per byte from then on, so that two warps may write two halves of a word.
"""

from __future__ import annotations

from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine.access import Access
from jitgen.emulator.machine.clocks import Clocks
from jitgen.emulator.machine.history import History
from jitgen.emulator.machine.readers import Granules

if TYPE_CHECKING:
    from jitgen.emulator.machine.fragment import Fragment

WORD = 4
"""Bytes of a word."""

_WORD_SHIFT = 2


class SharedHistory:
    """
    The history of the accesses to the shared memory of one CTA.

    Attributes:
        words: Accesses to words that are accessed as a whole; those to other words are in `bytes`.
    """

    def __init__(
        self,
        clocks: Clocks,
        size: int,
        name: str,
        warps: NDArray[np.int64] | None = None,
        *,
        spans_ctas: bool = False,
    ) -> None:
        """
        Begin with no access.

        Args:
            clocks: The vector clocks of the cluster.
            size: Bytes of the memory, whole words.
            name: Name of the memory's CTA in messages.
            warps: Agents whose lanes are recorded; None: no lanes are.
            spans_ctas: Whether other CTAs of the cluster may access the memory.
        """
        self._clocks, self._size, self._name = clocks, size, name
        self.words = History(clocks, size // WORD, partial(_describe, name, WORD))
        self.words.warps = frozenset(() if warps is None else warps.tolist())
        self.words.strong.spans_ctas = spans_ctas
        self._is_split: NDArray[np.bool_] | None = None

    @cached_property
    def bytes(self) -> History:
        """The history of split words, byte by byte; made when the first word is split."""
        history = History(self._clocks, self._size, partial(_describe, self._name, 1))
        history.is_checked, history.warps = self.words.is_checked, self.words.warps
        history.strong = self.words.strong
        return history

    def access(
        self, f: Fragment, at: int, offsets: NDArray[np.int64], width: int, access: Access
    ) -> None:
        """
        Note accesses of `width` bytes each.

        Args:
            f: The fragment that executes the instruction.
            at: Index of the instruction.
            offsets: Offset at which each access begins [k], aligned to the width.
            width: Bytes of an access: 1, 2, 4 or more.
            access: The agents and the kind of access; its arrays are [k].
        """
        if not self.words.is_checked:
            return
        if width < WORD:
            words = offsets >> _WORD_SHIFT
            self._split(words)
            each = access.part(_repeats(len(offsets), width))
            self.bytes.access(f, at, _spread(offsets, width), each)
        elif width == WORD:
            self.access_words(f, at, offsets >> _WORD_SHIFT, access)
        else:
            count = width // WORD
            words = _spread(offsets >> _WORD_SHIFT, count)
            self.access_words(f, at, words, access.part(_repeats(len(offsets), count)))

    def access_words(self, f: Fragment, at: int, words: Granules, access: Access) -> None:
        """
        Note accesses of whole words.

        Args:
            f: The fragment that executes the instruction.
            at: Index of the instruction.
            words: A slice with ends, or numbers [k].
            access: The agents and the kind of access; its arrays are [k].
        """
        if self._is_split is not None:
            is_split = self._is_split[words]
            if np.count_nonzero(is_split):
                self._access_mixed(f, at, words, is_split, access)
                return
        self.words.access(f, at, words, access)

    def read_apart(
        self,
        at: int,
        words: list[slice],
        agents: tuple[int, ...],
        epochs: tuple[int, ...],
        rows: NDArray[np.int64],
    ) -> bool:
        """
        Note reads of whole words by several units and return True, or note nothing and return
        False: see `History.read_apart`.
        """
        if self._is_split is not None:
            hull = slice(min(x.start for x in words), max(x.stop for x in words))
            if np.count_nonzero(self._is_split[hull]):
                return False
        return self.words.read_apart(at, words, agents, epochs, rows)

    def _access_mixed(
        self, f: Fragment, at: int, words: Granules, is_split: NDArray[np.bool_], access: Access
    ) -> None:
        """Note an access of words of which some are split."""
        numbers = _numbers(words)
        whole, split = np.flatnonzero(~is_split), np.flatnonzero(is_split)
        self.words.access(f, at, numbers[whole], access.part(whole))
        repeated = split[_repeats(len(split), WORD)]
        self.bytes.access(f, at, _spread(numbers[split] * WORD, WORD), access.part(repeated))

    def _split(self, words: NDArray[np.int64]) -> None:
        """Split those of `words` that are not split yet."""
        if self._is_split is None:
            self._is_split = np.zeros(self._size // WORD, np.bool_)
        new = words[~self._is_split[words]]
        if len(new):
            for word in np.unique(new).tolist():
                self.words.move(word, self.bytes, slice(word * WORD, (word + 1) * WORD))
            self._is_split[new] = True


def _describe(name: str, size: int, granule: int) -> str:
    return f"shared memory {granule * size:#x} of {name}"


def _numbers(words: Granules) -> NDArray[np.int64]:
    """Return the numbers of granules [k]."""
    return np.arange(words.start, words.stop) if isinstance(words, slice) else words


def _spread(starts: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return `count` numbers from each of `starts` [k] on, [k * count]."""
    return (starts[:, None] + np.arange(count)).reshape(-1)


@lru_cache(maxsize=256)
def _repeats(number: int, count: int) -> NDArray[np.int64]:
    """Return 0, 0, ..., 1, 1, ...: each of `number` positions `count` times."""
    return np.repeat(np.arange(number), count)
