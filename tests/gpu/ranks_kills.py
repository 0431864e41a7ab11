# SPDX-License-Identifier: Apache-2.0
"""
Ranks whose processes are killed, one after the other, while they share a layer: the others mask the
killed one and go on, and a new process comes back with new windows. A part of `python -m
tests.gpu.ranks_soak`.

This process starts the ranks and kills them; it has the store by which they meet. A *generation* is
a group of torch.distributed with its windows: it ends some calls after a process was killed. On a
CPU the other processes then meet the new one in a new group. On GPUs all processes are new ones:
docs/expert-parallel.md says why.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

import jitgen
from jitgen.bench.layer.ours import without_memory
from jitgen.config import Config
from jitgen.layer.reference import relative_error
from jitgen.parallel import share
from tests.gpu.expert_parallel import SMALL, carried, log, part_of, weights_of
from tests.gpu.ranks_formats import LIMIT_S, MOST, Place
from tests.gpu.ranks_modes import Blank

CASES = 16
TOLERANCE = 5e-3

WAIT_S = 4.0
"""Seconds that ranks wait before they mask a killed one."""

AFTER = 40
"""Calls of a generation after a rank has seen that one is masked, or that the run is over."""

START_S = 120
"""Most seconds until all ranks of a generation are connected."""

GROWTH = 64 << 20

COUNTED = ("calls", "checked", "without one", "maskings")
WRONG = "wrong"
"""What the store counts."""


class Victims:
    """
    The work of one rank's process, in all generations that it lives in.

    Args:
        place: The rank.
        store: The store that all processes know.
    """

    def __init__(self, place: Place, store: dist.Store) -> None:
        self.place, self.store = place, store
        weights = weights_of(SMALL, place.device)
        self.mine = part_of(weights, place.rank, place.ranks)
        self.whole = jitgen.MoELayer(SMALL, weights)
        chance = random.Random(7)
        self.given: list[tuple[Tensor, ...]] = []
        self.most: list[int] = []
        for case in range(CASES):
            counts = [chance.randint(0, MOST) for _ in range(place.ranks)]
            counts[case % place.ranks] *= case % 3 > 0  # a rank that has no token
            self.given.append(place.tokens(SMALL, counts[place.rank], case)[:3])
            self.most.append(max(1, *counts))
        self.known: dict[tuple[int, int], Tensor] = {}
        self.counts: Counter[str] = Counter()
        self.memory: list[int] = []

    def live(self, generation: int) -> str:
        """Live in one generation; return why it ended."""
        place = self.place
        dist.init_process_group(
            "nccl" if place.is_gpu else "gloo",
            store=dist.PrefixStore(f"generation {generation}", self.store),
            rank=place.rank,
            world_size=place.ranks,
            timeout=timedelta(seconds=START_S),
            device_id=torch.device("cuda", place.rank) if place.is_gpu else None,
        )
        parts = 1 + 2 * (generation % 2)  # every second generation has micro-batches
        self.generation, self.parts = generation, parts
        self.layer = self.connected(LIMIT_S)  # the first calls load kernels
        for case in range(CASES):
            self.call(case)
        dist.barrier()
        self.layer = self.connected(WAIT_S)
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        self.memory.append(pages * os.sysconf("SC_PAGE_SIZE"))
        dist.barrier()
        self.store.set(f"ready {generation} {place.rank}", str(os.getpid()))
        why = self.steps()
        place.synchronize()
        del self.layer
        gc.collect()
        if not place.is_gpu:
            dist.destroy_process_group()
        return why

    def connected(self, wait_s: float) -> jitgen.MoELayer:
        """Return a layer with new windows."""
        wire = self.place.connect(
            SMALL.top_k, limit_s=wait_s, late="mask", micro_batches=self.parts
        )
        return jitgen.MoELayer(SMALL, self.mine, max_tokens=MOST, group=wire)

    def call(self, case: int) -> Tensor:
        """Call the layer."""
        return self.layer(*self.given[case], rank_tokens=self.most[case])

    def masked(self) -> frozenset[int]:
        """Return the ranks that this one has masked."""
        wire: Any = self.layer.wire
        return frozenset(each.source for each in wire.check())

    def steps(self) -> str:
        """Call the layer until a leader, which is the first rank that is not masked, says when."""
        common, stop, why = random.Random(self.generation), None, ""
        key, step, before = f"stop {self.generation}", 0, frozenset[int]()
        while stop is None or step < stop:
            case = common.randrange(CASES)
            found = self.call(case)
            after = self.masked()
            self.counts["calls"] += 1
            if after == before:  # else some columns may have the share of the masked rank
                self.check(case, found, after)
            before, step = after, step + 1
            leader = min({*range(self.place.ranks)} - after)
            if stop is None and self.place.rank == leader:
                over = self.store.check([f"end {self.generation}"])
                if after or over:
                    self.store.set(key, json.dumps([step + AFTER, "killed" if after else "end"]))
            if stop is None and self.store.check([key]):
                stop, why = json.loads(self.store.get(key))
        killed = {int(self.store.get(f"kill {self.generation}"))} if why == "killed" else {*()}
        if before != killed:
            self.say(f"ranks {[*before]} are masked, and {[*killed]} were killed")
        self.counts["maskings"] += len(before)
        for name in COUNTED:  # now, because the process may be killed in the next generation
            self.store.add(name, self.counts[name])
        self.counts.clear()
        return why

    def check(self, case: int, found: Tensor, masked: frozenset[int]) -> None:
        """Compare with one device's result without the experts of masked ranks."""
        self.counts["checked"] += 1
        self.counts["without one"] += bool(masked)
        x, weights, ids = self.given[case]
        have, known = found.cpu(), self.known.get((self.parts, case))
        if not masked and known is not None:
            if not torch.equal(have, known):
                self.say(f"bits of case {case} differ from those of earlier generations")
            return
        for rank in masked:
            first, count = share(SMALL.experts, rank, self.place.ranks)
            ids = ids.where((ids < first) | (ids >= first + count), -1)
        error = relative_error(found, self.whole(x, weights, ids))
        if not error < TOLERANCE:
            self.say(f"error of case {case} without ranks {[*masked]}: {error:.2e}")
        if not masked:
            self.known[self.parts, case] = have

    def say(self, what: str) -> None:
        """Count and print something wrong."""
        self.store.add(WRONG, 1)
        print(f"rank {self.place.rank}, generation {self.generation}: WRONG: {what}", flush=True)


