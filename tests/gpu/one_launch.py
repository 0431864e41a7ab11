# SPDX-License-Identifier: Apache-2.0
"""
Layers of few tokens on a GPU: kernels of `moe_decode`, checked and timed beside the chain.

Prewarm on any machine, then run:

    python -m tests.gpu.one_launch prewarm
    JITGEN_ON_MISS=error python -m tests.gpu.one_launch run --seconds 150

A kernel that waits for ever ends with the process: call it by ``timeout``.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import Tensor

import jitgen
from jitgen.autotune.measure.clock import Batch, compete_in_batches
from jitgen.bench.runner import copy_rate
from jitgen.config import Arch
from jitgen.config.moe_decode import MoeDecodeConfig, MoeDecodeProblem, Tiling
from jitgen.errors import JitgenError
from jitgen.layer.weights import ExpertWeights
from jitgen.ops.moe_decode import reference, samples
from jitgen.ops.moe_decode.exchange import Exchange

ARCH = "sm_90a"
CONFIGS = [
    MoeDecodeConfig(tiling=Tiling(warpgroups=w, stages=s, room=r))
    for w, s, r in ((4, 2, 14), (4, 2, 4), (4, 3, 4), (3, 2, 4))
]
STAMPED = CONFIGS[0]
COPIES = 4
"""Layers in a graph, so that no weights are in L2 from the call before."""


class Layer(NamedTuple):
    """Sizes of a layer."""

    experts: int
    top_k: int
    hidden: int
    inner: int

    @property
    def config(self) -> jitgen.MoEConfig:
        """The layer, as `jitgen.MoELayer` takes it."""
        return jitgen.MoEConfig(
            hidden=self.hidden, intermediate=self.inner, experts=self.experts, top_k=self.top_k
        )


LAYERS = (
    Layer(256, 8, 2048, 512),
    Layer(128, 8, 2048, 768),
    Layer(64, 6, 2048, 1408),
    Layer(128, 8, 4096, 1536),
    Layer(256, 8, 7168, 2048),
)


def layer_of(sizes: Layer, weights: ExpertWeights) -> jitgen.MoELayer:
    """Return the chain of launches."""
    return jitgen.MoELayer(sizes.config, weights, max_tokens=8)


def empty(sizes: Layer) -> ExpertWeights:
    """Return weights without memory."""
    e, _, h, i = sizes
    fp8 = partial(torch.empty, dtype=torch.float8_e4m3fn, device="meta")
    scale = partial(torch.empty, dtype=torch.float32, device="meta")
    return ExpertWeights(
        w13=fp8(e, 2 * i, h),
        w2=fp8(e, h, i),
        w13_scale=scale(e, 2 * i // 128, h // 128),
        w2_scale=scale(e, h // 128, i // 128),
    )


def random_weights(sizes: Layer, seed: int) -> ExpertWeights:
    """Return weights of random bits, which have a root mean square of about 117."""
    chance = torch.Generator("cuda").manual_seed(seed)
    e, _, h, i = sizes

    def values(*shape: int) -> Tensor:
        bits = torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda", generator=chance)
        for part in bits.view(-1).split(1 << 28):
            part[(part & 127) == 127] = 3  # no NaN
        return bits.view(torch.float8_e4m3fn)

    def scales(n: int, k: int) -> Tensor:
        found = torch.rand(e, n // 128, k // 128, device="cuda", generator=chance)
        return (found + 0.5) * (k**-0.5 / 117)

    return ExpertWeights(
        w13=values(e, 2 * i, h),
        w2=values(e, h, i),
        w13_scale=scales(2 * i, h),
        w2_scale=scales(h, i),
    )


class Call:
    """One call of a layer: tokens and their experts, and what kernels exchange."""

    def __init__(self, sizes: Layer, weights: ExpertWeights, tokens: int, seed: int) -> None:
        chance = torch.Generator("cuda").manual_seed(seed)
        make = partial(torch.rand, device="cuda", generator=chance)
        self.sizes, self.weights, self.tokens = sizes, weights, tokens
        self.x = torch.randn(tokens, sizes.hidden, device="cuda", generator=chance).bfloat16()
        ids = make(tokens, sizes.experts).argsort(-1)[:, : sizes.top_k]
        self.ids = ids.int().contiguous()
        self.factors = make(tokens, sizes.top_k) + 0.1
        self.out = torch.full_like(self.x, float("nan"))
        words, self.state = Exchange.of(tokens, sizes.top_k, sizes.inner, "cuda")
        self.exchange = torch.cat([words, words.new_zeros(64, words.shape[1])])

    @property
    def active(self) -> int:
        """The number of different experts that the tokens chose."""
        return len(set(self.ids.flatten().tolist()))

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments of a kernel."""
        w = self.weights
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        return (
            *(self.x, self.ids, self.factors, w.w13, w.w13_scale, w.w2, w.w2_scale),
            *(self.exchange, self.state, self.out, 0, sms),
        )

    def wanted(self) -> Tensor:
        """Return the reference's result."""
        w = self.weights
        return reference.moe_decode(
            self.x, self.ids, self.factors, w.w13, w.w13_scale, w.w2, w.w2_scale
        ).out


