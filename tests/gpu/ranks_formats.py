# SPDX-License-Identifier: Apache-2.0
"""
Layers of ranks in every format of weights, compared with one device that has all experts. A part of
`python -m tests.gpu.ranks_soak`.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import jitgen
from jitgen.config import Config
from jitgen.config.format import Format
from jitgen.errors import InputError, JitgenError, UnsupportedConfig
from jitgen.layer import reference
from jitgen.layer.problems import sent_as
from jitgen.parallel import Wire, connect, share
from tests.gpu.expert_parallel import SMALL, log, part_of
from tests.gpu.ranks_modes import USUAL, Blank
from tests.moe_cases import FORMATS, _quantised

MOST = 9
"""Most tokens of a rank."""

TOP_KS = (1, 4, 8, 16)
WAYS: dict[str, dict[str, Any]] = {
    "fast": {"numerics": None},
    "invariant": {"numerics": "invariant"},
    "quantised": {"numerics": "invariant", "quantise": True},
}
"""Ways to connect ranks; with the last one, tokens of FP8 are quantised before they are sent."""

ROUNDS = 4

MORE = 1.05
"""Limit of the error of ranks, in parts of the error of one device."""

LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Place:
    """
    One rank, with what it needs to connect and to draw tokens.

    Attributes:
        rank: Its number.
        ranks: Number of ranks.
        device: Its device, "cuda" or "cpu".
    """

    rank: int
    ranks: int
    device: str

    @property
    def is_gpu(self) -> bool:
        return self.device == "cuda"

    def connect(self, top_k: int, limit_s: float = LIMIT_S, **mode: Any) -> Wire:
        """Return windows of all ranks for the small layer."""
        sizes: dict[str, Any] = {"hidden": SMALL.hidden, "top_k": top_k, "max_tokens": MOST}
        group: Any = dist.group.WORLD
        mode = USUAL | mode
        if not self.is_gpu:
            mode.pop("flags_from")
        return connect(group, device=self.device, kind="windows", limit_s=limit_s, **sizes, **mode)

    def tokens(self, config: jitgen.MoEConfig, count: int, seed: int) -> tuple[Tensor, ...]:
        """Return tokens, weights and experts, and rows of a shared expert."""
        chance = torch.Generator().manual_seed(1000 * seed + self.rank)
        x, shared = torch.randn(2, count, config.hidden, generator=chance).bfloat16()
        scores = torch.rand(count, config.experts, generator=chance)
        weights, ids = scores.topk(config.top_k)
        return tuple(each.to(self.device) for each in (x, weights, ids.int(), shared))

    def total(self, values: Tensor) -> list[float]:
        """Return the sums of `values` over all ranks."""
        every = values.double().to(self.device)
        dist.all_reduce(every)
        found: list[float] = every.tolist()
        return found

    def synchronize(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize()


class Replay:
    """
    A call with tensors of its own, in a CUDA graph where there is a GPU.

    Args:
        call: Takes x, topk_weights, topk_ids, and ``out=``.
        given: The first tensors of these.
        place: The rank.
    """

    def __init__(
        self, call: Callable[..., object], given: tuple[Tensor, ...], place: Place
    ) -> None:
        self._given = [each.clone() for each in given]
        self.out = torch.empty_like(given[0])
        self._call = partial(call, *self._given, out=self.out)
        self.graph: Any = None
        if not place.is_gpu:
            return
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self._call()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            self._call()
        torch.cuda.synchronize()

    def __call__(self, *given: Tensor) -> Tensor:
        """
        Copy `given` into the tensors of the call, make it or replay it, and return the result,
        which the next replay changes.
        """
        for mine, new in zip(self._given, given, strict=True):
            mine.copy_(new)
        if self.graph is None:
            self._call()
        else:
            self.graph.replay()
        return self.out


def weights_in(form: str) -> jitgen.ExpertWeights:
    """Return the small layer's weights in one of `FORMATS`, on the CPU, the same on every rank."""
    chance = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=chance)

    rows = 2 * SMALL.intermediate
    w13 = normal(SMALL.experts, rows, SMALL.hidden) * SMALL.hidden**-0.5
    w2 = normal(SMALL.experts, SMALL.hidden, SMALL.intermediate) * SMALL.intermediate**-0.5
    biases: dict[str, Tensor] = {}
    if form.endswith("_bias"):
        of_w2 = normal(SMALL.experts, SMALL.hidden)
        biases = {"w13_bias": normal(SMALL.experts, rows), "w2_bias": of_w2}
    return jitgen.ExpertWeights(**_quantised(form, w13, w2), **biases)


def count_of(number: int, rank: int, ranks: int) -> int:
    """Return the tokens of a rank in a round: one rank after the other has none."""
    return 0 if number % ranks == rank else 1 + (number * 5 + rank * 3) % MOST


def formats(place: Place, forms: list[str]) -> list[str]:
    """Compare layers in all formats; return what is wrong, the same on every rank."""
    wires = {
        (top_k, name): place.connect(top_k, **way) for top_k in TOP_KS for name, way in WAYS.items()
    }
    wrong: list[str] = []
    for form in forms or FORMATS:
        weights = weights_in(form)
        weights = weights.of({n: each.to(place.device) for n, each in weights.tensors.items()})
        for top_k in TOP_KS:
            trial = Trial(place, weights, replace(SMALL, top_k=top_k))
            words = []
            for name, way in ways_of(weights):
                said, is_right = trial.compared(way["numerics"], wires[top_k, name])
                words.append(f"{name} {said}")
                if not is_right:
                    wrong.append(f"{form} top_k {top_k} {name}: {said}")
                    place.synchronize()
                    dist.barrier()
                    wires[top_k, name] = place.connect(top_k, **way)
            log(place.rank, f"formats {form} top_k {top_k}: {'; '.join(words)}")
    return wrong


