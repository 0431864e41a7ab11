# SPDX-License-Identifier: Apache-2.0
"""
Kernels that multiply the last rows of a group with swapped operands, beside those that do not:
checked bit by bit, then timed in turn.

    python -m tests.gpu.tails prewarm                               # anywhere: compiles the kernels
    JITGEN_ON_MISS=error python -m tests.gpu.tails run --out times.json

Times are medians in microseconds, of a call out of four in a CUDA graph, over two sets of weights,
while the GPU is cool: there is a pause ahead of each replay. Above 1 a ratio is in favour of the
best kernel with swapped tails, against the best of all others.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

import jitgen
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, Operands
from jitgen.errors import UnsupportedConfig
from jitgen.targets.legality import require
from tests.candidates import candidates

GROUPS = 32
SHAPES = ((4096, 7168), (7168, 2048))
EVEN = (96, 128, 136, 144, 152, 160, 168, 192, 193, 200, 208, 232, 256)
UNEVEN = (96, 128, 136, 152, 200, 256)
SPREAD = 0.3
CALLS, ROUNDS, PAUSE_S = 4, 5, 0.006

CHECKED = [192, 0, 193, 1, 200, 0, 208, 209, 400, 33, 96, *range(3, 45, 2)]
"""Rows of groups whose results are compared."""


def kernels(layout: Layout) -> tuple[list[GroupedGemmConfig], list[GroupedGemmConfig]]:
    """
    Return the candidates without swapped tails whose tiles are taller than 64 rows and have all of
    K, and every legal candidate with swapped tails, once more with extra rows.
    """
    menu = candidates(Arch.SM_90A, layout, Operands())
    plain = [each for each in menu if not each.schedule.swap_tail]
    swapped = []
    for config, extra in itertools.product(plain, (False, True)):
        schedule = replace(config.schedule, swap_tail=True, extra_rows=extra)
        each = replace(config, schedule=schedule)
        try:
            require(each, Arch.SM_90A)
        except UnsupportedConfig:
            continue
        swapped.append(each)
    tall = [each for each in plain if each.tile.m > 64 and each.schedule.split_k == 1]
    return tall, swapped


def weights(n: int, k: int) -> tuple[Tensor, Tensor]:
    """Return weights and their scales on the GPU: (GROUPS, n, k) e4m3 without a NaN."""
    bits = torch.randint(0, 240, (GROUPS, n, k), dtype=torch.uint8, device="cuda")
    bits = torch.where(bits < 120, bits, bits + 8)  # of both signs
    scale = torch.rand(GROUPS, -(-n // 128), -(-k // 128), device="cuda") * 1e-3
    return bits.view(torch.float8_e4m3fn), scale


def rows_of(mean: int, spread: float, seed: int = 0) -> list[int]:
    """Return the rows of each group."""
    chance = random.Random(f"{mean} {seed}")
    return [max(0, round(mean * (1 + chance.uniform(-spread, spread)))) for _ in range(GROUPS)]


def operands(layout: Layout, rows: list[int], k: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return a, its scales, and whose rows are whose."""
    counts = torch.tensor(rows, dtype=torch.int32, device="cuda")
    if layout is Layout.MASKED:
        a, scale = jitgen.quantize.per_token_group(
            torch.randn(len(rows) * max(rows), k, device="cuda")
        )
        shape = (len(rows), max(rows))
        scale = scale.reshape(*shape, -1).transpose(1, 2).contiguous().transpose(1, 2)
        return a.reshape(*shape, k), scale, {"masked_m": counts}
    a, scale = jitgen.quantize.per_token_group(torch.randn(sum(rows), k, device="cuda"))
    return a, scale, {"offs": counts.cumsum(0).to(torch.int32)}