STAMPS = (
    "start", "listed", "ready", "first product", "up asked", "last product", "sent", "first h",
    "down asked", "last h", "down", "end",
)  # fmt: skip
"""Places where threads of a kernel note the time."""


def stamped(text: str) -> str:
    """Return a kernel that notes when its threads get to some places, at the end of `exchange`."""

    def at(name: str, columns: int = 8) -> str:
        once = name.startswith("first")
        return f"{columns * ' '}stamp(exchange, {STAMPS.index(name)}, {once})\n"

    bring = "        queue = bring_h(schedule, lists, exchange, tiles, target, place, queue)\n"
    add_up = "        add_up(schedule, sums_of_out, totals, out)\n"
    load = "load_weights(schedule, lists, ring, up, down"
    changes = (
        ("        ticket = Int64(0)\n", at("start") + "|"),
        ("        start, go_on = tiled_mma(), tiled_mma()\n", at("ready") + "|"),
        ("            load.advance()\n            promote(total,", at("first product", 12) + "|"),
        ("    if share.rest > 0:\n        number", at("last product", 4) + "|"),
        ("    return load\n", at("sent", 4) + "|"),
        (bring, "|" + at("first h") + at("last h")),
        (add_up, at("down") + "|" + at("end")),
        ("        cute.arch.barrier_arrive(barrier_id=READY,", at("listed") + "|"),
        (f"def {load}):", f"def {load}, exchange):"),
        (f"        {load})\n", f"        {load}, exchange)\n{at('down asked')}"),
        ("    pieces = pieces_of(schedule, lists)\n    for piece", at("up asked", 4) + "|"),
    )
    for place, change in changes:
        if text.count(place) != 1:
            raise ValueError(f"{place!r} is there {text.count(place)} times")
        text = text.replace(place, change.replace("|", place))
    return (
        text
        + '''

@cute.jit
def stamp(exchange, number, is_first):
    """Note the time, in the last words of `exchange`."""
    thread, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    group = thread // 128 if thread < MATH_THREADS else (thread - MATH_THREADS) // 32
    if thread % (128 if thread < MATH_THREADS else 32) == 0:
        place = (cta * WARPGROUPS + group) * 16 + number + 1
        words = cute.size(exchange, mode=[0]) * exchange.stride[0]
        address = exchange.iterator.toint() + (words - place) * 8
        time = cute.arch.globaltimer()
        if cutlass.const_expr(is_first):
            cute.arch.inline_ptx(
                "{ .reg .pred p; .reg .b64 t; ld.global.b64 t, [{$r0}]; setp.eq.s64 p, t, 0; "
                "@p st.global.b64 [{$r0}], {$r1}; }",
                read_only_args=[address, time],
            )
        else:
            cute.arch.inline_ptx("st.global.b64 [{$r0}], {$r1};", read_only_args=[address, time])
'''
    )


def stamping(config: MoeDecodeConfig) -> Any:
    """Return the kernel of a config with stamps."""
    path = Path("/tmp/stamped") / f"{config.name(ARCH)}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(stamped(jitgen.get_kernel(config, ARCH).source))
    return jitgen.get_kernel(jitgen.override(path), ARCH)


def phases(kernel: Any, warpgroups: int, before: Call, call: Call, flush: Tensor) -> dict[str, str]:
    """
    Return when warpgroups of all CTAs were at each stamp, in microseconds since the first stamp:
    the first, the median and the last.
    """
    rows = []
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    for _ in range(5):
        call.exchange[-64:].zero_()
        flush.max()
        kernel.function(*before.arguments())
        kernel.function(*call.arguments())
        torch.cuda.synchronize()
        words = call.exchange.flatten().flip(0)[: sms * warpgroups * 16].cpu().double()
        words = words.view(sms * warpgroups, 16)[:, : len(STAMPS)]
        began = words[:, 0][words[:, 0] > 0].min()
        noted = [each[each > 0] - began for each in words.T]
        rows.append(torch.stack([torch.stack([n.min(), n.median(), n.max()]) for n in noted], 1))
    middle = torch.stack(rows).median(0).values / 1e3
    return {n: "/".join(f"{x:.2f}" for x in middle[:, i].tolist()) for i, n in enumerate(STAMPS)}


def check() -> None:
    """Let every kernel solve its sample calls."""
    for config in CONFIGS:
        kernel = jitgen.get_kernel(config, ARCH)
        for sizes in (
            *samples.Sizes.of(config, Arch(ARCH)),
            *samples.Sizes.edges(config, Arch(ARCH)),
        ):
            for is_exact in (True, False):
                case = samples.make(config, sizes, is_exact=is_exact, device="cuda")
                kernel.function(*case.tensors, sizes.num_sms)
                torch.cuda.synchronize()
                wrong = case.wrong()
                if wrong:
                    print("WRONG", config.name(ARCH), sizes, "exact" * is_exact, wrong, flush=True)
        print("checked", config.name(ARCH), flush=True)


