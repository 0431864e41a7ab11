# SPDX-License-Identifier: Apache-2.0
"""
A layer that emulated devices share: `dispatch` and `combine_ranks` as generated kernels, in rounds
whose tokens differ.

The first expert of a token gives the token itself, the second one the token behind it. If tokens
are quantised before they are sent, experts take two values as one of bfloat16, and results are
compared with these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from jitgen.codegen.render import render
from jitgen.config import Arch, Config, Layout
from jitgen.config.combine_ranks import CombineRanksConfig
from jitgen.config.dispatch import DispatchConfig, scale_shape, vectors_of
from jitgen.config.format import Format
from jitgen.config.permute_quantize import PermuteQuantizeConfig, Tiling, Walk
from jitgen.emulator import Artifact, Launch
from jitgen.errors import Deadlock, MachineFault
from jitgen.ops.combine.reference import combine
from jitgen.ops.dispatch import reference, rounds
from jitgen.ops.route.reference import sort_pairs
from jitgen.verify import DeviceCall, OnDevices, Window
from jitgen.verify.artifacts import compiled
from jitgen.verify.emulation import emulate

ROUNDS = 3
TOP_K = 2
EXPERTS = 2  # of each device
TAKE = PermuteQuantizeConfig(
    layout=Layout.RAGGED,
    format=Format.NONE,
    walk=Walk.TAKE,
    tiling=Tiling(threads=64, ctas_per_sm=12),
)
"""The kernel that takes rows which `dispatch` leaves in the inbox."""

WEIGHTS = (2.0, -1.0)
"""Weights of a token's experts: whole, so that sums are exact."""
WRONG = "wrong result"

_NEXT = """
.version 8.8
.target sm_90a
.address_size 64
.visible .entry next(
.param .u64 base, .param .u64 x, .param .u64 state, .param .u32 words)
{
.reg .pred %p<2>;
.reg .b32 %r<8>;
.reg .b64 %rd<8>;
ld.param.b64 %rd1, [base];
ld.param.b64 %rd2, [x];
ld.param.b64 %rd3, [state];
ld.param.b32 %r1, [words];
ld.global.b32 %r2, [%rd3+4];
add.u32 %r2, %r2, 1;
and.b32 %r2, %r2, 0x7fff;
mul.lo.u32 %r2, %r2, $STEP;
mov.u32 %r3, %tid.x;
$NEXT:
setp.ge.u32 %p1, %r3, %r1;
@%p1 bra $END;
mad.wide.u32 %rd4, %r3, 4, %rd1;
ld.global.b32 %r4, [%rd4];
add.u32 %r4, %r4, %r2;
mad.wide.u32 %rd5, %r3, 4, %rd2;
st.global.b32 [%rd5], %r4;
add.u32 %r3, %r3, 128;
bra $NEXT;
$END:
ret;
}
"""
"""
PTX of a kernel that writes the tokens of a round: `base`, and in each mantissa the number of the
round times a step.
"""


def next_of(step: int = 1) -> str:
    """Return a kernel that adds `step` times the number of the round to two bases at once."""
    return _NEXT.replace("$STEP", hex(0x10001 * step))


STALL = """
.version 8.8
.target sm_90a
.address_size 64
.visible .entry stall(.param .u64 state, .param .u32 number, .param .u64 ns)
{
.reg .pred %p<3>;
.reg .b32 %r<4>;
.reg .b64 %rd<6>;
ld.param.b64 %rd1, [state];
ld.param.b32 %r1, [number];
ld.param.b64 %rd2, [ns];
ld.global.b32 %r2, [%rd1+4];
add.u32 %r2, %r2, 1;
setp.ne.u32 %p1, %r1, %r2;
@%p1 bra $END;
mov.u64 %rd3, %globaltimer;
add.u64 %rd3, %rd3, %rd2;
$AGAIN:
ld.relaxed.gpu.global.b32 %r3, [%rd1+4];
mov.u64 %rd4, %globaltimer;
setp.lt.u64 %p2, %rd4, %rd3;
@%p2 bra $AGAIN;
$END:
ret;
}
"""
"""
PTX of a kernel that in one round does nothing for `ns` nanoseconds, and in others ends at once.
"""


class Stall(NamedTuple):
    """
    A device that does nothing for some time.

    Attributes:
        number: The round that the device begins later.
        ms: Milliseconds by which it is late.
    """

    number: int
    ms: float


