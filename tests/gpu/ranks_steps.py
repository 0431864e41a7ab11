# SPDX-License-Identifier: Apache-2.0
"""
Layers of ranks for a long time: random tokens in graphs and eager calls, maps of experts that move,
ranks that stall, and ranks that are late, masked and back again. A part of `python -m
tests.gpu.ranks_soak`.
"""

from __future__ import annotations

import gc
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import jitgen
from jitgen.bench.layer.ours import without_memory
from jitgen.config import Config
from jitgen.layer.reference import relative_error
from jitgen.parallel import ExpertMap, balance
from tests.gpu.expert_parallel import SMALL, log, part_of, weights_of
from tests.gpu.ranks_formats import LIMIT_S, MOST, Place, Replay
from tests.gpu.ranks_modes import Blank

MODES: dict[str, dict[str, Any]] = {
    "masking": {"late": "mask"},
    "invariant": {"numerics": "invariant"},
    "quantised": {"numerics": "invariant", "quantise": True},
    "flags": {"quantise": True, "flags_from": 3},  # on a CPU without flags
}
"""Layers, each with windows of its own."""

SIZES = (1, 4, MOST)
"""Most tokens of a rank in each captured graph."""

CASES = 24
"""Number of inputs of each size, and of eager calls."""

MAPS = 4
FIRST, EVERY = 200, 4
"""The first `FIRST` calls are all checked, later one in `EVERY`."""

BLOCK = 50
"""Steps after which ranks agree on the time."""

MOVE, TOGETHER = 4, 10
"""Blocks between moves, and steps of a move in which the old map serves."""

LATE_EVERY_S = 60.0
WAIT_S, LATE_S = 2.0, 5.0
"""Seconds that ranks wait before they mask a late one, and seconds that one is late."""

STALLED, STALL_S = 0.15, 0.05
"""Probability that a rank stalls before a call, and the most seconds that it stalls."""

TOLERANCE = 5e-3
GROWTH = 64 << 20
MOST_WRONG = 10


class Side:
    """
    A layer of all ranks in one mode, with its windows and graphs.

    Args:
        soak: The soak that it belongs to.
        mode: One of `MODES`.
        number: The number of its map.
        wait_s: Seconds that it waits for a rank before it masks that rank.
    """

    def __init__(self, soak: Soak, mode: str, number: int, wait_s: float) -> None:
        place = soak.place
        limit = {"limit_s": wait_s} if mode == "masking" else {}
        self.wire = place.connect(SMALL.top_k, **limit, **MODES[mode])
        self.layer = jitgen.MoELayer(
            replace(SMALL, numerics=MODES[mode].get("numerics")),
            soak.mine,
            max_tokens=MOST,
            group=self.wire,
            expert_map=soak.maps[number],
        )
        self.mode, self.number = mode, number
        self.move: tuple[int, Any] | None = None
        self.left = 0
        self.graphs = {
            size: Replay(
                lambda *given, size=size, **out: self.layer(*given, rank_tokens=size, **out),
                soak.given[size, 0],
                place,
            )
            for size in SIZES
        }


