# SPDX-License-Identifier: Apache-2.0
"""
Micro-batches of a layer that emulated devices share, on two streams of each device: `dispatch` and
`combine_ranks` of one, while another is multiplied. The exchanges of a device share one state, and
use two pairs of windows in turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from jitgen.config import Config
from jitgen.config.combine import CombineConfig
from jitgen.emulator import Launch
from jitgen.ops.dispatch import rounds
from jitgen.verify import DeviceCall
from tests import needs
from tests.compile.mistakes import MASKING
from tests.compile.ranks import STALL, TOP_K, Kernels, Layer, Whom, next_of

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

GROW = """
.version 8.8
.target sm_90a
.address_size 64
.visible .entry grow(.param .u64 word)
{
.reg .b32 %r<2>;
.reg .b64 %rd<2>;
ld.param.b64 %rd1, [word];
ld.global.b32 %r1, [%rd1];
add.u32 %r1, %r1, 1;
st.global.b32 [%rd1], %r1;
ret;
}
"""
"""PTX of a kernel that adds 1 to a word, as `jitgen.parallel.windows` does by torch."""

PRODUCTS, EXCHANGES = 0, 1
"""Streams of a device."""

ONE_THREAD = Launch(grid=(1, 1, 1), block=(1, 1, 1))


class MicroBatches(Layer):
    """
    As `Layer`, in whose calls the tokens of a device are several micro-batches.

    Args:
        counts: Tokens of each device.
        passes: Number of micro-batches.
        pairs: Number of pairs of windows.
        awaits: Whether sums wait for the products on the other stream, and products for tokens.
        stalled: Nanoseconds for which a device, by its number, does nothing before the dispatch of
            its second micro-batch in the second replay.
        options: As for `Layer`.
    """

    def __init__(
        self,
        counts: Sequence[int],
        kernels: Kernels | None = None,
        *,
        passes: int = 2,
        pairs: int = 2,
        awaits: bool = True,
        stalled: Mapping[int, int] | None = None,
        **options: Any,
    ) -> None:
        self.passes, self.pairs, self.awaits = passes, pairs, awaits
        self.stalled = stalled or {}
        room = -(-max(counts) // passes)
        super().__init__(counts, kernels, room=room, banks=2 * pairs, **options)

    def _add(self, rank: int, hidden: int) -> None:
        """Add the calls of a device."""
        if rank == 0:  # numbers of rounds grow by one more than the passes in a replay
            last = (self.replays - 1) * (self.passes + 1) + 1
            self.x = [base + last for base in self.bases]
        count, state = len(self.ids[rank]), self.states[rank]
        x, out = (torch.zeros(count, hidden, dtype=torch.bfloat16) for _ in range(2))
        begin = None
        if count:
            given = {"base": self.bases[rank], "x": x, "state": state, "words": count * hidden // 2}
            launch = Launch(grid=(1, 1, 1), block=(128, 1, 1))
            begin = self._on(rank, PRODUCTS, next_of(), given, launch=launch)
        sent = [self._send(rank, 0, x, begin)]
        for number in range(self.passes):
            if number + 1 < self.passes:
                if number == 0:
                    self._grow(rank, rounds.COMBINED)
                sent.append(self._send(rank, number + 1, x, begin))
            received, arrived = sent[number]
            ids, weights, bits = self._of_pass(number, hidden)
            y = torch.zeros(len(ids), hidden, dtype=torch.bfloat16)
            row = torch.arange(len(ids), dtype=torch.int32)[:, None].expand_as(ids)
            inverse = row.where((ids // 2 == rank) & (ids >= 0), -1).int().contiguous()
            own = self._part(rank, number)
            once = {"inverse": row[:, :1].contiguous(), "topk_weights": torch.ones(len(ids), 1)}
            given = {"y": received["out_x"], **once, "out": y}
            multiplied = self._on(rank, PRODUCTS, CombineConfig(), given, after=arrived)
            if number == self.passes - 1 > 0:
                self._grow(rank, rounds.DISPATCHED)
            link = self._link(rank, f"inbox {2 * (number % self.pairs) + 1}")
            places = {"inverse": inverse, "topk_weights": received["out_weights"]}
            given = {"y": y, **places, **link, "out": out[own]}
            self._on(rank, EXCHANGES, self.kernels.combine_ranks, given, after=multiplied)
            if not self.can_mask:
                self.checks += [
                    (f"out_ids of {rank} in {number}", received["out_ids"], ids),
                    (f"out_weights of {rank} in {number}", received["out_weights"], weights),
                    (f"out_x of {rank} in {number}", received["out_x"].view(torch.int16), bits),
                ]
        self.results.append((out, out, out, out))
        if not self.can_mask:
            self.checks.append((f"out of {rank}", out.view(torch.int16), self.x[rank]))

    def _shares(self, rank: int) -> list[Tensor]:
        """Return what each device has for the tokens of one: here each expert gives the token."""
        ids, weights = self.ids[rank], self.weights[rank]
        x = self.x[rank].view(torch.bfloat16).float()
        found = [((ids // 2 == source) * weights).sum(1) for source in range(self.ranks)]
        return [each[:, None] * x for each in found]

    def _send(
        self, rank: int, number: int, x: Tensor, begin: int | None
    ) -> tuple[dict[str, Tensor], int]:
        """Add the dispatch of a pass; return what it fills, and the number of its call."""
        if number == 1 and rank in self.stalled:
            late = self.passes + 3  # the second round of the second replay
            given = {"state": self.states[rank], "number": late, "ns": self.stalled[rank]}
            one_warp = Launch(grid=(1, 1, 1), block=(32, 1, 1))
            self._on(rank, EXCHANGES, STALL, given, launch=one_warp)
        rows, own = self.ranks * self.room, self._part(rank, number)
        received = {
            "out_x": torch.zeros(rows, x.shape[1], dtype=torch.bfloat16),
            "out_ids": torch.zeros(rows, TOP_K, dtype=torch.int32),
            "out_weights": torch.zeros(rows, TOP_K),
        }
        given = {
            "x": x[own],
            "topk_ids": self.ids[rank][own],
            "topk_weights": self.weights[rank][own],
            **self._link(rank, f"inbox {2 * (number % self.pairs)}"),
            **received,
        }
        return received, self._on(rank, EXCHANGES, self.kernels.dispatch, given, after=begin)

    def _grow(self, rank: int, word: int) -> None:
        """Let the next exchange have another number than the last, which is of the same kind."""
        word_of = {"word": self.states[rank][word : word + 1]}
        self._on(rank, EXCHANGES, GROW, word_of, launch=ONE_THREAD)

    def _on(
        self,
        rank: int,
        stream: int,
        kernel: Config | str,
        given: dict[str, Any],
        *,
        after: int | None = None,
        launch: Launch | None = None,
    ) -> int:
        """Add a call on a stream, after the call with this number; return its own number."""
        made: Any = kernel
        if isinstance(kernel, Config):
            made, given = self.kernels.artifact(kernel, rank), {**given, "num_sms": 2}
        self.calls.append(
            DeviceCall(
                device=rank,
                kernel=made,
                arguments=given,
                launch=launch,
                stream=stream,
                after=(after,) if after is not None and self.awaits else (),
            )
        )
        return len(self.calls) - 1

    def _part(self, rank: int, number: int) -> slice:
        """Return which tokens of a device a pass has."""
        count = len(self.ids[rank])
        return slice(*(min(each * self.room, count) for each in (number, number + 1)))

    def _of_pass(self, number: int, hidden: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return what each device must receive in a pass: experts, weights and bits of tokens."""
        rows = self.ranks * self.room
        ids = torch.full((rows, TOP_K), -1, dtype=torch.int32)
        weights, x = torch.zeros(rows, TOP_K), torch.zeros(rows, hidden, dtype=torch.int16)
        for rank in range(self.ranks):
            own, first = self._part(rank, number), rank * self.room
            part = slice(first, first + own.stop - own.start)
            ids[part], weights[part] = self.ids[rank][own], self.weights[rank][own]
            x[part] = self.x[rank][own]
        return ids, weights, x

    def _has_rows(self, rank: int) -> bool:
        """Say nothing of rows: sums show what came."""
        return True