class Whom(NamedTuple):
    """
    How a rank was masked.

    Attributes:
        step: The operation that waited for the rank in vain.
        number: Number of the round.
        was_told: Whether the masked rank had masked the other one before.
    """

    step: str
    number: int
    was_told: bool = False


@dataclass
class Kernels:
    """
    The kernels of a layer.

    Attributes:
        dispatch, combine_ranks: Configs of the kernels under test.
        arch: Target for which they are compiled.
        edits: Texts of their sources and what stands there instead, by the operation.
        edited: The device that has the edits; None: all have them.
        pauses: A device that does nothing for a while when it has sent its tokens, before it takes
            those of the others; where rows stay in the inbox, when it has sent experts alone.
        sms: Numbers of SMs of the devices, in turn: of CTAs, with enough tokens.
        others: Kernels of devices with odd numbers; None: those of the others.
    """

    dispatch: DispatchConfig = field(default_factory=DispatchConfig)
    combine_ranks: CombineRanksConfig = field(default_factory=CombineRanksConfig)
    edits: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    edited: int | None = None
    pauses: int | None = None
    arch: Arch = Arch.SM_90A
    sms: Sequence[int] = (2,)
    others: tuple[DispatchConfig, CombineRanksConfig] | None = None

    def of(self, device: int) -> tuple[DispatchConfig, CombineRanksConfig]:
        """Return the kernels of a device."""
        usual = self.dispatch, self.combine_ranks
        return usual if self.others is None or device % 2 == 0 else self.others

    def artifact(self, config: Config, device: int) -> Artifact:
        """Return a kernel with its edits."""
        if device == self.pauses and config.op == "dispatch":
            late = (_SENDS, _LATE_ROWS) if self.dispatch.leaves else (_TAKES, _PAUSE + _TAKES)
            return _edited(config, self.arch, *late)
        edit = self.edits.get(config.op) if self.edited in {None, device} else None
        return _edited(config, self.arch, *(edit or ("", "")))


_TAKES = "    for item in cutlass.range(every + first"
_PAUSE = """    until, looks = cute.arch.globaltimer() + 300_000, Int32(0)
    while (cute.arch.globaltimer() < until) & (looks >= 0):
        looks = cute.arch.load(state.iterator + RANK, Int32, sem="relaxed", scope="gpu")
"""
_SENDS = """    for item in cutlass.range(every + first, every * (ranks + 1), step, unroll=1):
        send(given, inbox, peers, record, (rank, wait), item)
"""
_IF = "        if item % record.length {} record.columns:\n    "
_LATE_ROWS = (
    _SENDS.replace("        send", _IF.format(">=") + "        send")
    + _PAUSE
    + _SENDS.replace("        send", _IF.format("<") + "        send")
)


@cache
def _edited(config: Config, arch: Arch, old: str, new: str) -> Artifact:
    source = render(config, arch)
    assert old in source.text, old
    return compiled(replace(source, text=source.text.replace(old, new) if old else source.text))


def new_order(rows: int) -> dict[str, Tensor]:
    """Return memory for the order of the pairs of `rows` tokens by the experts of a device."""
    shapes = {"offs": (EXPERTS,), "permutation": (rows * TOP_K,), "inverse": (rows, TOP_K)}
    return {name: torch.full(shape, -77, dtype=torch.int32) for name, shape in shapes.items()}


def is_order(ids: Tensor, order: Mapping[str, Tensor], first: int) -> bool:
    """Say whether an order is that of the pairs of `ids` by the experts from `first` on."""
    local = {"first_expert": first, "local_experts": EXPERTS}
    wanted = sort_pairs(ids, experts=first + EXPERTS, **local)
    return all(map(torch.equal, order.values(), wanted))


