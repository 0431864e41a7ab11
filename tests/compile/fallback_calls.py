# SPDX-License-Identifier: Apache-2.0
"""Calls whose chosen kernels differ, and what serves them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

import jitgen
from jitgen.config import DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem
from jitgen.runtime.session import current

N, K = 24, 40


def ranked(rows: int) -> list[GroupedGemmConfig]:
    """Return the configs that may serve two groups of `rows` rows, best first."""
    problem = GroupedGemmProblem(
        layout=Layout.RAGGED,
        groups=2,
        m=2 * rows,
        n=N,
        k=K,
        a_dtype=DType.F32,
        out_dtype=DType.F32,
        scale_granularity=ScaleGranularity.TENSOR,
    )
    return [candidate.config for candidate in jitgen.select(problem, "cpu").candidates]


FEW, MANY = 4, 60
NEIGHBOUR, WANTED = ranked(FEW)[0], ranked(MANY)[0]


@cache
def tensors(rows: int) -> tuple[torch.Tensor, ...]:
    """
    Return a and b of small integers, the ends of the rows of both groups, and the product, of which
    every bit must come out.
    """
    torch.manual_seed(rows)
    a = torch.randint(-4, 5, (2 * rows, K)).float()
    b = torch.randint(-4, 5, (2, N, K)).float()
    ends = torch.tensor([rows, 2 * rows], dtype=torch.int32)
    return a, b, ends, torch.cat([a[:rows] @ b[0].mT, a[rows:] @ b[1].mT])


def call(rows: int, *, config: GroupedGemmConfig | None = None) -> None:
    """Multiply, and check the result."""
    a, b, ends, product = tensors(rows)
    out = jitgen.grouped_gemm(a, b, offs=ends, out_dtype=torch.float32, config=config)

    assert torch.equal(out, product)


def await_true(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def settle() -> None:
    """Wait until nothing is on its way; what is only to be tried again later is not."""
    await_true(lambda: current.get().loader.background._pending == later())


def later() -> set[str]:
    """Return the keys of the kernels that are only to be tried again after a wait."""
    queue = list(current.get().loader.background._queue)
    return {want.spec.key for when, want in queue if when > time.monotonic() + 1}


def serving() -> set[GroupedGemmConfig]:
    """Return the configs whose launches the session remembers."""
    return {each.config for launches in current.get().memo.values() for each in launches}


def worker(gate: Path) -> int:
    """
    Wait for the first worker that stands before `gate`, and return its process.

    Not every child of the process that starts workers is one: what it imports runs commands.
    """
    await_true(lambda: any(gate.parent.glob("worker-*")))
    return int(next(gate.parent.glob("worker-*")).name.removeprefix("worker-"))


def children(pid: int) -> list[int]:
    """The processes that `pid` started and that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text("ascii").rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state not in "ZX":
            found.append(int(path.parent.name))
    return found
