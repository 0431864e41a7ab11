# SPDX-License-Identifier: Apache-2.0
"""
Device time of `activation_quantize`, compared with a copy of the same number of bytes and, if
possible, with torch.compile's version of the float32 reference.

Kernels are those that the selector chooses. ``jitgen prewarm swiglu`` compiles them all, so that a
machine without the compiler can run the suite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

import jitgen
from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench.glue.permute_quantize import quantized
from jitgen.bench.report import OURS
from jitgen.bench.runner import (
    COPY,
    INDUCTOR,
    NEEDED,
    KernelCase,
    KernelSuite,
    Ready,
    Side,
    copy_side,
    device_of,
)
from jitgen.config import Arch, Layout
from jitgen.config.activation_quantize import (
    Activation,
    ActivationQuantizeConfig,
    ActivationQuantizeProblem,
)
from jitgen.config.format import Format
from jitgen.formats.e4m3 import MAX
from jitgen.ops.activation_quantize import reference, samples
from jitgen.ops.solved import Solved

OF_COPY = 0.9
"""Budget of the largest ragged case with block scales, as a part of the copy's rate."""

LARGEST_ERROR = 2.0**-3
"""Largest error of inductor's results, relative to the largest: e4m3 rounds by 2**-4 of a value."""

GROUPS = 8
_KINDS = (
    *(ActivationQuantizeConfig(layout=layout) for layout in Layout),
    *(
        ActivationQuantizeConfig(layout=Layout.RAGGED, scale_granularity=scales)
        for scales in (Format.ROW, Format.TENSOR, Format.NONE)
    ),
    ActivationQuantizeConfig(
        layout=Layout.RAGGED, activation=Activation.SWIGLU_OAI, interleaved=True
    ),
)
_GPU_ROWS, _FEW_GPU_ROWS, _CPU_ROWS = (4096, 512, 128, 8, 1), (4096, 8), 16
_GPU_N, _OTHER_N, _CPU_N = 2048, (1536, 2880), 256


def case(
    config: ActivationQuantizeConfig, rows: int, n: int, *, has_budget: bool = False
) -> KernelCase:
    """
    Return a case of 8 groups of equally many rows, called for example ``ragged block128 8 x 4096
    I2048``.

    Args:
        config: The operation; the selector chooses the tiling.
        rows: Rows of a group.
        n: Columns of the result.
        has_budget: Whether the budgets apply to it.
    """
    words = [str(config.layout), str(config.scale_granularity), *["gpt-oss"] * config.interleaved]
    name = f"{' '.join(words)} {GROUPS} x {rows} I{n}"
    problem = ActivationQuantizeProblem(
        layout=config.layout,
        groups=1 if config.layout is Layout.CONTIGUOUS else GROUPS,
        m=GROUPS * rows,
        n=n,
        scale_granularity=config.scale_granularity,
        activation=config.activation,
        interleaved=config.interleaved,
    )
    sizes = samples.Sizes(rows=(rows,) * GROUPS, n=n)
    return KernelCase(
        name=name,
        problem=problem,
        sides=partial(_sides, name, config, problem, sizes),
        budgets={COPY: OF_COPY, INDUCTOR: 1.0} if has_budget else {},
    )


def cases(arch: Arch) -> Iterator[KernelCase]:
    """Yield the cases to measure on a device of `arch`: on a CPU every kind once, and small."""
    if not arch.is_gpu:
        yield from (case(config, _CPU_ROWS, _CPU_N) for config in _KINDS)
        return
    first, *_ = _KINDS
    for config in _KINDS:
        for rows in _GPU_ROWS if config == first else _FEW_GPU_ROWS:
            is_largest = config == first and rows == _GPU_ROWS[0]
            yield case(config, rows, _GPU_N, has_budget=is_largest)
    for n in _OTHER_N:
        yield case(first, _GPU_ROWS[0], n)


def _sides(
    name: str,
    config: ActivationQuantizeConfig,
    problem: ActivationQuantizeProblem,
    sizes: samples.Sizes,
    arch: Arch,
) -> Iterator[Side]:
    """Yield a copy, jitgen's kernel and inductor's."""
    device = device_of(arch)
    ours = partial(jitgen.activation_quantize, expected_m=sizes.rows[0])
    exact, solved = (
        samples.make(config, sizes, is_exact=is_exact, device=device) for is_exact in (True, False)
    )
    x, served = solved.tensors[0], problem
    if problem.layout is Layout.CONTIGUOUS:  # x has padding
        served = replace(problem, m=x.shape[0])

    def check() -> None:
        for each in (exact, solved):
            if wrong := each.solve(ours):
                raise WrongResult(f"the kernel for {name} gives {wrong:,} wrong values")

    ready = Ready(
        calls=(partial(ours, **solved.arguments),),
        check=check,
        kernel=str(jitgen.select(served, arch).config.name(arch)),
    )
    yield copy_side(problem.traffic_bytes, device)
    yield Side(name=OURS, prepare=lambda: ready, tolerated=NEEDED, has_notes=True)
    yield Side(name=INDUCTOR, prepare=partial(_inductor, solved, config))


SUITE = KernelSuite(name="silu", cases=cases)


def _inductor(solved: Solved, config: ActivationQuantizeConfig) -> Ready:
    """Return a side that does the same work with inductor, which also computes padding rows."""
    torch._dynamo.reset()
    x, scale = solved.tensors[0], solved.arguments["global_scale"]
    granularity = str(config.scale_granularity)
    given = solved.arguments
    numbers = {name: given[name] for name in config.activation.numbers}

    def plain(x: Tensor) -> tuple[Tensor, Tensor | None]:
        y = reference.activated(
            x, activation=str(config.activation), interleaved=config.interleaved, **numbers
        )
        if granularity == "none":
            return y.bfloat16(), None
        if scale is not None:
            return (y / scale).clamp(-MAX, MAX).to(torch.float8_e4m3fn), scale
        return quantized(y, 128 if granularity == "block128" else y.shape[-1])

    compiled = torch.compile(plain, dynamic=False)

    def check() -> None:
        output = solved.output("q")
        right = scale
        if config.scale_granularity.has_float_scales:
            right = solved.output("scale").expected
        expected = _values(output.expected, right, config)[output.owned]
        found = _values(*compiled(x), config)[output.owned]
        if not (found - expected).abs().max() <= LARGEST_ERROR * expected.abs().max():  # or NaN
            raise WrongResult("its results are others")

    return Ready(calls=(lambda: compiled(x),), check=check)


def _values(q: Tensor, scale: Tensor | None, config: ActivationQuantizeConfig) -> Tensor:
    """
    Return the float32 values that results stand for, whether their scales are powers of two or not.

    Args:
        q: The results (M, I) or (G, M, I).
        scale: One for all of them (1,), for each row without or with a last dimension of 1, or for
            each 1x128; None without scales.
        config: The operation.
    """
    if scale is None:
        return q.float()
    if config.scale_granularity is not Format.BLOCK128:
        return q.float() * scale.reshape(*q.shape[:-1] if scale.numel() > 1 else (), 1)
    return q.float() * scale.repeat_interleave(128, -1)[..., : q.shape[-1]]


rows = SUITE.rows
