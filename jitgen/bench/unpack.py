# SPDX-License-Identifier: Apache-2.0
"""
Device time of `jitgen.quantize.unpack_mxfp4` beside a copy of as many bytes: what a call of many
rows pays for multiplying prepared MXFP4 weights as FP8 ones.

All kernels that may be chosen take turns in one process, the selector's first; on a GPU each launch
finds nothing in L2. On a CPU there are none, and torch's operations are measured, on a small case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch

import jitgen
from jitgen.autotune.measure.clock import compete, has_gpu
from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench.protocol import Row
from jitgen.config import Arch
from jitgen.config.unpack_weights import UnpackWeightsConfig, UnpackWeightsProblem
from jitgen.errors import KernelMiss
from jitgen.formats.prepared import PreparedWeights, prepare_mxfp4
from jitgen.formats.unpacked import LAYOUTS, unpacked
from jitgen.ops.unpack_weights.call import unpack_mxfp4
from jitgen.ops.unpack_weights.samples import differ
from jitgen.targets.devices import default_arch

COPY = "copy"
SIZES = ((32, 4096, 7168), (32, 7168, 2048), (32, 5760, 2880), (8, 2880, 2880))
"""Groups, N and K: DeepSeek-V3's matrices, gpt-oss's, and few weights."""

_CPU_SIZES = ((1, 64, 256),)
_ROUNDS, _REPETITIONS = 5, 5
_EXPONENTS = (115, 124)


def rows() -> Iterator[Row]:
    """
    Yield for each layout and size the rate of a copy and of the kernels.

    Raises:
        WrongResult: A kernel computes something else than torch's operations.
    """
    arch = default_arch() if has_gpu() else Arch.CPU
    for layout in LAYOUTS:
        for groups, n, k in SIZES if arch.is_gpu else _CPU_SIZES:
            problem = UnpackWeightsProblem(groups=groups, m=groups * n, k=k, b_layout=layout)
            yield from _measured(problem, arch)
            if arch.is_gpu:
                torch.cuda.empty_cache()


def _measured(problem: UnpackWeightsProblem, arch: Arch) -> Iterator[Row]:
    """Yield the rows of one case: bytes a second of all sides, each of which was found right."""
    device, size = "cuda" if arch.is_gpu else "cpu", problem.traffic_bytes
    weights, out = _operands(problem, device)
    source, target = (torch.empty(size // 2, dtype=torch.uint8, device=device) for _ in range(2))
    sides: dict[str, Callable[[], Any]] = {COPY: partial(target.copy_, source)}
    notes = []
    expected = unpacked(weights)
    for name, config in _kernels(problem, arch):
        call = partial(unpack_mxfp4, weights, out=out, config=config)
        try:
            found = call()
        except KernelMiss:
            notes.append(f"without {name}: not compiled")
            continue
        wrong = sum(int(differ(*pair).sum()) for pair in zip(found, expected, strict=True))
        if wrong:
            raise WrongResult(f"{name} gives {wrong:,} wrong values for {problem.slug}")
        sides[name] = call
    del expected
    times = compete(
        list(sides.values()), rounds=_ROUNDS, repetitions=_REPETITIONS, on_gpu=arch.is_gpu
    )
    what = f"{problem.b_layout}, {problem.groups} x N{problem.rows_per_group} K{problem.k}"
    for name, each in zip(sides, times, strict=True):
        words = [f"{each.median * 1e6:.2f} us", f"{size / 1e6:.1f} MB", each.detail(1e6, "us")]
        yield Row(
            suite="unpack",
            what=f"{name}: {what}",
            value=size / each.median * 1e-9,
            unit="GB/s",
            is_rate=True,
            detail="; ".join([*words, *(notes if name == COPY else [])]),
        )


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


def _kernels(
    problem: UnpackWeightsProblem, arch: Arch
) -> Iterator[tuple[str, UnpackWeightsConfig | None]]:
    """Yield what is measured under which name, the selector's first; on a CPU torch alone."""
    if not arch.is_gpu:
        yield "torch", None
        return
    for candidate in jitgen.select(problem, arch).candidates:
        config = cast("UnpackWeightsConfig", candidate.config)
        yield f"jitgen, {config.short}", config
