# SPDX-License-Identifier: Apache-2.0
"""
Device time of `silu_mul_quantize` beside a copy of as many bytes, and beside what torch.compile
makes of the float32 reference where it can.

All sides of a case take turns in one process; on a GPU each launch finds nothing in L2. Kernels
are those that the selector chooses. ``jitgen prewarm swiglu`` compiles them all, so that a machine
without the compiler can run the suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import jitgen
from jitgen.autotune.measure.clock import compete, has_gpu
from jitgen.autotune.measure.errors import WrongResult
from jitgen.autotune.measure.times import Times
from jitgen.bench.protocol import Row
from jitgen.bench.sides import attempt
from jitgen.config import Arch, Layout
from jitgen.config.silu_mul_quantize import (
    Activation,
    Scales,
    SiluMulQuantizeConfig,
    SiluMulQuantizeProblem,
)
from jitgen.formats.e4m3 import MAX
from jitgen.ops.silu_mul_quantize import reference, samples
from jitgen.targets.devices import default_arch

COPY, OURS, INDUCTOR = "copy", "jitgen", "inductor"

OF_COPY = 0.9
"""Budget of the largest ragged case with block scales: this part of the copy's rate."""

LARGEST_ERROR = 2.0**-3
"""Of inductor's results, as a part of the largest: e4m3 rounds by 2**-4 of a value."""

GROUPS = 8
_KINDS = (
    *(SiluMulQuantizeConfig(layout=layout) for layout in Layout),
    *(
        SiluMulQuantizeConfig(layout=Layout.RAGGED, scale_granularity=scales)
        for scales in (Scales.ROW, Scales.TENSOR, Scales.NONE)
    ),
    SiluMulQuantizeConfig(layout=Layout.RAGGED, activation=Activation.SWIGLU_OAI, interleaved=True),
)
_GPU_ROWS, _FEW_GPU_ROWS, _CPU_ROWS = (4096, 512, 128, 8, 1), (4096, 8), 16
_GPU_N, _OTHER_N, _CPU_N = 2048, (1536, 2880), 256
_ROUNDS, _REPETITIONS = 5, 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """
    One measurement: 8 groups of equally many rows.

    Attributes:
        config: What is computed; its tiling is the selector's to choose.
        rows: Rows of a group.
        n: Columns of the result.
        has_budget: Whether the budgets hold for it.
    """

    config: SiluMulQuantizeConfig
    rows: int
    n: int
    has_budget: bool = False

    def __str__(self) -> str:
        """Return the case as tables show it: ``ragged block128 8 x 4096 I2048``."""
        words = [str(self.config.layout), str(self.config.scale_granularity)]
        words += ["gpt-oss"] * self.config.interleaved
        return f"{' '.join(words)} {GROUPS} x {self.rows} I{self.n}"

    @property
    def sizes(self) -> samples.Sizes:
        """What operands are made of."""
        return samples.Sizes(rows=(self.rows,) * GROUPS, n=self.n)

    @property
    def problem(self) -> SiluMulQuantizeProblem:
        """What a kernel is chosen for."""
        config = self.config
        groups = 1 if config.layout is Layout.CONTIGUOUS else GROUPS
        return SiluMulQuantizeProblem(
            layout=config.layout,
            groups=groups,
            m=GROUPS * self.rows,
            n=self.n,
            scale_granularity=config.scale_granularity,
            activation=config.activation,
            interleaved=config.interleaved,
        )


def cases(arch: Arch) -> Iterator[Case]:
    """Yield what is measured on a device of `arch`: on a CPU every kind once, and small."""
    if not arch.is_gpu:
        yield from (Case(config=config, rows=_CPU_ROWS, n=_CPU_N) for config in _KINDS)
        return
    first, *_ = _KINDS
    for config in _KINDS:
        for rows in _GPU_ROWS if config == first else _FEW_GPU_ROWS:
            is_largest = config == first and rows == _GPU_ROWS[0]
            yield Case(config=config, rows=rows, n=_GPU_N, has_budget=is_largest)
    for n in _OTHER_N:
        yield Case(config=first, rows=_GPU_ROWS[0], n=n)


def rows() -> Iterator[Row]:
    """
    Yield for each case the rate of a copy, ours and inductor's.

    Raises:
        WrongResult: A kernel computes something wrong.
    """
    arch = default_arch() if has_gpu() else Arch.CPU
    for case in cases(arch):
        yield from _measured(case, arch)
        if arch.is_gpu:
            torch.cuda.empty_cache()


