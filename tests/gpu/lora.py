# SPDX-License-Identifier: Apache-2.0
"""
Times of `add_lora` with each of its candidates, on a GPU: ``python -m tests.gpu.lora``.

Both launches of a layer of DeepSeek-V3's sizes with 8 adapters of rank 16, in CUDA graphs; the
matrices of 32 and of 256 experts do not fit in L2. Beside each time stands the rate at which the
matrices are read that rows do not share.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

import jitgen
from jitgen.config.add_lora import AddLoraProblem
from jitgen.targets.legality import rules

ADAPTERS, RANK, TOP_K = 8, 16, 8
SIZES = (("up", 4096, 7168, False), ("down", 7168, 2048, True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experts", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 64, 512])
    asked = parser.parse_args()
    for experts in asked.experts:
        for name, n, k, by_row in SIZES:
            a = torch.randn(ADAPTERS, experts, RANK, k, dtype=torch.bfloat16, device="cuda")
            b = torch.randn(ADAPTERS, experts, n, RANK, dtype=torch.bfloat16, device="cuda")
            for tokens in asked.tokens:
                measure(f"{name}, {experts} experts, {tokens} tokens", a, b, tokens, by_row)


def measure(case: str, a: torch.Tensor, b: torch.Tensor, tokens: int, by_row: bool) -> None:
    experts, k, n = a.shape[1], a.shape[3], b.shape[2]
    torch.manual_seed(tokens)
    ids = torch.rand(tokens, experts, device="cuda").argsort(-1)[:, :TOP_K].int().contiguous()
    adapter_ids = torch.randint(ADAPTERS, (tokens,), device="cuda").int()
    order = jitgen.sort_pairs(ids, experts=experts)
    rows = tokens * TOP_K
    x = torch.randn(rows if by_row else tokens, k, dtype=torch.bfloat16, device="cuda")
    y = torch.randn(rows, n, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(y)
    problem = AddLoraProblem(
        m=tokens, n=n, k=k, rank=RANK, adapters=ADAPTERS, experts=experts, by_row=by_row
    )
    given = (y, x, a, b, torch.ones(ADAPTERS, device="cuda"), adapter_ids, ids, order.permutation)
    few = (ids.long() * ADAPTERS + adapter_ids[:, None]).unique().numel()
    chosen = jitgen.select(problem, "sm_90a").config
    expected = jitgen.reference.add_lora(*given, by_row=by_row) if tokens <= 8 else None
    for config in rules("sm_90a", "add_lora").candidates(problem):
        call = partial(jitgen.add_lora, *given, by_row=by_row, out=out, config=config)
        call()
        if expected is not None:
            torch.testing.assert_close(out, expected, rtol=2**-6, atol=2**-3)
        us = time(call)
        rate = few * problem.matrix_bytes / us / 1e3
        mark = "  (chosen)" if config == chosen else ""
        print(f"{case}: {config.short}: {us:.1f} us, {rate:.0f} GB/s{mark}", flush=True)


def time(call: Callable[[], object], repetitions: int = 20) -> float:
    """Return the median of replays in microseconds, each behind a read of memory beyond L2."""
    flush = torch.empty(256 * 2**20, dtype=torch.uint8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    found = []
    for _ in range(repetitions):
        flush.sum()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) * 1e3)
    return median(found)


if __name__ == "__main__":
    main()