def check(layout: Layout, n: int, k: int, b: tuple[Tensor, Tensor]) -> bool:
    """Say whether kernels with swapped tails give the bits of those without, and print it."""
    rows = CHECKED
    a, a_scale, whose = operands(layout, rows, k)
    right = True
    for config in kernels(layout)[1]:
        schedule = replace(config.schedule, swap_tail=False, extra_rows=False)
        plain = replace(config, schedule=schedule)
        found = []
        for each in (plain, config):
            out = torch.full((*a.shape[:-1], n), 7.0, dtype=torch.bfloat16, device="cuda")
            jitgen.grouped_gemm(a, b[0], a_scale, b[1], **whose, out=out, config=each)
            found.append(out)
        is_equal = torch.equal(*found)
        right = right and is_equal
        print(f"{layout} N{n} K{k} {config.short}: {'equal' if is_equal else 'DIFFERENT'}")
    return right


def timed(
    n: int, k: int, rows: list[int], sets: list[tuple[Tensor, Tensor]]
) -> dict[GroupedGemmConfig, float]:
    """Return the time of each kernel in microseconds, taken in turn."""
    a, a_scale, whose = operands(Layout.RAGGED, rows, k)
    out = torch.empty(a.shape[0], n, dtype=torch.bfloat16, device="cuda")
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graphs = {}
    for config in [each for some in kernels(Layout.RAGGED) for each in some]:

        def call(b: tuple[Tensor, Tensor], config: GroupedGemmConfig = config) -> None:
            jitgen.grouped_gemm(a, b[0], a_scale, b[1], **whose, out=out, config=config)

        call(sets[0])
        torch.cuda.synchronize()
        graphs[config] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[config]):
            for i in range(CALLS):
                call(sets[i % len(sets)])
    found: dict[GroupedGemmConfig, list[float]] = {config: [] for config in graphs}
    for _ in range(ROUNDS):
        for config, graph in graphs.items():
            time.sleep(PAUSE_S)
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            found[config].append(start.elapsed_time(end) * 1000 / CALLS)
    return {config: statistics.median(times) for config, times in found.items()}


def run(even: list[int], uneven: list[int], out: Path | None) -> int:
    """Check, then time means of so many rows; return 1 if a result differs."""
    torch.manual_seed(0)
    right, records = True, []
    for n, k in SHAPES:
        sets = [weights(n, k) for _ in range(2)]
        for layout in (Layout.RAGGED, Layout.MASKED):
            right = check(layout, n, k, sets[0]) and right
        cases = [(mean, 0.0) for mean in even] + [(mean, SPREAD) for mean in uneven]
        for mean, spread in cases:
            rows = rows_of(mean, spread)
            times = timed(n, k, rows, sets)
            best = {
                is_new: min(
                    (us, config.short)
                    for config, us in times.items()
                    if config.schedule.swap_tail is is_new
                )
                for is_new in (False, True)
            }
            ratio = best[False][0] / best[True][0]
            print(f"N{n} K{k} {mean} +-{spread:.0%}: {best[False]} {best[True]} ratio {ratio:.3f}")
            each = {config.name("sm_90a"): round(us, 2) for config, us in times.items()}
            records.append({"n": n, "k": k, "rows": rows, "us": each})
            if out:
                out.write_text(json.dumps(records), encoding="utf-8")
    return int(not right)


def main() -> int:
    """Run the command of the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("command", choices=("prewarm", "run"))
    parser.add_argument("--even", type=int, nargs="*", default=EVEN, help="rows of all groups")
    parser.add_argument("--uneven", type=int, nargs="*", default=UNEVEN, help="means of rows")
    parser.add_argument("--out", type=Path, help="file for all times, as JSON")
    given = parser.parse_args()
    if given.command == "run":
        return run(list(given.even), list(given.uneven), given.out)
    for layout in (Layout.RAGGED, Layout.MASKED):
        menu = candidates(Arch.SM_90A, layout, Operands())  # all of it, for `jitgen tune`
        for config in dict.fromkeys([*menu, *kernels(layout)[1]]):
            print(jitgen.get_kernel(config, Arch.SM_90A).name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