@pytest.mark.parametrize(
    ("counts", "passes", "modes"),
    [
        ((4, 3), 2, "quick"),
        ((0, 5), 3, "eager,slow-links,late-device-0"),
        pytest.param((5, 1, 0, 4), 4, "quick", marks=pytest.mark.nightly),
        pytest.param((4, 3), 2, "all", marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_they_are_right(counts: tuple[int, ...], passes: int, modes: str) -> None:
    """Also where a device has no token, and where the last micro-batch has none of a device."""
    assert MicroBatches(counts, passes=passes).found(modes) == []


def test_one_pair_of_windows_is_not_enough() -> None:
    """A device that reads the first micro-batch late finds tokens of the second."""
    slow = Kernels(pauses=1)

    assert MicroBatches((4, 3), slow).found("eager") == []
    assert MicroBatches((4, 3), slow, pairs=1).found("eager")


def test_streams_have_to_wait_for_each_other() -> None:
    assert MicroBatches((4, 3), awaits=False).found("eager")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", ["eager", "slow-links", "late-device-0", "random-1"])
def test_one_that_is_late_in_one_is_masked_in_all_that_follow(mode: str) -> None:
    """The others go on without it; it reads that it was masked, and has its own share."""
    number = 5  # of exchanges have ended before: those of a replay have 1 to 3
    expected: list[dict[int, Whom]] = [{1: Whom("dispatch", number)} for _ in range(3)]
    told = Whom("combine_ranks", number, was_told=True)
    expected[1] = {0: told, 2: told}
    layer = MicroBatches((4, 3, 2), MASKING, stalled={1: 3_000_000}, limit_ms=1, expected=expected)

    assert layer.found(mode) == []