def check_layer() -> None:
    """Let a layer take one launch, eagerly and in a graph whose input changes between replays."""
    sizes = LAYERS[0]
    weights = random_weights(sizes, 5)
    layer = jitgen.MoELayer(sizes.config, weights, max_tokens=8, one_launch=True)
    call = Call(sizes, weights, 3, 9)
    layer(call.x, call.factors, call.ids, out=call.out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer(call.x, call.factors, call.ids, out=call.out)
    for _ in range(4):
        call.x.copy_(torch.randn_like(call.x))
        call.ids.copy_(call.ids.flip(0))
        call.out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        wanted = call.wanted()
        error = float((call.out.double() - wanted).norm() / wanted.norm())
        verdict = "" if error < 0.01 else " WRONG"
        print(f"layer in a graph: error {error:.1e}{verdict}", flush=True)


def measure(sizes: Layer, tokens: int, weights: list[ExpertWeights], rate: float) -> dict[str, Any]:
    """Check and time every kernel, and the chain."""
    calls = [Call(sizes, each, tokens, 100 * tokens + i) for i, each in enumerate(weights)]
    row: dict[str, Any] = {"layer": sizes, "tokens": tokens}
    row["floor"] = mean(each.active for each in calls) * 3 * sizes.hidden * sizes.inner / rate * 1e6
    batches: dict[str, Batch] = {}
    wanted = calls[0].wanted()
    for config in CONFIGS:
        if sizes.hidden > 512 * config.tiling.room:
            continue
        kernel, name = jitgen.get_kernel(config, ARCH), config.tiling.short
        run = [partial(kernel.function, *each.arguments()) for each in calls]
        run[0]()
        torch.cuda.synchronize()
        row[f"error {name}"] = float((calls[0].out.double() - wanted).norm() / wanted.norm())
        first = calls[0].out.clone()
        batches[name] = Batch.capture(run)
        calls[0].out.fill_(float("nan"))
        batches[name].replay()
        torch.cuda.synchronize()
        if not torch.equal(first, calls[0].out) or not row[f"error {name}"] < 0.01:
            print("WRONG", sizes, tokens, name, row[f"error {name}"], flush=True)
    chain = [layer_of(sizes, each) for each in weights]
    outs = [torch.empty_like(each.x) for each in calls]
    run = [
        partial(layer, call.x, call.factors, call.ids, out=out)
        for layer, call, out in zip(chain, calls, outs, strict=True)
    ]
    try:
        batches["chain"] = Batch.capture(run)
    except JitgenError as error:
        print("no chain:", str(error)[:300], flush=True)
    times = compete_in_batches(list(batches.values()), rounds=3, repetitions=4)
    row["us"] = {n: round(t.median * 1e6, 2) for n, t in zip(batches, times, strict=True)}
    row["spread"] = {n: round(t.spread, 3) for n, t in zip(batches, times, strict=True)}
    return row


def run(seconds: float, out: str | None) -> None:
    """Check all kernels, then time them until the time is over."""
    begin = time.monotonic()
    check()
    check_layer()
    rate = copy_rate()
    print(f"{torch.cuda.get_device_name()}, copy {rate * 1e-9:.0f} GB/s", flush=True)
    flush = torch.zeros(128 << 20, dtype=torch.int32, device="cuda")
    rows = []
    with_stamps = stamping(STAMPED)
    for sizes in LAYERS:
        weights = [random_weights(sizes, i) for i in range(COPIES)]
        for tokens in (1, 2, 4, 8):
            if time.monotonic() - begin > seconds:
                print("the time is over", flush=True)
                return
            row = measure(sizes, tokens, weights, rate)
            calls = [Call(sizes, weights[i], tokens, i) for i in range(2)]
            row["phases"] = phases(
                with_stamps, STAMPED.tiling.warpgroups, calls[1], calls[0], flush
            )
            rows.append(row)
            best = min(v for n, v in row["us"].items() if n != "chain")
            print(
                f"E{sizes.experts} H{sizes.hidden} I{sizes.inner} {tokens} tokens: floor "
                f"{row['floor']:.1f}, best {best}, chain {row['us'].get('chain')}; {row['us']}, "
                f"error {row[f'error {STAMPED.tiling.short}']:.1e}\n    {row['phases']}",
                flush=True,
            )
            if out:
                Path(out).write_text(json.dumps(rows))
        del weights
        torch.cuda.empty_cache()
    print(f"done in {time.monotonic() - begin:.0f} s", flush=True)


def prewarm() -> None:
    """Compile everything that `run` needs."""
    for config in CONFIGS:
        jitgen.get_kernel(config, ARCH)
    stamping(STAMPED)
    whole = MoeDecodeProblem(m=1, experts=256, top_k=8, hidden=2048, intermediate=512)
    chosen = jitgen.select(whole, ARCH, device="NVIDIA H200").config
    jitgen.get_kernel(chosen, ARCH)
    for sizes in LAYERS:
        layer_of(sizes, empty(sizes)).prewarm(ARCH, devices=["NVIDIA H200"])
        print("prewarmed", sizes, flush=True)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("prewarm", "run"))
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.what == "prewarm":
        prewarm()
    else:
        run(args.seconds, args.out)


if __name__ == "__main__":
    main()
