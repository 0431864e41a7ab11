# SPDX-License-Identifier: Apache-2.0
"""
Device time of `jitgen.quantize.mxfp8`, `mxfp4` and `nvfp4` beside a copy of as many bytes, and
beside torch's operations, which do the same where there is no kernel.

All sides of a case take turns in one process; on a GPU each launch finds nothing in L2. ``jitgen
prewarm quantize`` compiles what the selector chooses, so that a machine without the compiler can
run the suite. Where a budget holds, the other kernels that may be chosen are measured, too, but for
those that are missing. On a CPU there are no kernels: torch's operations are all there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

import jitgen
from jitgen.autotune.measure.clock import compete, has_gpu
from jitgen.autotune.measure.errors import WrongResult
from jitgen.autotune.measure.times import Times
from jitgen.bench.protocol import Row
from jitgen.config import Arch, Layout
from jitgen.config.quantize import Format, QuantizeConfig, QuantizeProblem
from jitgen.errors import KernelMiss
from jitgen.formats import mx32, nv16
from jitgen.formats.convert import from_atoms
from jitgen.ops.quantize import samples
from jitgen.ops.quantize.call import mxfp4, mxfp8, nvfp4
from jitgen.support.frozen import frozen
from jitgen.targets.devices import default_arch

COPY, OURS, TORCH, FOUND = "copy", "jitgen", "torch", "jitgen, global scale found"

_CALLS: dict[Format, Callable[..., Any]] = {
    Format.MXFP8: mxfp8,
    Format.MXFP4: mxfp4,
    Format.NVFP4: nvfp4,
}

OF_COPY = 0.8
"""Budget of MXFP8, and of NVFP4 with its global scale given: this part of the copy's rate."""

OF_COPY_WHEN_FOUND = 0.5
"""Budget of NVFP4 that finds its global scale, for which it reads x twice."""

GROUPS = 8
_ROWS, _FEW_ROWS, _CPU_ROWS = 1024, (128, 8), 16
_K, _CPU_K = 7168, 256
_ROUNDS, _REPETITIONS = 5, 9


@frozen
class Case:
    """
    One measurement.

    Attributes:
        layout: How rows belong to groups; contiguous rows are one matrix of them all.
        format: What values become.
        rows: Rows of each of 8 groups.
        k: Columns.
        has_budget: Whether the budgets hold for it.
    """

    layout: Layout
    format: Format
    rows: int
    k: int
    has_budget: bool = False

    def __str__(self) -> str:
        """Return the case as tables show it: ``contiguous mxfp8 8192 x 7168``."""
        is_one = self.layout is Layout.CONTIGUOUS
        rows = f"{GROUPS * self.rows}" if is_one else f"{GROUPS} x {self.rows}"
        return f"{self.layout} {self.format} {rows} x {self.k}"

    @property
    def problem(self) -> QuantizeProblem:
        """What a kernel is chosen for."""
        return QuantizeProblem(
            layout=self.layout,
            groups=1 if self.layout is Layout.CONTIGUOUS else GROUPS,
            m=GROUPS * self.rows,
            k=self.k,
            format=self.format,
        )

    def tensors(self, device: str) -> tuple[Tensor, dict[str, Any]]:
        """Return x, and what calls take besides, but for the config."""
        chance = torch.Generator(device).manual_seed(0)
        each = torch.full((GROUPS,), self.rows, dtype=torch.int32, device=device)
        lead = (GROUPS, self.rows) if self.layout is Layout.MASKED else (GROUPS * self.rows,)
        x = torch.randn(*lead, self.k, generator=chance, device=device).bfloat16()
        named: dict[str, Any] = {}
        if self.layout is Layout.RAGGED:
            named["offs"] = each.cumsum(0).int()
        if self.layout is Layout.MASKED:
            named["masked_m"] = each
        if self.format is Format.NVFP4:
            named["global_scale"] = torch.full((1,), 6 / (6 * 448), device=device)
        return x, named


def cases(arch: Arch) -> Iterator[Case]:
    """Yield what is measured on a device of `arch`: on a CPU every format once, and small."""
    if not arch.is_gpu:
        for form in Format:
            yield Case(layout=Layout.CONTIGUOUS, format=form, rows=_CPU_ROWS, k=_CPU_K)
        return
    for form in Format:
        yield Case(
            layout=Layout.CONTIGUOUS,
            format=form,
            rows=_ROWS,
            k=_K,
            has_budget=form is not Format.MXFP4,
        )
    for layout in (Layout.RAGGED, Layout.MASKED):
        for form in (Format.MXFP8, Format.NVFP4):
            for rows in (_ROWS, *_FEW_ROWS):
                yield Case(layout=layout, format=form, rows=rows, k=_K)