def work(rank: int, generation: int, asked: argparse.Namespace, port: int) -> None:
    """Do the work of one process."""
    faulthandler.dump_traceback_later(asked.limit, exit=True)
    place = Place(rank, asked.ranks, asked.device)
    if place.is_gpu:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=START_S))
    victims = Victims(place, store)
    why = "killed"
    with carried() if place.is_gpu else nullcontext(), torch.no_grad():
        while why == "killed":
            why = victims.live(generation)
            generation += 1
            if place.is_gpu:
                break
    grown = victims.memory[-1] - victims.memory[0]
    if grown > GROWTH:
        victims.say(f"memory grew by {grown / 2**20:.0f} MiB in {len(victims.memory)} generations")
    store.set(f"over {generation - 1} {rank}", "")
    os._exit(0)  # an NCCL group that lost a rank would wait for it


class Killer:
    """
    The process that starts ranks and kills them.

    Args:
        asked: The command's arguments.
    """

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked, self.generation = asked, 0
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.processes: dict[int, Any] = {}

    def begin(self, ranks: Iterable[int]) -> None:
        """Start the processes of ranks."""
        for rank in ranks:
            given = rank, self.generation, self.asked, self.store.port
            process = mp.get_context("spawn").Process(target=work, args=given)
            process.start()
            self.processes[rank] = process

    def wait_for(self, what: str) -> None:
        """Wait until all ranks have said that they came to something."""
        keys = [f"{what} {self.generation} {rank}" for rank in self.processes]
        until = time.monotonic() + START_S
        while not self.store.check(keys):
            failed = [rank for rank, process in self.processes.items() if process.exitcode]
            if failed or time.monotonic() > until:
                late = [key for key in keys if not self.store.check([key])]
                raise AssertionError(f"never came: {late}; ended: ranks {failed}")
            time.sleep(0.05)

    def join(self) -> None:
        """Wait for the ends of all processes."""
        self.wait_for("over")
        for process in self.processes.values():
            process.join()

    def kill(self, victim: int) -> None:
        """Kill a process; start a new one, or on GPUs all of them."""
        self.store.set(f"kill {self.generation}", str(victim))
        os.kill(self.processes[victim].pid, signal.SIGKILL)
        self.processes.pop(victim).join()
        log(0, f"kills: rank {victim} was killed in generation {self.generation}")
        is_gpu = self.asked.device == "cuda"
        if is_gpu:
            self.join()
        self.generation += 1
        self.begin(range(self.asked.ranks) if is_gpu else [victim])

    def run(self) -> None:
        """Kill one process after the other until the time is over, at least one."""
        chance, finish = random.Random(3), time.monotonic() + self.asked.seconds
        try:
            self.begin(range(self.asked.ranks))
            self.wait_for("ready")
            while not self.generation or time.monotonic() < finish:
                time.sleep(chance.uniform(0.2, 1) * self.asked.kill_every)
                self.kill(self.generation % self.asked.ranks)
                self.wait_for("ready")
            self.store.set(f"end {self.generation}", "")
            self.join()
        finally:
            for process in self.processes.values():
                process.kill()


def run(asked: argparse.Namespace) -> list[str]:
    """Start processes, and kill one after the other; return what is wrong."""
    before, killer = windows_in_memory(), Killer(asked)
    killer.run()
    total = {name: killer.store.add(name, 0) for name in (*COUNTED, WRONG)}
    words = ", ".join(f"{count} {name}" for name, count in total.items())
    print(f"kills: {killer.generation} processes killed; all ranks together: {words}")
    left = windows_in_memory() - before
    if left:
        time.sleep(2)  # those of other processes go
        left &= windows_in_memory()
    wrong = [f"kills: {total[WRONG]} wrong"] * (total[WRONG] > 0)
    return wrong + [f"kills: {len(left)} files of windows are left in /dev/shm"] * bool(left)


def windows_in_memory() -> set[str]:
    """Return the names of the files of windows, which exist only while ranks connect."""
    return {each.name for each in Path("/dev/shm").glob("jitgen-*")}


def configs(ranks: int, arch: str) -> Iterator[Config]:
    """Yield the configs of kernels that ranks need."""
    weights = without_memory(SMALL.experts, SMALL.intermediate, SMALL.hidden)
    yield from jitgen.MoELayer(SMALL, weights).configs(arch, MOST)
    for rank in range(ranks):
        first, count = share(SMALL.experts, rank, ranks)
        part = replace(SMALL, first_expert=first, local_experts=count)
        blank: Any = Blank(rank, ranks, MOST, late="mask")
        weights = without_memory(count, part.intermediate, part.hidden)
        layer = jitgen.MoELayer(part, weights, max_tokens=MOST, group=blank)
        yield from layer.configs(arch)
