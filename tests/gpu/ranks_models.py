# SPDX-License-Identifier: Apache-2.0
"""
Layers of models that 2 to 8 ranks share, as `jitgen.parallel.connect` connects them by itself:
compared with one device that has all experts; then the exchange alone beside NCCL's collectives,
and the whole layer beside its floor, the time of reading the weights of all experts with a token
once at the rate of a copy.

    python -m tests.gpu.ranks_models prewarm --ranks 8       # anywhere: compiles the kernels
    JITGEN_GPU_CACHE=... python -m tests.gpu.ranks_models run --ranks 8
    python -m tests.gpu.ranks_models run --ranks 8 --device cpu --models tiny --tokens 1,3

Times are medians of replays of CUDA graphs (on a CPU of calls), of the slowest rank, in
microseconds a call. With the parts of `tests.gpu.ranks_soak` this is all that a new host must show.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

import jitgen
from jitgen.bench.layer.ranks import _times as times_of
from jitgen.bench.runner import copy_rate
from jitgen.config import Config
from jitgen.config.combine_ranks import CombineRanksConfig
from jitgen.config.dispatch import DispatchConfig, Tiling
from jitgen.config.format import Format
from jitgen.layer.problems import sent_as
from jitgen.layer.reference import relative_error
from jitgen.ops.combine_ranks.call import combine_ranks
from jitgen.ops.dispatch.call import dispatch
from jitgen.parallel import connect, share
from jitgen.parallel.collectives import _gather
from jitgen.parallel.wire import FLAGS_FROM
from jitgen.plans.plan import configs
from tests.gpu.expert_parallel import carried, log, part_of
from tests.gpu.ranks_modes import Blank
from tests.moe_cases import _quantised

TOKENS = (1, 8, 16, 32, 64, 128, 512, 4096)
"""Numbers of tokens of each rank."""

CHECKED = 128
"""Most tokens of a rank that are compared with one device."""

REPLAYS = 15
TOLERANCE = 1e-2
LIMIT_S = 60.0

TILINGS = Tiling(threads=128, ctas=64), Tiling(threads=512), Tiling(ctas=32)
"""Of ranks in turn, which have other numbers of CTAs with them."""


@dataclass(frozen=True)
class Model:
    """
    A layer of a model.

    Attributes:
        config: Its sizes.
        form: Format of its weights, one of `tests.moe_cases.FORMATS`.
    """

    config: jitgen.MoEConfig
    form: str = "block128"

    def weights(self, count: int, device: str) -> jitgen.ExpertWeights:
        """Return random weights of `count` experts, the same on every rank."""
        chance, (n, k) = torch.Generator(device), (self.config.intermediate, self.config.hidden)
        made = []
        for expert in range(count):  # one by one, which takes less memory
            chance.manual_seed(expert)
            w13, w2 = (
                torch.randn(1, *shape, device=device, generator=chance) * shape[1] ** -0.5
                for shape in ((2 * n, k), (k, n))
            )
            made.append(jitgen.ExpertWeights(**_quantised(self.form, w13, w2)))
        parts = [each.tensors for each in made]
        return made[0].replaced({name: torch.cat([p[name] for p in parts]) for name in parts[0]})

    def blank(self, count: int) -> jitgen.ExpertWeights:
        """Return weights of `count` experts that have sizes but no values."""
        one = _one_expert(self)
        return one.of(
            {
                name: torch.empty((count, *each.shape[1:]), dtype=each.dtype, device="meta")
                for name, each in one.tensors.items()
            }
        )


@cache
def _one_expert(model: Model) -> jitgen.ExpertWeights:
    return model.weights(1, "cpu")


FLASH = jitgen.MoEConfig(hidden=4096, intermediate=2048, experts=256, top_k=6)
TINY = jitgen.MoEConfig(hidden=256, intermediate=128, experts=16, top_k=3)
MODELS = {
    "v3": Model(jitgen.MoEConfig(hidden=7168, intermediate=2048, experts=256, top_k=8)),
    "flash": Model(FLASH),
    "flash-mxfp4": Model(FLASH, "exact1_block128"),
    "tiny": Model(TINY),
    "tiny-mxfp4": Model(TINY, "exact1_block128"),
}
"""DeepSeek-V3's and DeepSeek-V4-Flash's layers, and small ones for a CPU."""

PARTS = ("right", "invariant", "unlike", "wire", "layer")


@dataclass(frozen=True)
class Place:
    """
    One rank.

    Attributes:
        rank, ranks: Its number, and how many there are.
        device: ``cuda`` or ``cpu``.
        flags_from: As of `connect`.
    """

    rank: int
    ranks: int
    device: str
    flags_from: int | None

    def connect(self, config: jitgen.MoEConfig, most: int, **options: Any) -> Any:
        """Return windows of all ranks, as `connect` makes them by itself."""
        sizes = {"hidden": config.hidden, "top_k": config.top_k, "max_tokens": most}
        group: Any = dist.group.WORLD
        usual = {"device": self.device, "kind": "windows", "limit_s": LIMIT_S}
        options = {**usual, "flags_from": self.flags_from} | options
        return connect(group, **sizes, **options)  # type: ignore[arg-type]

    def tokens(self, config: jitgen.MoEConfig, count: int, rank: int) -> tuple[Tensor, ...]:
        """Return tokens of a rank with weights and experts, all of which are equally likely."""
        chance = torch.Generator(self.device).manual_seed(1000 * count + rank)
        x = torch.randn(count, config.hidden, device=self.device, generator=chance).bfloat16()
        scores = torch.rand(count, config.experts, device=self.device, generator=chance)
        weights, ids = scores.topk(config.top_k)
        return x, weights, ids.int()

    def time_of(self, call: Callable[[], object]) -> float:
        """Return the microseconds of a call, those of the slowest rank."""
        return 1e6 * statistics.median(times_of(call, REPLAYS, torch.device(self.device)))

    def most(self, value: float) -> float:
        """Return the largest of all ranks' values."""
        found = torch.tensor([value], device=self.device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return found.item()

    def rate(self) -> float:
        """Return the bytes a second of a copy here; on a CPU none is known."""
        return copy_rate() if self.device == "cuda" else float("nan")


def right(place: Place, name: str, numbers: list[int], numerics: str | None = None) -> None:
    """Compare with one device that has all experts; with invariant numerics, bit by bit."""
    config = replace(MODELS[name].config, numerics=numerics)
    weights = MODELS[name].weights(config.experts, place.device)
    numbers = [each for each in numbers if each <= CHECKED] or [CHECKED]
    whole, mine = jitgen.MoELayer(config, weights), part_of(weights, place.rank, place.ranks)
    options = {"numerics": numerics, "flags_from": 0} if numerics else {}
    wire = place.connect(config, max(numbers), **options)
    layer = jitgen.MoELayer(config, mine, max_tokens=max(numbers), group=wire)
    worst = 0.0
    for tokens in numbers:
        for count in (tokens, max(0, tokens - place.rank)):  # the same on the ranks, or not
            given = place.tokens(config, count, place.rank)
            found, wanted = layer(*given, rank_tokens=tokens), whole(*given)
            worst = max(worst, relative_error(found, wanted) if count else 0.0)
            assert numerics is None or torch.equal(found, wanted), (name, tokens, count)
    wire.check()
    worst = place.most(worst)
    kind = "equal bits" if numerics else f"error {worst:.2e}"
    log(place.rank, f"{name} right, {numerics or 'fast'}, {numbers} tokens of each: {kind}")
    assert worst < TOLERANCE, worst


def unlike(place: Place, name: str, numbers: list[int]) -> None:
    """
    Let ranks run kernels with other numbers of CTAs, by flags, in graphs that they replay at
    different times.
    """
    config, tokens, room = MODELS[name].config, place.tokens, max(numbers)
    wire: Any = place.connect(config, room, flags_from=2)
    tiling, ranks = TILINGS[place.rank % len(TILINGS)], range(place.ranks)
    first = DispatchConfig(by_flags=True, tiling=tiling)
    second = CombineRanksConfig(by_flags=True, tiling=tiling)
    x, weights, ids = tokens(config, room, place.rank)
    y = torch.cat([tokens(config, room, 7 * rank + place.rank)[0] for rank in ranks])
    given = [tokens(config, room, rank)[0].float() for rank in ranks]
    sums = [tokens(config, room, 7 * place.rank + rank)[0].float() for rank in ranks]
    results: list[Tensor] = []

    def call() -> None:
        every = dispatch(x, ids, weights, wire._many[0], room=room, config=first)
        results[:] = [every.x, combine_ranks(y, wire._many[1], tokens=room, config=second)]

    call()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        call()
    for number in range(6):
        for each, factor in ((x, 2.0), (y, 0.5)):
            each.mul_(factor)
        if number % place.ranks == place.rank:
            torch.cuda._sleep(3_000_000)
        graph.replay()
        scale = 2.0 ** (number + 1)
        assert torch.equal(results[0].float(), torch.cat(given) * scale), number
        assert torch.equal(results[1].float(), (sum(sums) / scale).bfloat16().float()), number
    wire.check()
    log(place.rank, f"{name} unlike: kernels of {TILINGS} in turn, 6 replays: right")


def wire_of(place: Place, name: str, numbers: list[int]) -> None:
    """Time the exchange alone, beside collectives of torch."""
    model, most = MODELS[name], max(numbers)
    config = model.config
    wire = place.connect(config, most)
    form = sent_as(config, model.blank(1)) if wire.quantises else Format.NONE
    for count in numbers:
        x, weights, ids = place.tokens(config, count, place.rank)
        y = torch.randn(place.ranks * count, config.hidden, device=place.device).bfloat16()

        def both() -> None:
            wire.dispatch(x, ids, weights, count, form)  # noqa: B023
            wire.combine(y, count)  # noqa: B023

        gathered = [
            each.new_empty(place.ranks * count, each.shape[1]) for each in (x, ids, weights)
        ]
        out = torch.empty_like(x)

        def collectives() -> None:
            for whole, part in zip(gathered, (x, ids, weights), strict=True):  # noqa: B023
                _gather(whole, part)
            if place.device == "cuda":
                dist.reduce_scatter_tensor(out, y)  # noqa: B023

        found = {"wire": place.time_of(both), "collectives": place.time_of(collectives)}
        wire.check()
        log(place.rank, f"{name} wire {count}:", _words(found))


def layer_of(place: Place, name: str, numbers: list[int]) -> None:
    """Time the whole layer, beside its floor."""
    model, most = MODELS[name], max(numbers)
    config = model.config
    first, count = share(config.experts, place.rank, place.ranks)
    mine = model.weights(count, place.device)
    layer = jitgen.MoELayer(config, mine, max_tokens=most, group=place.connect(config, most))
    nbytes, rate = sum(each.nbytes for each in mine.tensors.values()) / count, place.rate()
    for tokens in numbers:
        every = [place.tokens(config, tokens, rank) for rank in range(place.ranks)]
        x, weights, ids = every[place.rank]
        here = torch.cat([each[2] for each in every]).unique()
        active = place.most(float(((here >= first) & (here < first + count)).sum()))
        found = {
            "layer": place.time_of(lambda: layer(x, weights, ids, rank_tokens=tokens)),  # noqa: B023
            "floor": 1e6 * active * nbytes / rate,
        }
        found["of the floor"] = found["layer"] / found["floor"]
        log(place.rank, f"{name} layer {tokens}: {active:.0f} experts,", _words(found))
    layer.wire.check()  # type: ignore[union-attr]
    log(place.rank, f"{name}: {nbytes / 1e6:.2f} MB an expert, a copy {rate / 1e9:.0f} GB/s")


def _words(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in found.items())


def work(rank: int, asked: argparse.Namespace, meeting: str) -> None:
    """Do the work of one rank."""
    place = Place(rank, asked.ranks, asked.device, asked.flags_from)
    is_gpu = place.device == "cuda"
    if is_gpu:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if is_gpu else "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=asked.ranks,
        timeout=timedelta(seconds=300),
        device_id=torch.device("cuda", rank) if is_gpu else None,
    )
    log(rank, torch.cuda.get_device_name() if is_gpu else "CPU", "x", asked.ranks)
    with carried() if is_gpu else nullcontext(), torch.no_grad():
        for name in asked.models:
            for part, run in (
                ("right", right),
                ("invariant", lambda *given: right(*given, numerics="invariant")),
                ("unlike", unlike),
                ("wire", wire_of),
                ("layer", layer_of),
            ):
                if part in asked.parts:
                    run(place, name, asked.tokens)
                    gc.collect()
                    torch.cuda.empty_cache()
    dist.barrier()
    gc.collect()  # what keeps the group, whose threads must end here
    dist.destroy_process_group()


