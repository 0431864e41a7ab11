# SPDX-License-Identifier: Apache-2.0
"""
How fast `silu_mul_quantize` is on a GPU, for several ways to share its work.

    python -m tests.gpu.silu_bench compile   where the compiler is; needs no GPU
    python -m tests.gpu.silu_bench run       on the GPU, with the same checkout and cache

Kernels come from the cache, into which the first command puts them. All variants of a
case take turns with a copy of as many bytes and with what torch.compile makes of the reference, on
operands that are in no cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import jitgen
from jitgen.config import Arch
from jitgen.ops.silu_mul_quantize import reference
from jitgen.ops.silu_mul_quantize.config import SiluMulQuantizeConfig, Tiling
from jitgen.tuning.measure.clock import compete
from tests.silu_cases import Case, Kernel, make

TILINGS = [
    Tiling(rows=4, threads=128, ctas_per_sm=7),
    Tiling(rows=4, threads=128, ctas_per_sm=7, is_persistent=False),
    Tiling(rows=4, threads=256, ctas_per_sm=3, is_persistent=False),
    Tiling(rows=2, threads=128, ctas_per_sm=9),
    Tiling(rows=2, threads=128, ctas_per_sm=9, is_persistent=False),
    Tiling(rows=2, threads=128, ctas_per_sm=8, loads_ahead=True),
    Tiling(rows=4, threads=128, ctas_per_sm=5, loads_ahead=True),
    Tiling(rows=8, threads=128, ctas_per_sm=4),
    Tiling(rows=8, threads=128, ctas_per_sm=4, is_persistent=False),
    Tiling(rows=1, threads=64, ctas_per_sm=16, is_persistent=False),
]
"""Loads that an SM can have under way: 112, 112, 96, 72, 72, 64, 80, 128, 128 and 32 KB."""

OTHER_TILINGS = [
    Tiling(rows=4, threads=128, ctas_per_sm=6),
    Tiling(rows=2, threads=128, ctas_per_sm=8),
    Tiling(rows=1, threads=64, ctas_per_sm=16),
]

ROW_TILINGS = [
    Tiling(rows=2, threads=256, ctas_per_sm=3),
    Tiling(rows=2, threads=256, ctas_per_sm=3, is_persistent=False),
    Tiling(rows=1, threads=256, ctas_per_sm=4),
    Tiling(rows=4, threads=256, ctas_per_sm=2),
]

BLOCKS = Kernel()
OTHERS = [
    Kernel(layout="masked"),
    Kernel(layout="contiguous"),
    Kernel(scale_granularity="tensor"),
    Kernel(scale_granularity="none"),
    Kernel(activation="swiglu_oai", interleaved=True),
]
ROWS = Kernel(scale_granularity="row")

SIZES = [([4096] * 8, 2048), ([512] * 8, 2048), ([128] * 8, 2048), ([8] * 8, 2048), ([1] * 8, 2048)]
"""Rows of each group, and I."""

ODD_SIZES = [([4096] * 8, 2880), ([4096] * 8, 1536)]


def variants() -> Iterator[tuple[Kernel, Tiling]]:
    """Yield what is compiled."""
    for tiling in TILINGS:
        yield BLOCKS, tiling
    for kernel in OTHERS:
        for tiling in OTHER_TILINGS:
            yield kernel, tiling
    for tiling in ROW_TILINGS:
        yield ROWS, tiling


def cases() -> Iterator[tuple[Kernel, list[int], int]]:
    """Yield what is measured."""
    for kernel in (BLOCKS, *OTHERS, ROWS):
        for rows, columns in SIZES if kernel in (BLOCKS, ROWS) else SIZES[::3]:
            yield kernel, rows, columns
    for rows, columns in ODD_SIZES:
        yield BLOCKS, rows, columns


def main(verb: str) -> None:
    """Do what the command line says."""
    if verb == "compile":
        for kernel, tiling in variants():
            made = jitgen.get_kernel(kernel.config(tiling), Arch.SM_90A)
            print(made.name, flush=True)
        return
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    print(torch.cuda.get_device_name(0), f"{sms} SMs, torch {torch.__version__}", flush=True)
    every = list(variants())
    for kernel, rows, columns in cases():
        configs = [kernel.config(tiling) for each, tiling in every if each == kernel]
        measure(kernel, configs, rows, columns, sms)


def measure(
    kernel: Kernel,
    configs: list[SiluMulQuantizeConfig],
    rows: list[int],
    columns: int,
    sms: int,
) -> None:
    """Check every config, time those that are right, and print a table."""
    case = make(kernel, rows, columns, device="cuda")
    count = sum(rows)
    size = columns * (5 if kernel.scale_granularity != "none" else 6) * count
    size += case.scale.nbytes if case.scale is not None else 0
    exact = make(kernel, rows, columns, is_exact=True, device="cuda")
    right = []
    for config in configs:
        function = jitgen.get_kernel(config, Arch.SM_90A).function
        wrong = ""
        for problem in (exact, case):
            problem.reset()
            function(*problem.arguments, sms)
            wrong = wrong or problem.wrong(is_exact=problem is exact)
        if wrong:
            print("WRONG", config.words(), wrong, flush=True)
        else:
            right.append((config, function))
    source, target = (torch.empty(size // 2, dtype=torch.uint8, device="cuda") for _ in range(2))
    inductor = compiled_reference(case)
    calls = [
        lambda: target.copy_(source),
        inductor,
        *((lambda each=function: each(*case.arguments, sms)) for _, function in right),
    ]
    names = ["copy", "inductor", *(config.words() for config, _ in right)]
    times = compete(calls, rounds=5, repetitions=9, on_gpu=True)
    head = f"{kernel.layout} {kernel.scale_granularity} {kernel.activation} interleaved "
    head += f"{kernel.interleaved}: {len(rows)} x {rows[0]} rows, I {columns}, {size / 1e6:.1f} MB"
    print(head, flush=True)
    for name, found in zip(names, times, strict=True):
        rate, ratio = size / found.median / 1e9, times[0].median / found.median
        detail = f"{found.median * 1e6:9.2f} us {rate:7.0f} GB/s {ratio:6.3f} of copy"
        print(f"  {detail}  spread {found.spread:.3f}  {name}", flush=True)


def compiled_reference(case: Case) -> Callable[[], Any]:
    """Return a call of what inductor makes of the same work; it takes every row for owned."""
    torch._dynamo.reset()
    kernel, x = case.kernel, case.arguments[0]
    static = case.scale if kernel.scale_granularity == "tensor" else None

    def plain(x: Tensor) -> Any:
        y = reference.activated(
            x, activation=kernel.activation, interleaved=kernel.interleaved, **kernel.limits
        )
        if kernel.scale_granularity == "none":
            return y.bfloat16()
        if static is not None:
            return (y / static).clamp(-448, 448).to(torch.float8_e4m3fn)
        parts = 128 if kernel.scale_granularity == "block128" else y.shape[-1]
        padded = torch.nn.functional.pad(y, (0, -y.shape[-1] % parts))
        blocks = padded.view(*y.shape[:-1], -1, parts)
        scale = (blocks.abs().amax(-1) / 448).clamp_min(2.0**-126)
        q = (blocks / scale.unsqueeze(-1)).clamp(-448, 448).to(torch.float8_e4m3fn)
        return q.view(padded.shape)[..., : y.shape[-1]], scale.transpose(-1, -2).contiguous()

    compiled = torch.compile(plain, dynamic=False)
    compiled(x)
    return lambda: compiled(x)


if __name__ == "__main__":
    main(*sys.argv[1:])