class Layer:
    """
    A layer on some devices, that has not run.

    Args:
        counts: Tokens of each device; the devices have room for the most of these.
        kernels: Its kernels.
        hidden: Columns of a token.
        limit_ms: How long waits last.
        room: Tokens that each device sends and takes; None: the most that any has.
        banks: Inboxes: one for each of the two kernels, or one for both.
        stalls: When devices stall, by their numbers.
        expected: Whom each device masks in the end, as `masked` returns it; None: not compared.
        replays: Number of rounds.
    """

    def __init__(
        self,
        counts: Sequence[int],
        kernels: Kernels | None = None,
        *,
        hidden: int = 64,
        limit_ms: int = 2000,
        room: int | None = None,
        banks: int = 2,
        stalls: Mapping[int, Sequence[Stall]] | None = None,
        expected: Sequence[Mapping[int, Whom]] | None = None,
        replays: int = ROUNDS,
    ) -> None:
        self.kernels, self.stalls = kernels or Kernels(), stalls or {}
        self.can_mask, self.expected = self.kernels.dispatch.can_mask, expected
        self.replays = replays
        self.ranks, self.room = len(counts), max(counts) if room is None else room
        self.of_experts = self.kernels.combine_ranks.of_experts
        self.form = self.kernels.dispatch.format
        self.width = hidden if self.form is Format.NONE else hidden // 2
        length = vectors_of(hidden, TOP_K, self.form)
        if self.of_experts:
            length = max(length, 1 + TOP_K * self.width // 4)
        places = self.room * length
        if self.kernels.dispatch.by_flags:
            places = -(-(places + rounds.FLAGS) // 2)
        self.windows = {
            f"inbox {bank}": Window(
                [torch.zeros(self.ranks, places, 4, dtype=torch.int32) for _ in counts]
            )
            for bank in range(banks)
        }
        if self.can_mask:
            notes = [torch.zeros(self.ranks, 2, dtype=torch.int64) for _ in counts]
            self.windows["notes"] = Window(notes)
        self.states = [
            rounds.new_state(rank, limit_ms, "cpu", can_mask=self.can_mask)
            for rank in range(self.ranks)
        ]
        self.calls: list[DeviceCall] = []
        self.checks: list[tuple[str, Tensor, Tensor]] = []
        self.results: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self.orders: list[tuple[Tensor, dict[str, Tensor], int]] = []
        chance = torch.Generator().manual_seed(0)
        self.ids = [
            torch.rand(count, 2 * self.ranks, generator=chance).argsort(-1)[:, :TOP_K].int()
            for count in counts
        ]
        if self.of_experts:  # a token of each device with two experts of one
            for ids in self.ids:
                ids[:1] = torch.arange(TOP_K)
        if self.can_mask:  # a token of each device with an expert there
            for rank, ids in enumerate(self.ids):
                ids[:1] = torch.tensor([2 * rank, (2 * rank + 3) % (2 * self.ranks)])
        self.weights = [torch.tensor(WEIGHTS).repeat(count, 1) for count in counts]
        self.bases = [
            (0x3F80 + torch.randint(100, (count, hidden), generator=chance)).short()
            for count in counts
        ]
        self.step = 1 if self.form is Format.NONE else 32  # so that quantised values differ, too
        self.x, self.scales = zip(
            *(self._quantised(base + replays * self.step) for base in self.bases), strict=True
        )
        for rank in range(self.ranks):
            self._add(rank, hidden)

    def _quantised(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bits of tokens as they are sent, and their scales, if they have some."""
        if self.form is Format.NONE:
            return x, torch.zeros(len(x))
        sent, scale = reference.quantised(x.view(torch.bfloat16), self.form)
        return sent.view(torch.int16), scale

    def _add(self, rank: int, hidden: int) -> None:
        """Add the calls of a device."""
        first, second = self.kernels.of(rank)
        rows, count, state = self.ranks * self.room, len(self.ids[rank]), self.states[rank]
        x = torch.zeros(count, hidden, dtype=torch.bfloat16)
        received = {
            "out_x": torch.zeros(rows, hidden, dtype=torch.bfloat16),
            "out_ids": torch.zeros(rows, TOP_K, dtype=torch.int32),
            "out_weights": torch.zeros(rows, TOP_K),
        }
        values = received["out_x"]
        if self.form is not Format.NONE:
            values = torch.zeros(rows, self.width, dtype=torch.bfloat16)
            received["out_x"] = values.view(torch.float8_e4m3fn)
            received["out_scale"] = torch.zeros(scale_shape(rows, hidden, self.form))
        out = torch.zeros(count, self.width, dtype=torch.bfloat16)
        links = [self._link(rank, name) for name in self.windows if name != "notes"]
        for stall in self.stalls.get(rank, ()):
            given = {"state": state, "number": stall.number, "ns": int(1e6 * stall.ms)}
            one_warp = Launch(grid=(1, 1, 1), block=(32, 1, 1))
            self.calls.append(
                DeviceCall(device=rank, kernel=STALL, arguments=given, launch=one_warp)
            )
        if count:
            words = {"base": self.bases[rank], "x": x, "state": state}
            self.calls.append(
                DeviceCall(
                    device=rank,
                    kernel=next_of(self.step),
                    arguments={**words, "words": count * hidden // 2},
                    launch=Launch(grid=(1, 1, 1), block=(128, 1, 1)),
                )
            )
        order = self._dispatch(rank, x, links[0], received)
        ids, weights, expected = self._received()
        rows_of = {"y": values, "inverse": self._inverse(rank)}
        rows_of |= self._taken(rank, order, links[0]["inbox"], hidden)
        rows_of["topk_weights"] = received["out_weights"]
        self._call(rank, second, {**rows_of, **links[-1], "out": out})
        tokens = (received["out_ids"], received["out_weights"])
        self.results.append((values, *tokens, out))
        if self.can_mask:
            return
        if not first.leaves:
            self.checks.append((f"out_x of {rank}", values.view(torch.int16), expected))
        self.checks += [
            (f"out_ids of {rank}", received["out_ids"], ids),
            (f"out_weights of {rank}", received["out_weights"], weights),
            (f"out of {rank}", out.view(torch.int16), self._sums(rank)),
        ]
        if self.form is not Format.NONE:
            scales = torch.ones_like(received["out_scale"])
            for source, each in enumerate(self.scales):
                scales[source * self.room :][: len(each)] = each
            self.checks.append((f"out_scale of {rank}", received["out_scale"], scales))

    def _dispatch(
        self, rank: int, x: Tensor, link: Mapping[str, Tensor], received: dict[str, Tensor]
    ) -> dict[str, Any]:
        """Add the call of `dispatch` of a device; return what else it has if it sorts."""
        first, _ = self.kernels.of(rank)
        order: dict[str, Any] = {}
        if first.leaves:
            del received["out_x"]
        if first.sorts:
            order = new_order(self.ranks * self.room)
            self.orders.append((received["out_ids"], dict(order), EXPERTS * rank))
            order["first_expert"] = EXPERTS * rank
        given = {"x": x, "topk_ids": self.ids[rank], "topk_weights": self.weights[rank]}
        self._call(rank, first, {**given, **link, **received, **order})
        return order

    def _taken(
        self, rank: int, order: Mapping[str, Tensor], inbox: Tensor, hidden: int
    ) -> dict[str, Tensor]:
        """
        Add the call that takes tokens, if `dispatch` leaves them; return a row for each pair, as a
        layer has them.
        """
        if not self.kernels.dispatch.leaves:
            return {}
        rows = {"inverse": order["inverse"]}
        y = torch.zeros(rows["inverse"].numel(), hidden, dtype=torch.bfloat16)
        self._call(rank, TAKE, {"inbox": inbox, "state": self.states[rank], **rows, "q": y})
        return {"y": y, **rows}

    def _rows(self) -> Tensor:
        """Return the rows of each token's experts: its own, and the one behind it in its device."""
        token = torch.arange(self.ranks * self.room)[:, None]
        return token - token % self.room + (token + torch.arange(TOP_K)) % self.room

    def _inverse(self, rank: int) -> Tensor:
        """Return the rows of each token's experts on a device, and numbers that are no row's."""
        ids, _, x = self._received()
        nowhere = len(x) if rank % 2 else -1
        return self._rows().where(ids // 2 == rank, nowhere).int().contiguous()

    def _shares(self, rank: int) -> list[Tensor]:
        """Return what each device has for the tokens of one, in float32."""
        _, weights, x = self._received()
        first, count = rank * self.room, len(self.ids[rank])
        return [
            combine(x.view(torch.bfloat16), self._inverse(source), weights)[first:][:count].float()
            for source in range(self.ranks)
        ]

    def _sums(self, rank: int) -> Tensor:
        """
        Return the bits of the results that a device must have: where rows stay in the inbox, an
        expert gives the token itself.
        """
        if self.kernels.dispatch.leaves:
            return self.x[rank]
        _, weights, x = self._received()
        if not self.of_experts:
            return sum(self._shares(rank), torch.zeros(())).bfloat16().view(torch.int16)
        values, first = x.view(torch.bfloat16), rank * self.room
        every = combine(values, self._rows(), weights)
        return every[first:][: len(self.ids[rank])].view(torch.int16)

    def _link(self, rank: int, name: str) -> dict[str, Tensor]:
        """
        Return the tensors by which a kernel of a device reaches its peers through the window
        `name`.
        """
        window = self.windows[name]
        found = {"inbox": window.tensors[rank], "peers": window.table(on=rank)}
        found["state"] = self.states[rank]
        return found | ({"notes": self.windows["notes"].table(on=rank)} if self.can_mask else {})

    def _received(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return what each device must receive: experts, weights and bits of tokens."""
        rows = self.ranks * self.room
        ids = torch.full((rows, TOP_K), -1, dtype=torch.int32)
        weights, x = torch.zeros(rows, TOP_K), torch.zeros(rows, self.width, dtype=torch.int16)
        for rank in range(self.ranks):
            first = rank * self.room
            part = slice(first, first + len(self.ids[rank]))
            ids[part], weights[part], x[part] = self.ids[rank], self.weights[rank], self.x[rank]
        return ids, weights, x

    def _call(self, rank: int, config: Config, arguments: dict[str, Any]) -> None:
        kernel, sms = self.kernels.artifact(config, rank), self.kernels.sms
        given = {**arguments, "num_sms": sms[rank % len(sms)]}
        self.calls.append(DeviceCall(device=rank, kernel=kernel, arguments=given))

    def wrong(self) -> list[str]:
        """
        Return the results that are not as expected, and the devices that noted a late peer. Where
        ranks can be masked, a result has the share of each rank that is not, and none of one that
        was before the last round.
        """
        unsorted = [f"order of {rank}" for rank, of in enumerate(self.orders) if not is_order(*of)]
        if self.can_mask:
            found = self.masked()
            wrong = unsorted + [
                f"out of {rank}" for rank in range(self.ranks) if not self._is_told(rank)
            ]
            wrong += [f"rows of {rank}" for rank in range(self.ranks) if not self._has_rows(rank)]
            is_expected = self.expected is None or found == [*self.expected]
            return wrong if is_expected else [*wrong, f"masked: {found}"]
        differ = [name for name, found, wanted in self.checks if not torch.equal(found, wanted)]
        return (
            unsorted
            + differ
            + [f"late: {rounds.late(state)}" for state in self.states if rounds.late(state)]
        )

    def masked(self) -> list[dict[int, Whom]]:
        """Return whom each device has masked, by their numbers."""
        return [
            {each.source: Whom(each.step, each.number, each.was_told) for each in found}
            for found in map(rounds.masked, self.states)
        ]

    def _has_rows(self, rank: int) -> bool:
        """
        Say whether a device has the rows of all that it has not masked, and none of those that it
        had masked before the last round.
        """
        x, ids, weights, _ = self.results[rank]
        wanted_ids, wanted_weights, wanted = self._received()
        masked = self.masked()[rank]
        for source in range(self.ranks):
            part = slice(source * self.room, (source + 1) * self.room)
            pairs = [(x[part].view(torch.int16), wanted[part]), (ids[part], wanted_ids[part])]
            pairs.append((weights[part], wanted_weights[part]))
            if source in masked:
                nothing = (0, -1, 0) if masked[source].number < ROUNDS else ()
                pairs = [
                    (found, torch.full_like(found, value))
                    for (found, _), value in zip(pairs, nothing, strict=False)
                ]
            if not all(torch.equal(found, each) for found, each in pairs):
                return False
        return True

    def _is_told(self, rank: int) -> bool:
        """Say whether a device's result lacks only shares of ranks that it has masked."""
        masked = self.masked()[rank]
        last = [source for source, each in masked.items() if each.number == ROUNDS]
        shares = self._shares(rank)
        nothing = torch.zeros(len(self.ids[rank]), self.width)
        certain = sum((each for k, each in enumerate(shares) if k not in masked), start=nothing)
        allowed = [
            certain + sum((shares[source] for source in some), start=nothing)
            for count in range(len(last) + 1)
            for some in combinations(last, count)
        ]
        found = self.results[rank][-1].float()
        return bool(
            torch.stack([found == each.bfloat16().float() for each in allowed]).any(0).all()
        )

    def found(self, modes: str = "quick", time_limit_s: float = 120) -> list[str]:
        """Run it and return what is found, wrong results among it."""
        work = OnDevices(calls=self.calls, windows=self.windows, replays=self.replays)
        try:
            sms = max(self.kernels.sms)
            report = emulate(work, modes=modes, num_sms=sms, time_limit_s=time_limit_s)
        except MachineFault as fault:
            kind = "deadlock" if isinstance(fault, Deadlock) else "fault"
            return [f"{kind}: {fault}"]
        found = [str(finding) for _, finding in report.findings]
        wrong = self.wrong()
        return [*found, *([f"{WRONG}: {', '.join(wrong)}"] if wrong else [])]