def ways_of(weights: jitgen.ExpertWeights) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the ways by which layers with these weights are compared."""
    is_sent = sent_as(SMALL, weights) is not Format.NONE
    yield from (each for each in WAYS.items() if is_sent or "quantise" not in each[1])


class Trial:
    """
    What ranks must compute in one format.

    Args:
        place: The rank.
        weights: Weights of all experts.
        config: The layer.
    """

    def __init__(
        self, place: Place, weights: jitgen.ExpertWeights, config: jitgen.MoEConfig
    ) -> None:
        self.place, self.weights, self.config = place, weights, config
        self.mine = part_of(weights, place.rank, place.ranks)
        self.given = [
            place.tokens(config, count_of(number, place.rank, place.ranks), number)
            for number in range(ROUNDS)
        ]
        self.right, self.rounding = [], 0.0
        for number, (x, topk_weights, ids, shared) in enumerate(self.given):
            total = shared.float() if number % 2 else torch.zeros_like(x, dtype=torch.float32)
            for rank in range(place.ranks):
                first, count = share(config.experts, rank, place.ranks)
                here = ids.where((ids >= first) & (ids < first + count), -1)
                part = reference.moe(x, weights, topk_weights, here, config)
                self.rounding += float((part.bfloat16() - part).square().sum())
                total = total + part
            self.right.append(total)

    def compared(self, numerics: str | None, wire: Wire) -> tuple[str, bool]:
        """
        Return what came out, in words, and whether it is right; the same on every rank. Nothing in
        a trial is a collective, so that an error on one rank ends it on the others, too.
        """
        trouble = ""
        sums = torch.zeros(5, dtype=torch.float64)
        try:
            sums = self._sums(numerics, wire)
        except (InputError, UnsupportedConfig) as error:
            trouble = f"refused: {error}"
            sums[4] = 1
        except JitgenError as error:
            print(f"rank {self.place.rank}:", traceback.format_exc(), flush=True)
            trouble = f"failed: {type(error).__name__}: {error}"
            sums[4] = 1000
        found = self.place.total(sums)
        (rounding,) = self.place.total(torch.tensor([self.rounding]))
        if found[4]:
            is_refused = found[4] == self.place.ranks  # by all of them, before they send anything
            return trouble or "failed on another rank", is_refused
        norm = math.sqrt(found[2])
        ours, one = math.sqrt(found[0]) / norm, math.sqrt(found[1]) / norm
        (rounding,) = self.place.total(torch.tensor([self.rounding]))
        words = f"error {ours:.3e}, one GPU {one:.3e}"
        if found[3]:
            return f"{words}, {found[3]:.0f} results of other bits", False
        if numerics:
            return f"{words}, equal bits", ours <= MORE * one
        if ours <= MORE * one:
            return words, True
        most = math.hypot(one, math.sqrt(rounding) / norm)  # ranks round their sums once more
        why = f"{ours / one:.3f} of it, where one more rounding of sums makes {most / one:.3f}"
        return f"{words}, {why}", ours <= MORE * most

    def _sums(self, numerics: str | None, wire: Wire) -> Tensor:
        """
        Return the squares of this rank's error, of one device's and of what is right, and how many
        results have other bits: than one device's, and in a graph than without.
        """
        config = replace(self.config, numerics=numerics)
        whole = jitgen.MoELayer(config, self.weights)
        layer = jitgen.MoELayer(config, self.mine, max_tokens=MOST, group=wire)
        sums = torch.zeros(5, dtype=torch.float64)
        for number, (*given, shared) in enumerate(self.given):
            extra = {"shared": shared} if number % 2 else {}
            rank_tokens = max(
                count_of(number, rank, self.place.ranks) for rank in range(self.place.ranks)
            )
            found = layer(*given, rank_tokens=rank_tokens, **extra)
            one = whole(*given, **extra)
            right = self.right[number]
            for place, off in enumerate((found - right, one - right, right)):
                sums[place] += float(off.double().square().sum())
            sums[3] += numerics is not None and not torch.equal(found, one)
        most, other = (
            self.place.tokens(config, MOST - self.place.rank % 2, seed)[:3] for seed in (8, 9)
        )
        replay = Replay(layer, tuple(most), self.place)
        for given in (other, most):
            sums[3] += not torch.equal(replay(*given), layer(*given))
        wire.check()
        return sums


def configs(ranks: int, arch: str, forms: list[str]) -> Iterator[Config]:
    """Yield the configs of kernels that `formats` needs."""
    for form in forms or FORMATS:
        weights = weights_in(form)
        for top_k in TOP_KS:
            for _, way in ways_of(weights):
                config = replace(SMALL, top_k=top_k, numerics=way["numerics"])
                yield from jitgen.MoELayer(config, weights).configs(arch, MOST)
                for rank in range(ranks):
                    first, count = share(config.experts, rank, ranks)
                    part = replace(config, first_expert=first, local_experts=count)
                    blank: Any = Blank(rank, ranks, MOST, **way)
                    mine = part_of(weights, rank, ranks)
                    layer = jitgen.MoELayer(part, mine, max_tokens=MOST, group=blank)
                    yield from layer.configs(arch)
