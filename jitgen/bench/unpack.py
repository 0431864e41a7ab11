# SPDX-License-Identifier: Apache-2.0
"""
Device time of `jitgen.quantize.unpack_mxfp4` beside a copy of as many bytes: what a call of many
rows pays for multiplying prepared MXFP4 weights as FP8 ones.

All kernels that may be chosen take turns in one process, the selector's first; on a GPU each launch
finds nothing in L2. On a CPU there are none, and torch's operations are measured, on a small case.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

import jitgen
from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench.report import OURS
from jitgen.bench.runner import NEEDED, KernelCase, KernelSuite, Side, copy_side, device_of
from jitgen.config import Arch
from jitgen.config.unpack_weights import UnpackWeightsProblem
from jitgen.errors import KernelMiss
from jitgen.formats.prepared import PreparedWeights, prepare_mxfp4
from jitgen.formats.unpacked import LAYOUTS, unpacked
from jitgen.ops.unpack_weights.call import unpack_mxfp4
from jitgen.ops.unpack_weights.samples import differ

SIZES = ((32, 4096, 7168), (32, 7168, 2048), (32, 5760, 2880), (8, 2880, 2880))
"""Groups, N and K: DeepSeek-V3's matrices, gpt-oss's, and few weights."""

_CPU_SIZES = ((1, 64, 256),)
_EXPONENTS = (115, 124)


def cases(arch: Arch) -> Iterator[KernelCase]:
    """Yield each layout and size; on a CPU a small one."""
    for layout in LAYOUTS:
        for groups, n, k in SIZES if arch.is_gpu else _CPU_SIZES:
            problem = UnpackWeightsProblem(groups=groups, m=groups * n, k=k, b_layout=layout)
            name = f"{layout}, {groups} x N{n} K{k}"
            yield KernelCase(name=name, problem=problem, sides=partial(_sides, problem))


def _sides(problem: UnpackWeightsProblem, arch: Arch) -> Iterator[Side]:
    """Yield a copy and every kernel that may be chosen; on a CPU torch's operations."""
    device = device_of(arch)
    weights, out = _operands(problem, device)
    expected = unpacked(weights)

    def check(name: str, found: Any) -> None:
        wrong = sum(int(differ(*pair).sum()) for pair in zip(found, expected, strict=True))
        if wrong:
            raise WrongResult(f"{name} gives {wrong:,} wrong values for {problem.slug}")

    yield copy_side(problem.traffic_bytes, device, has_notes=True)
    call = partial(unpack_mxfp4, weights, out=out)
    if not arch.is_gpu:
        yield Side.of("torch", call, partial(check, "torch"), tolerated=NEEDED)
        return
    for candidate in jitgen.select(problem, arch).candidates:
        name, ours = f"{OURS}, {candidate.config.short}", partial(call, config=candidate.config)
        yield Side.of(name, ours, partial(check, name), tolerated=KernelMiss)


def _operands(
    problem: UnpackWeightsProblem, device: str
) -> tuple[PreparedWeights, tuple[torch.Tensor, torch.Tensor]]:
    """Return random weights, and where they go."""
    shape = (problem.groups, problem.rows_per_group)
    chance = torch.Generator(device).manual_seed(0)
    packed, scale = (
        torch.randint(low, high, (*shape, size), dtype=torch.uint8, device=device, generator=chance)
        for low, high, size in ((0, 256, problem.k // 2), (*_EXPONENTS, problem.k // 32))
    )
    b = torch.empty((*shape, problem.k), dtype=torch.float8_e4m3fn, device=device)
    weights = prepare_mxfp4(packed, scale, layout=problem.b_layout)
    return weights, (b, torch.empty(shape, device=device))


SUITE = KernelSuite(name="unpack", cases=cases, repetitions=5)
rows = SUITE.rows