def needed(asked: argparse.Namespace, arch: str) -> Iterator[Config]:
    """Yield the configs of kernels that the parts need on an H200, with some more."""
    most = max(asked.tokens)
    for name in asked.models:
        model = MODELS[name]
        for numerics, checks in (("invariant", "invariant"), (None, "right")):
            config = replace(model.config, numerics=numerics)
            tokens = min(most, CHECKED) if numerics else most
            first, count = share(config.experts, 0, asked.ranks)
            part = replace(config, first_expert=first, local_experts=count)
            flags = asked.flags_from
            if flags is None and arch != "cpu" and most >= FLAGS_FROM:
                flags = FLAGS_FROM
            way = {"quantise": True, "flags_from": None if numerics else flags or None}
            blank: Any = Blank(0, asked.ranks, tokens, **way)
            layer = jitgen.MoELayer(part, model.blank(count), max_tokens=tokens, group=blank)
            plans = [layer.plan(arch=arch)]
            if checks in asked.parts:
                whole = jitgen.MoELayer(config, model.blank(config.experts))
                plans.append(whole.plan(min(most, CHECKED), arch))
            has_layers = {checks, *(() if numerics else ("layer",))} & {*asked.parts}
            is_timed = not numerics and "wire" in asked.parts
            for plan in plans:
                for each in configs(plan, arch, devices=("NVIDIA H200",)):
                    if has_layers or (is_timed and each.op in {"dispatch", "combine_ranks"}):
                        yield each
        if "unlike" in asked.parts:
            for tiling in TILINGS:
                yield DispatchConfig(by_flags=True, tiling=tiling)
                yield CombineRanksConfig(by_flags=True, tiling=tiling)


def run(asked: argparse.Namespace) -> None:
    """Run the parts in a process for each rank; raise an error if one fails."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (asked, f"{folder}/meeting"), nprocs=asked.ranks)


def main() -> None:
    """Compile kernels, or run parts in a process for each rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["prewarm", "run"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--models", default="v3,flash,flash-mxfp4")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--flags-from", type=int, help="as of `connect`")
    parser.add_argument("--parts", default="right,invariant,wire,layer", help=", ".join(PARTS))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    asked = parser.parse_args()
    asked.models, asked.parts = asked.models.split(","), asked.parts.split(",")
    asked.tokens = [int(each) for each in asked.tokens.split(",")]
    for option, every in (("models", MODELS), ("parts", PARTS)):
        if unknown := {*getattr(asked, option)} - {*every}:
            parser.error(f"--{option} must be among {', '.join(every)} (got {', '.join(unknown)})")
    if asked.action == "prewarm":
        arch = "sm_90a" if asked.device == "cuda" else "cpu"
        report = jitgen.prewarm([*dict.fromkeys(needed(asked, arch))], arch=arch)
        print(*(f"{row.state} {row.name} {row.error}" for row in report.rows), sep="\n")
        return
    run(asked)


if __name__ == "__main__":
    main()