class Soak:
    """
    The work of one rank. Every rank takes the same steps, of which a common seed decides.

    Args:
        place: The rank.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.common, self.own = random.Random(0), random.Random(1 + place.rank)
        weights = weights_of(SMALL, place.device)
        self.mine = part_of(weights, place.rank, place.ranks)
        self.whole = {
            mode: jitgen.MoELayer(replace(SMALL, numerics=options.get("numerics")), weights)
            for mode, options in MODES.items()
        }
        chance = random.Random(7)
        self.maps: list[ExpertMap] = [
            balance([chance.random() for _ in range(SMALL.experts)], place.ranks, place.ranks)
            for _ in range(MAPS)
        ]
        self.given: dict[tuple[int, int], tuple[Tensor, ...]] = {}
        self.room: dict[int, int | None] = {}
        for case in range(CASES):
            for size in SIZES:
                count = max(0, size - place.rank % 2)
                self.given[size, case] = place.tokens(SMALL, count, 100 * size + case)[:3]
            most = MOST if case % 8 else 2 * MOST  # in two passes
            counts = [chance.randint(0, most) for _ in range(place.ranks)]
            counts[case % place.ranks] *= case % 3 > 0  # a rank that has no token
            self.room[case] = max(counts) if case % 2 or max(counts) > MOST else None
            self.given[0, case] = place.tokens(SMALL, counts[place.rank], case)[:3]
        self.known: dict[Any, Tensor] = {}
        self.counts: Counter[str] = Counter()
        self.sides: dict[str, Side] = {}
        self.connect(LIMIT_S)  # the first calls load kernels

    def connect(self, wait_s: float = WAIT_S) -> None:
        """Make new windows, layers with the present maps, and graphs."""
        old = self.sides
        numbers = {mode: old[mode].number if mode in old else 0 for mode in MODES}
        self.sides = {mode: Side(self, mode, number, wait_s) for mode, number in numbers.items()}
        while old:  # no name may keep the last one
            for replay in old.popitem()[1].graphs.values():
                if replay.graph is not None:
                    replay.graph.reset()
        gc.collect()

    def result(self, side: Side, size: int, case: int) -> Tensor:
        """Call a layer, or replay a graph of it."""
        given = self.given[size, case]
        if size:
            self.counts["replays"] += 1
            return side.graphs[size](*given)
        self.counts["calls"] += 1
        return side.layer(*given, rank_tokens=self.room[case])

    def step(self) -> None:
        """Make a call, which some ranks make late, and check it if it is its turn."""
        self.counts["steps"] += 1
        side = self.sides[self.common.choice([*MODES])]
        size, case = self.common.choice((0, 0, *SIZES)), self.common.randrange(CASES)
        if self.own.random() < STALLED:
            time.sleep(self.own.uniform(0, STALL_S))
        found = self.result(side, size, case)
        if self.counts["steps"] <= FIRST or self.counts["steps"] % EVERY == 0:
            self.check(side, size, case, found)
        self.go_on_moving()

    def check(self, side: Side, size: int, case: int, found: Tensor) -> None:
        """Compare with one device's result, or with the first one of the same input and map."""
        self.counts["checked"] += 1
        is_invariant = "numerics" in MODES[side.mode]
        key = (side.mode, size, case, None if is_invariant else side.number)
        have = found.to("cpu", copy=True)  # a replay writes there again
        if (known := self.known.get(key)) is not None:
            self.require(torch.equal(have, known), key, "bits differ from the first result's")
            return
        wanted = self.whole[side.mode](*self.given[size, case])
        if is_invariant:
            self.require(torch.equal(found, wanted), key, "bits differ from one device's")
        else:
            error = relative_error(found, wanted)
            self.require(error < TOLERANCE, key, f"error {error:.2e}")
        self.known[key] = have

    def require(self, is_right: bool, what: object, why: str) -> None:
        """Count what is wrong, and say it; end where it is too much."""
        if is_right:
            return
        self.counts["wrong"] += 1
        step = self.counts["steps"]
        print(f"rank {self.place.rank}: WRONG at step {step}: {what}: {why}", flush=True)
        if self.counts["wrong"] > MOST_WRONG:
            raise AssertionError("too many wrong results")

    def begin_move(self) -> None:
        """Begin to move the experts of one layer."""
        side, number = self.sides[self.common.choice([*MODES])], self.common.randrange(MAPS)
        if side.move is None:
            side.move = number, side.layer.move(self.maps[number])
            side.left = TOGETHER

    def go_on_moving(self) -> None:
        """Count a step of every move, and end the moves whose steps are over."""
        for side in self.sides.values():
            side.left -= 1
            if side.left <= 0:
                self.finish(side)

    def finish_all(self) -> None:
        """End the moves of all layers."""
        for side in self.sides.values():
            self.finish(side)

    def finish(self, side: Side) -> None:
        """End a layer's move, if there is one."""
        if side.move is not None:
            number, move = side.move
            move.finish()
            side.number, side.move = number, None
            self.counts["moves"] += 1

    def check_wires(self) -> None:
        """Require that no rank was masked, and none too late."""
        for side in self.sides.values():
            masked = side.wire.check()
            self.require(not masked, side.mode, f"masked: {masked}")

    def be_late(self, who: int) -> None:
        """
        Let a rank be late: the others go on without it, and it without them; then all connect
        again.
        """
        self.finish_all()
        side, rank, case = self.sides["masking"], self.place.rank, 1
        self.check_wires()
        if rank == who:
            time.sleep(LATE_S)
        self.result(side, 0, case)  # in which only some columns may have the late rank's share
        self.place.synchronize()
        begin = time.monotonic()
        owners = torch.tensor(side.layer.expert_map.owners, device=self.place.device)
        for size in (0, *SIZES, 0):
            x, weights, ids = self.given[size, case]
            is_late = owners[side.layer._wire.choose(ids).long()] == who
            alone = ids.where(is_late if rank == who else ~is_late, -1)
            found = self.result(side, size, case)
            error = relative_error(found, self.whole["masking"](x, weights, alone))
            self.require(error < TOLERANCE, f"without rank {who}", f"error {error:.2e}")
        spent = time.monotonic() - begin
        self.require(spent < WAIT_S, f"without rank {who}", f"5 calls took {spent:.2f} s")
        masked = {each.source for each in side.wire.check()}
        others = {*range(self.place.ranks)} - {who}
        self.require(
            masked == (others if rank == who else {who}), f"rank {who} is late", f"{masked}"
        )
        self.place.synchronize()
        dist.barrier()
        self.connect()
        self.counts["maskings"] += 1
        log(rank, f"soak: rank {who} was late, 5 calls since then {1e3 * spent:.1f} ms; all again")

    def memory(self) -> tuple[int, int]:
        """
        Return the bytes that torch has allocated on the GPU, and those in use there; without a GPU
        0 and the memory of this process.
        """
        gc.collect()
        self.place.synchronize()
        if not self.place.is_gpu:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
            return 0, pages * os.sysconf("SC_PAGE_SIZE")
        torch.cuda.empty_cache()
        free, every = torch.cuda.mem_get_info()
        return torch.cuda.memory_allocated(), every - free

    def now(self, begin: float) -> float:
        """Return the first rank's seconds since `begin`, on every rank."""
        passed = torch.tensor([time.monotonic() - begin], device=self.place.device)
        dist.broadcast(passed, 0)
        return passed.item()

    def run(self, seconds: float) -> list[str]:
        """Return what is wrong, the same on every rank."""
        rank = self.place.rank
        for step in range(2 * BLOCK):  # what is allocated once is so before the memory is noted
            if step % BLOCK == 0:
                self.begin_move()
            self.step()
        log(rank, f"soak: first steps: {dict(self.counts)}")
        self.check_wires()
        self.finish_all()
        dist.barrier()
        self.connect()
        self.be_late(self.place.ranks - 1)
        before, begin, spoken, blocks = self.memory(), time.monotonic(), 0.0, 0
        while (passed := self.now(begin)) < seconds:
            if passed > LATE_EVERY_S * self.counts["maskings"]:
                self.be_late(self.counts["maskings"] % self.place.ranks)
            if blocks % MOVE == 0:
                self.begin_move()
            for _ in range(BLOCK):
                self.step()
            self.check_wires()
            blocks += 1
            if passed > spoken + 15:
                spoken = passed
                log(rank, f"soak: {passed:.0f} s: {dict(self.counts)}")
        self.finish_all()
        after = self.memory()
        return self.report(before, after)

    def report(self, before: tuple[int, int], after: tuple[int, int]) -> list[str]:
        """Print what was done; return what is wrong."""
        grown = [b - a for a, b in zip(before, after, strict=True)]
        every = [self.counts["wrong"], *(each > GROWTH for each in grown)]
        wrong, *leaks = self.place.total(torch.tensor(every, dtype=torch.float64))
        names = ("calls", "replays", "checked", "moves", "maskings")
        words = ", ".join(f"{self.counts[name]} {name}" for name in names)
        log(self.place.rank, f"soak: {words}, {wrong:.0f} wrong results on all ranks")
        mib = [f"{a / 2**20:.1f} -> {b / 2**20:.1f}" for a, b in zip(before, after, strict=True)]
        print(
            f"rank {self.place.rank}: soak: memory, MiB: by torch {mib[0]}, in all {mib[1]}",
            flush=True,
        )
        found = [f"soak: {wrong:.0f} wrong results"] if wrong else []
        return found + ["soak: memory grew by more than 64 MiB"] * any(leaks)


def configs(ranks: int, arch: str) -> Iterator[Config]:
    """Yield the configs of kernels that `Soak` needs."""
    places = ExpertMap.plain(SMALL.experts + ranks, ranks)
    for mode in MODES.values():
        config = replace(SMALL, numerics=mode.get("numerics"))
        weights = without_memory(config.experts, config.intermediate, config.hidden)
        yield from jitgen.MoELayer(config, weights).configs(arch, 2 * MOST)
        for rank in range(ranks):
            mine = places.part(rank)
            part = replace(config, experts=len(places.placed))
            part = replace(part, first_expert=mine.start, local_experts=len(mine))
            way = {k: v for k, v in mode.items() if arch != "cpu" or k != "flags_from"}
            blank: Any = Blank(rank, ranks, MOST, **way)
            weights = without_memory(len(mine), part.intermediate, part.hidden)
            layer = jitgen.MoELayer(part, weights, max_tokens=MOST, group=blank)
            yield from layer.configs(arch)
