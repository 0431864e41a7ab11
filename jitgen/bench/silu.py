# SPDX-License-Identifier: Apache-2.0
"""
Device time of `silu_mul_quantize` beside a copy of as many bytes, and beside what torch.compile
makes of the float32 reference where it can.

All sides of a case take turns in one process; on a GPU each launch finds nothing in L2. Kernels
are those that the selector chooses. ``jitgen prewarm swiglu`` compiles them all, so that a machine
without the compiler can run the suite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import partial

import torch
from torch import Tensor

import jitgen
from jitgen.autotune.measure.errors import WrongResult
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
from jitgen.config.silu_mul_quantize import (
    Activation,
    Scales,
    SiluMulQuantizeConfig,
    SiluMulQuantizeProblem,
)
from jitgen.formats.e4m3 import MAX
from jitgen.ops.silu_mul_quantize import reference, samples
from jitgen.support.frozen import frozen

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


@frozen
class Case(KernelCase):
    """
    One measurement: 8 groups of equally many rows.

    Attributes:
        config: What is computed; its tiling is the selector's to choose.
        rows: Rows of a group.
        n: Columns of the result.
        budgets: See `KernelCase`.
    """

    config: SiluMulQuantizeConfig
    rows: int
    n: int
    budgets: Mapping[str, float] = field(default_factory=dict)

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

    def sides(self, arch: Arch) -> Iterator[Side]:
        """Yield a copy, our kernel and inductor's."""
        device = device_of(arch)
        ours = partial(jitgen.silu_mul_quantize, expected_m=self.rows)
        exact, solved = (
            samples.make(self.config, self.sizes, is_exact=is_exact, device=device)
            for is_exact in (True, False)
        )
        x = solved.tensors[0]

        def check() -> None:
            for each in (exact, solved):
                if wrong := each.solve(ours):
                    raise WrongResult(f"the kernel for {self} gives {wrong:,} wrong values")

        ready = Ready(
            calls=(partial(ours, x, out=solved.q, **solved.named),),
            check=check,
            kernel=self._kernel(x, arch),
        )
        yield copy_side(self.amount, device)
        yield Side(name=OURS, prepare=lambda: ready, tolerated=NEEDED, has_notes=True)
        yield Side(name=INDUCTOR, prepare=partial(_inductor, solved, self.config))

    def _kernel(self, x: Tensor, arch: Arch) -> str:
        """Return the name of the kernel that serves the case, whose contiguous x has padding."""
        problem = self.problem
        if problem.layout is Layout.CONTIGUOUS:
            problem = replace(problem, m=x.shape[0])
        return str(jitgen.select(problem, arch).config.name(arch))


def cases(arch: Arch) -> Iterator[Case]:
    """Yield what is measured on a device of `arch`: on a CPU every kind once, and small."""
    if not arch.is_gpu:
        yield from (Case(config=config, rows=_CPU_ROWS, n=_CPU_N) for config in _KINDS)
        return
    first, *_ = _KINDS
    for config in _KINDS:
        for rows in _GPU_ROWS if config == first else _FEW_GPU_ROWS:
            is_largest = config == first and rows == _GPU_ROWS[0]
            budgets = {COPY: OF_COPY, INDUCTOR: 1.0} if is_largest else {}
            yield Case(config=config, rows=rows, n=_GPU_N, budgets=budgets)
    for n in _OTHER_N:
        yield Case(config=first, rows=_GPU_ROWS[0], n=n)


SUITE = KernelSuite(name="silu", cases=cases)


def _inductor(solved: samples.Solved, config: SiluMulQuantizeConfig) -> Ready:
    """Return what inductor makes of the same work; it takes every row for owned."""
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

    def check() -> None:
        q, _ = compiled(x)
        owned = solved.is_owned
        expected = solved.expected_q[owned].float()
        if (q[owned].float() - expected).abs().max() > LARGEST_ERROR * expected.abs().max():
            raise WrongResult("its results are others")

    return Ready(calls=(lambda: compiled(x),), check=check)


rows = SUITE.rows
