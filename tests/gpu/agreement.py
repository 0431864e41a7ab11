# SPDX-License-Identifier: Apache-2.0
"""
The same problems on a GPU and in the emulator: ``python -m tests.gpu.agreement run FILE`` where a
GPU is, ``python -m tests.gpu.agreement compare FILE`` anywhere.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

import jitgen
from jitgen.config import Layout
from jitgen.config.grouped_gemm import KernelConfig, Operands
from jitgen.settings import settings
from tests.candidates import candidates
from tests.gpu.configs import ARCH, OF_OTHER_TYPES, depth
from tests.problems import Solved, make_for

PER_LAYOUT = 10
SIZES = [(512, 1024), (328, 656), (200, 272), (8, 16), (264, 2048 + 400)]


@dataclass(frozen=True, slots=True)
class Problem:
    """Rows of each group, N and K of one call of one kernel; exact: small integers."""

    config: KernelConfig
    rows: list[int]
    n: int
    k: int
    is_exact: bool

    @property
    def name(self) -> str:
        kind = "exact" if self.is_exact else "random"
        rows = "+".join(map(str, self.rows))
        return f"{self.config.name(ARCH)} rows {rows} n {self.n} k {self.k} {kind}"

    def case(self, device: str) -> Solved:
        return make_for(
            self.config, self.rows, self.n, self.k, device=device, is_exact=self.is_exact
        )


def problems() -> Iterator[Problem]:
    """
    Yield ten problems for each layout, and one for each kernel of other types; each of them with
    exact and with random values.
    """
    chance = random.Random(7)
    configs = []
    for layout in Layout:
        of_menu = candidates(ARCH, layout, Operands())
        configs += [of_menu[index % len(of_menu)] for index in range(PER_LAYOUT)]
    for index, config in enumerate([*configs, *OF_OTHER_TYPES]):
        tile = config.tile.m
        edges = [0, 1, tile - 1, tile, tile + 1, 2 * tile + 3, 7]
        rows = [chance.choice(edges) for _ in range(5)]
        n, k = SIZES[index % PER_LAYOUT % len(SIZES)]
        for is_exact in (True, False):
            yield Problem(config, rows, n, depth(config, k), is_exact)


def digest(case: Solved) -> str:
    """Return what tells whether two machines made the same inputs."""
    found = hashlib.sha256()
    for name, tensor in case.arguments.items():
        if name != "out":
            plain = tensor.cpu().flatten().clone()
            found.update(ctypes.string_at(plain.data_ptr(), plain.nbytes))
    return found.hexdigest()


def step(values: torch.Tensor) -> torch.Tensor:
    """Return the distance from each value to the next one in bfloat16."""
    return torch.exp2(torch.floor(torch.log2(values.clamp(min=1e-30))) - 7)


def run(path: str) -> None:
    """Run every problem on the GPU and keep the outputs."""
    if cache := os.environ.get("JITGEN_GPU_CACHE"):
        settings.cache_dir, settings.on_miss = cache, "error"
    kept: dict[str, Any] = {}
    for problem in problems():
        case = problem.case("cuda")
        out = jitgen.grouped_gemm(**case.arguments, config=problem.config)
        kept[problem.name] = (digest(case), out.cpu())
    torch.save(kept, path)
    print(f"{len(kept)} outputs of {torch.cuda.get_device_name()} in {path}")


def compare(path: str) -> int:
    """Run every problem in the emulator and compare with the kept outputs."""
    from jitgen.verify import device

    kept = torch.load(path)
    wrong = 0
    for problem in problems():
        case = problem.case("cpu")
        inputs, theirs = kept[problem.name]
        assert inputs == digest(case), f"other inputs for {problem.name}"
        with device(ARCH):
            ours = jitgen.grouped_gemm(**case.arguments, config=problem.config)
        have, want = ours[case.is_owned].double(), theirs[case.is_owned].double()
        assert theirs[~case.is_owned].isnan().all(), problem.name
        assert ours[~case.is_owned].isnan().all(), problem.name
        equal = torch.equal(have, want)
        frobenius = float((have - want).norm() / want.norm()) if have.numel() else 0.0
        largest = float((have - want).abs().max() / want.abs().max()) if have.numel() else 0.0
        steps = float((have - want).abs().max() / step(want.abs().max())) if have.numel() else 0.0
        is_right = equal if problem.is_exact else frobenius < 2e-3 and steps <= 1
        wrong += not is_right
        word = f"frobenius {frobenius:.2e} largest {largest:.2e} ({steps:.2g} bf16 steps there)"
        word = "equal" if equal else word
        print("right" if is_right else "WRONG", word, problem.name, flush=True)
    return min(wrong, 1)


if __name__ == "__main__":
    command, file = sys.argv[1:]
    sys.exit(run(file) if command == "run" else compare(file))