def rows() -> Iterator[Row]:
    """
    Yield for each case the rate of a copy, of torch's operations, and ours.

    Raises:
        WrongResult: A kernel computes something else than torch's operations.
    """
    arch = default_arch() if has_gpu() else Arch.CPU
    for case in cases(arch):
        yield from _measured(case, arch)
        if arch.is_gpu:
            torch.cuda.empty_cache()


def _measured(case: Case, arch: Arch) -> Iterator[Row]:
    device = "cuda" if arch.is_gpu else "cpu"
    x, named = case.tensors(device)
    size = case.problem.traffic_bytes
    source, target = (torch.empty(size // 2, dtype=torch.uint8, device=device) for _ in range(2))
    torchs = {name: value for name, value in named.items() if name != "masked_m"}
    sides: dict[str, Callable[[], Any]] = {
        COPY: partial(target.copy_, source),
        TORCH: partial(_torch(case.format), x, **torchs),
    }
    notes = []
    for number, (name, config) in enumerate(_kernels(case, arch)):
        call = partial(_CALLS[case.format], x, **named, config=config)
        try:
            result = call()
        except KernelMiss:
            if number == 0:
                raise
            notes.append(f"without {config.name(arch)}: not compiled")
            continue
        _check(case, result, sides[TORCH](), named, x)
        sides[name] = call
    if arch.is_gpu and case.has_budget and case.format is Format.NVFP4:
        _, best = next(iter(_kernels(case, arch)))
        sides[FOUND] = partial(nvfp4, x, config=best)
        _check(case, sides[FOUND](), nv16.nvfp4(x), named, x)
    found = compete(
        list(sides.values()), rounds=_ROUNDS, repetitions=_REPETITIONS, on_gpu=arch.is_gpu
    )
    times = dict(zip(sides, found, strict=True))
    for name, each in times.items():
        yield _rate(case, name, each, size, notes if name == COPY else [])
    if case.has_budget:
        yield from _budgets(case, times)


def _torch(form: Format) -> Callable[..., Any]:
    if form is Format.NVFP4:
        return nv16.nvfp4
    return mx32.mxfp8 if form is Format.MXFP8 else mx32.mxfp4


def _kernels(case: Case, arch: Arch) -> Iterator[tuple[str, QuantizeConfig]]:
    """Yield what is measured under which name, the selector's first; nothing on a CPU."""
    if not arch.is_gpu:
        return
    choice = jitgen.select(case.problem, arch)
    others = [each.config for each in choice.candidates] if case.has_budget else []
    for chosen in dict.fromkeys((choice.config, *others)):
        config = cast("QuantizeConfig", chosen)
        yield f"{OURS}, {'_'.join(config.tiling.words()) or 'default'}", config


def _check(
    case: Case,
    found: Sequence[Tensor],
    expected: Sequence[Tensor],
    named: dict[str, Any],
    x: Tensor,
) -> None:
    """Require the bits of torch's operations: every row of x is some group's."""
    size = -(-case.k // case.format.values)
    scales = [
        from_atoms(each[1], x.shape[-2], size, offs=named.get("offs")) for each in (found, expected)
    ]
    wrong = samples.differ(found[0], expected[0]).sum() + samples.differ(*scales).sum()
    if int(wrong):
        raise WrongResult(f"the kernel for {case} gives {int(wrong):,} wrong bytes")


def _rate(case: Case, name: str, times: Times, size: int, notes: Sequence[str]) -> Row:
    words = [f"{times.median * 1e6:.2f} us", f"{size / 1e6:.1f} MB", times.detail(1e6, "us")]
    return Row(
        suite="quantize",
        what=f"{name}: {case}",
        value=size / times.median * 1e-9,
        unit="GB/s",
        is_rate=True,
        detail="; ".join([*words, *notes]),
    )


def _budgets(case: Case, times: dict[str, Times]) -> Iterator[Row]:
    """Yield ours over the copy: of the selector's kernel, and where the global scale is found."""
    ours = next(name for name in times if name.startswith(OURS) and name != FOUND)
    for name, budget in ((ours, OF_COPY), (FOUND, OF_COPY_WHEN_FOUND)):
        if name in times:
            yield Row(
                suite="quantize",
                what=f"rate of {name} over that of {COPY}: {case}",
                value=times[COPY].median / times[name].median,
                unit="x",
                budget=budget,
                is_rate=True,
            )
