# SPDX-License-Identifier: Apache-2.0
"""
Many threads, streams and graph replays over one layer, each result compared with the right one.

``python -m tests.crowd --seconds 600`` runs it alone, on a GPU where there is one: that machine's
cache needs the kernels of `tests.gpu.configs`, or a compiler.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

import jitgen
from tests.moe_cases import Case, make

Given = tuple[Tensor, ...]
TOKENS = (1, 7, 19, 32)
"""Numbers of tokens of the cases: some below what the memory is planned for, and some above."""


class Crowd:
    """
    Threads that call one layer at once.

    Args:
        form: The format of its weights.
        device: Device of the layer.
        threads: Number of threads.
        streams: CUDA streams that they choose from at random.
        max_tokens: Number of tokens that the layer's memory is planned for.

    Attributes:
        calls: Eager calls and replays, and of each how many gave a wrong result.
    """

    def __init__(
        self, form: str, device: str, threads: int = 8, streams: int = 4, max_tokens: int = 20
    ) -> None:
        cases = [make(form, tokens=tokens, seed=seed) for seed, tokens in enumerate(TOKENS)]
        first = cases[0]
        weights = first.weights.of({n: x.to(device) for n, x in first.weights.tensors.items()})
        self.device = device
        self.layer = jitgen.MoELayer(first.config, weights, max_tokens=max_tokens)
        self.given = [_on(case, device) for case in cases]
        alone = jitgen.MoELayer(first.config, weights)
        self.right = [alone(*given).clone() for given in self.given]
        is_gpu = device.startswith("cuda")
        self.streams = [torch.cuda.Stream() for _ in range(streams)] if is_gpu else [None]
        self.graphs = [self._captured(given) for given in self.given] if is_gpu else []
        self.replayed = [threading.Lock() for _ in self.graphs]
        self.threads = threads
        self.calls: Counter[str] = Counter()
        self._lock = threading.Lock()
        if is_gpu:
            torch.cuda.synchronize()

    def run(self, seconds: float) -> Counter[str]:
        """Let all threads call for so many seconds; return what came of it."""
        end = time.monotonic() + seconds
        workers = [threading.Thread(target=self._work, args=(i, end)) for i in range(self.threads)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:
            sys.setswitchinterval(interval)
        return self.calls

    def _work(self, number: int, end: float) -> None:
        chance, mine = random.Random(number), Counter[str]()
        while time.monotonic() < end:
            which = chance.randrange(len(self.given))
            stream = chance.choice(self.streams)
            with _on_stream(stream):
                if self.graphs and chance.random() < 0.25:
                    kind, found = "replays", self._replay(which)
                else:
                    kind, found = "calls", self.layer(*self.given[which])
                is_right = torch.equal(found, self.right[which])
            mine[kind] += 1
            mine[f"wrong {kind}"] += not is_right
        with self._lock:
            self.calls += mine

    def _captured(self, given: Given) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = self.layer(*given)
        return graph, out

    def _replay(self, which: int) -> Tensor:
        """
        Replay graph number `which` and copy its result, before another thread replays the same
        graph.
        """
        graph, out = self.graphs[which]
        with self.replayed[which]:
            graph.replay()
            found = out.clone()
            torch.cuda.current_stream().synchronize()
        return found


def _on(case: Case, device: str) -> Given:
    return tuple(each.to(device) for each in case.given)


def _on_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def main(say: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--form", default="block128")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--streams", type=int, default=4)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = Crowd(given.form, device, given.threads, given.streams).run(given.seconds)
    what = f"{given.form} on {device}, {given.threads} threads, {given.streams} streams"
    say(f"{what}, {given.seconds:g} s: {dict(found)}")
    return int(any(count for name, count in found.items() if name.startswith("wrong")))


if __name__ == "__main__":
    sys.exit(main())