def _measured(case: Case, arch: Arch) -> Iterator[Row]:
    device = "cuda" if arch.is_gpu else "cpu"
    ours = partial(jitgen.silu_mul_quantize, expected_m=case.rows)
    for is_exact in (True, False):
        solved = samples.make(case.config, case.sizes, is_exact=is_exact, device=device)
        if wrong := solved.solve(ours):
            raise WrongResult(f"the kernel for {case} gives {wrong:,} wrong values")
    x, num_bytes = solved.tensors[0], case.problem.traffic_bytes
    source, target = (
        torch.empty(num_bytes // 2, dtype=torch.uint8, device=device) for _ in range(2)
    )
    sides: dict[str, Callable[[], object]] = {
        COPY: partial(target.copy_, source),
        OURS: partial(ours, x, out=solved.q, **solved.named),
    }
    missing: dict[str, str] = {}

    def add_inductor() -> None:
        sides[INDUCTOR] = _inductor(solved, case.config)

    attempt(INDUCTOR, add_inductor, missing)
    found = compete(
        list(sides.values()), rounds=_ROUNDS, repetitions=_REPETITIONS, on_gpu=arch.is_gpu
    )
    times = dict(zip(sides, found, strict=True))
    notes = [f"without {name}: {reason}" for name, reason in missing.items()]
    for name, each in times.items():
        more = [_kernel(case, x, arch), *notes] if name == OURS else []
        yield _rate(case, name, each, more)
    if case.has_budget:
        yield from _budgets(case, times)


def _kernel(case: Case, x: Tensor, arch: Arch) -> str:
    """Return the name of the kernel that serves the case, whose contiguous x has padding too."""
    problem = case.problem
    if problem.layout is Layout.CONTIGUOUS:
        problem = replace(problem, m=x.shape[0])
    return str(jitgen.select(problem, arch).config.name(arch))


def _rate(case: Case, name: str, times: Times, more: Sequence[str]) -> Row:
    size = case.problem.traffic_bytes
    words = [f"{times.median * 1e6:.2f} us", f"{size / 1e6:.1f} MB", times.detail(1e6, "us")]
    return Row(
        suite="silu",
        what=f"{name}: {case}",
        value=size / times.median * 1e-9,
        unit="GB/s",
        is_rate=True,
        detail="; ".join([*words, *more]),
    )


def _budgets(case: Case, times: dict[str, Times]) -> Iterator[Row]:
    budgets = {COPY: OF_COPY, INDUCTOR: 1.0}
    for name, budget in budgets.items():
        if name in times:
            yield Row(
                suite="silu",
                what=f"rate of {OURS} over that of {name}: {case}",
                value=times[name].median / times[OURS].median,
                unit="x",
                budget=budget,
                is_rate=True,
            )


def _inductor(solved: samples.Solved, config: SiluMulQuantizeConfig) -> Callable[[], Any]:
    """
    Return a call of what inductor makes of the same work; it takes every row for owned.

    Raises:
        WrongResult: It computes something else.
    """
    torch._dynamo.reset()
    x, scale = solved.tensors[0], solved.named["scale"]
    granularity = str(config.scale_granularity)
    limits = {name: solved.named[name] for name in ("limit", "alpha") if name in solved.named}

    def plain(x: Tensor) -> tuple[Tensor, Tensor | None]:
        y = reference.activated(
            x, activation=str(config.activation), interleaved=config.interleaved, **limits
        )
        if granularity == "none":
            return y.bfloat16(), None
        if scale is not None:
            return (y / scale).clamp(-MAX, MAX).to(torch.float8_e4m3fn), scale
        parts = 128 if granularity == "block128" else y.shape[-1]
        padded = torch.nn.functional.pad(y, (0, -y.shape[-1] % parts))
        blocks = padded.view(*y.shape[:-1], -1, parts)
        found = (blocks.abs().amax(-1) / MAX).clamp_min(2.0**-126)
        q = (blocks / found.unsqueeze(-1)).clamp(-MAX, MAX).to(torch.float8_e4m3fn)
        return q.view(padded.shape)[..., : y.shape[-1]], found.transpose(-1, -2).contiguous()

    compiled = torch.compile(plain, dynamic=False)
    q, _ = compiled(x)
    owned = solved.is_owned
    expected = solved.expected_q[owned].float()
    if (q[owned].float() - expected).abs().max() > LARGEST_ERROR * expected.abs().max():
        raise WrongResult("its results are others")
    return lambda: compiled(x)
