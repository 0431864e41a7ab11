# SPDX-License-Identifier: Apache-2.0
"""
Calls of one group of few rows on a GPU: checked, and timed beside kernels for any groups.

Prewarm on any machine, then run:

    python -m tests.gpu.one_group prewarm
    JITGEN_ON_MISS=error python -m tests.gpu.one_group run --out FOLDER

Calls of both matrices take what the selector chooses. A kernel that waits for ever ends with the
process: call it by ``timeout``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import jitgen
from jitgen.autotune.measure.clock import Batch, compete_in_batches
from jitgen.bench.runner import copy_rate
from jitgen.config import DType, Layout
from jitgen.config.grouped_gemm import (
    GroupedGemmConfig,
    GroupedGemmProblem,
    Operands,
    Schedule,
    Tile,
)
from tests.candidates import candidates
from tests.gpu.configs import ACCUMULATOR_BITS, ARCH
from tests.problems import make_for, verify, verify_exact

ONE_GROUP = GroupedGemmConfig(
    layout=Layout.RAGGED,
    tile=Tile(m=8, n=32, k=256),
    schedule=Schedule(stream_b=True, one_group=True),
)
USUAL = [each for each in candidates(ARCH, Layout.RAGGED, Operands()) if each.tile.m == 64]
MATRICES = ((4096, 7168), (7168, 2048))
OTHERS = ((256, 7168), (512, 512), (2112, 7168), (8448, 2048), (7168, 18_432), (18_432, 7168))
"""Matrices that the cost model was not fitted to; the last one has CTAs for several waves."""

COPIES = 8
"""Matrices in a graph, so that no weights are in L2 from the call before."""

Way = Callable[[int], object]


class Call(NamedTuple):
    """Rows, and a result for each copy of the matrix."""

    a: Tensor
    a_scale: Tensor
    offs: Tensor
    out: list[Tensor]


def problems() -> Iterator[GroupedGemmProblem]:
    """Yield what is timed."""
    for n, k in (*MATRICES, *OTHERS):
        for rows in (1, 2, 4, 8, 9, 16) if (n, k) in MATRICES else (8,):
            yield GroupedGemmProblem(layout=Layout.RAGGED, groups=1, m=rows, n=n, k=k)


def prewarm() -> None:
    """Compile all kernels that may be chosen or timed."""
    chosen = [jitgen.select(each, ARCH, device="NVIDIA H200").config for each in problems()]
    for config in dict.fromkeys((ONE_GROUP, *USUAL, *chosen)):
        jitgen.get_kernel(config, ARCH)
        print("compiled", config.name(ARCH), flush=True)


def check() -> None:
    """Compare results with float32 sums: exact values bit by bit, random ones within bounds."""
    count = 0
    for rows, n, k in (
        *((rows, 200, 2688) for rows in (0, 1, 3, 8, 9, 24)),
        *((rows, 4096, 7168) for rows in (1, 8)),
        (8, 7168, 2048),
        (9, 40, 32_640),
        (100, 72, 128),
    ):
        for is_exact in (True, False):
            case = make_for(ONE_GROUP, [rows], n, k, device="cuda", is_exact=is_exact)
            results = [jitgen.grouped_gemm(**case.arguments, config=ONE_GROUP) for _ in range(3)]
            torch.cuda.synchronize()
            if is_exact:
                verify_exact(case, results[0])
            else:
                verify(case, results[0], accumulator_bits=ACCUMULATOR_BITS[DType.E4M3])
            owned = case.is_owned
            assert all(torch.equal(each[owned], results[0][owned]) for each in results)
            count += 1
    print("right:", count, "problems, three calls each with the same bits", flush=True)


def weights(n: int, k: int) -> tuple[Tensor, Tensor]:
    """Return random weights of one group, and their scales."""
    bits = torch.randint(0, 256, (1, n, k), dtype=torch.uint8, device="cuda")
    bits[(bits & 127) == 127] = 3  # no NaN
    scale = torch.rand(1, -(-n // 128), k // 128, device="cuda") + 0.5
    return bits.view(torch.float8_e4m3fn), scale * (k**-0.5 / 117)


def made(rows: int, n: int, k: int) -> Call:
    """Return a call of `rows` rows."""
    a, a_scale = jitgen.quantize.per_token_group(torch.randn(rows, k, device="cuda"))
    offs = torch.tensor([rows], dtype=torch.int32, device="cuda")
    out = [torch.empty(rows, n, dtype=torch.bfloat16, device="cuda") for _ in range(COPIES)]
    return Call(a, a_scale, offs, out)


def ways(call: Call, sets: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[str, Way]]:
    """Yield what computes the call with one of the matrices: as chosen, and by each kernel."""
    configs: dict[str, GroupedGemmConfig | None] = {"chosen": None, ONE_GROUP.short: ONE_GROUP}
    for name, config in (configs | {each.short: each for each in USUAL}).items():

        def run(i: int, config: GroupedGemmConfig | None = config) -> object:
            (a, a_scale, offs, out), (b, b_scale) = call, sets[i]
            return jitgen.grouped_gemm(a, b, a_scale, b_scale, offs=offs, out=out[i], config=config)

        yield name, run


def behind(way: Way, tiny: Tensor) -> Way:
    """Return what computes the same after a tiny kernel."""

    def run(i: int) -> object:
        tiny.add_(1.0)
        return way(i)

    return run


def measure(
    problem: GroupedGemmProblem, sets: list[tuple[Tensor, Tensor]], *, is_chain: bool
) -> dict[str, Any]:
    """Return the microseconds of a call by each way, in graphs of `COPIES` calls, in turn."""
    call = made(problem.m, problem.n, problem.k)
    every = dict(ways(call, sets))
    tiny = torch.zeros(32, device="cuda")
    if is_chain:
        every = {name: behind(way, tiny) for name, way in every.items()}
    found = jitgen.select(problem, ARCH)
    batches = [Batch.capture([partial(way, i) for i in range(COPIES)]) for way in every.values()]
    times = compete_in_batches(batches, rounds=15, repetitions=5)
    us = {name: round(x.median * 1e6, 2) for name, x in zip(every, times, strict=True)}
    line = {
        "n": problem.n,
        "k": problem.k,
        "rows": problem.m,
        "after": "a tiny kernel" if is_chain else "",
        "choice": found.config.short,
        "predicted": {each.config.short: round(each.cost, 2) for each in found.candidates[:3]},
        "us": us,
        "spread": round(max(x.spread for x in times), 3),
    }
    print(json.dumps(line), flush=True)
    return line


def run(out: Path) -> None:
    """Check, measure and write what was measured."""
    torch.manual_seed(0)
    begin = time.monotonic()
    check()
    lines = []
    for (n, k), same in groupby(problems(), key=attrgetter("n", "k")):
        sets = [weights(n, k) for _ in range(COPIES)]
        for problem in same:
            lines.append(measure(problem, sets, is_chain=False))
            is_one = "one group" in lines[-1]["choice"]
            assert (n, k) not in MATRICES or is_one == (problem.m <= 8), lines[-1]["choice"]
            if (n, k) in MATRICES and problem.m in (1, 8):
                lines.append(measure(problem, sets, is_chain=True))
        del sets
        print(f"{time.monotonic() - begin:.0f} s", flush=True)
    rate = copy_rate()
    print(f"copies read and write {rate * 1e-9:,.0f} GB/s", flush=True)
    document = {"device": torch.cuda.get_device_name(), "copy_rate": rate, "lines": lines}
    (out / "one_group.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["prewarm", "run"])
    parser.add_argument("--out", type=Path, default=Path())
    given = parser.parse_args()
    if given.what == "prewarm":
        prewarm()
    else:
        run(given.out)


if __name__ == "__main__":
    main()
