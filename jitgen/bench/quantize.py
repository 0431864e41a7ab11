# SPDX-License-Identifier: Apache-2.0
"""
Device time of conversions, compared with a copy of the same number of bytes and with torch's
operations, which jitgen uses if it has no kernel.

`quantize`: `jitgen.quantize.mxfp8`, `mxfp4` and `nvfp4`. ``jitgen prewarm quantize`` compiles what
the selector chooses, so that a machine without the compiler can run the suite. For cases with a
budget the other candidate kernels are measured, too, except those that are not compiled.

`unpack`: `jitgen.quantize.unpack_mxfp4`, which a call with many rows runs before it multiplies
prepacked MXFP4 weights as FP8. All candidate kernels are measured, the selector's choice first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

import jitgen
from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench.report import OURS
from jitgen.bench.runner import (
    COPY,
    NEEDED,
    KernelCase,
    KernelSuite,
    Ratio,
    Side,
    copy_side,
    device_of,
)
from jitgen.config import Arch, Layout
from jitgen.config.format import IN_ATOMS, Format
from jitgen.config.quantize import QuantizeConfig, QuantizeProblem
from jitgen.config.unpack_weights import UnpackWeightsProblem
from jitgen.errors import KernelMiss
from jitgen.formats import mx32, nv16
from jitgen.formats.convert import from_atoms
from jitgen.formats.prepacked import PrepackedWeights, prepack_mxfp4
from jitgen.formats.unpacked import LAYOUTS, unpacked
from jitgen.ops.quantize.call import mxfp4, mxfp8, nvfp4
from jitgen.ops.solved import bits_differ
from jitgen.ops.unpack_weights.call import unpack_mxfp4

TORCH, FOUND = "torch", "jitgen, global scale found"

_CALLS: dict[Format, Callable[..., Any]] = {
    Format.MXFP8: mxfp8,
    Format.MXFP4: mxfp4,
    Format.NVFP4: nvfp4,
}
_TORCH: dict[Format, Callable[..., Any]] = {
    Format.MXFP8: mx32.mxfp8,
    Format.MXFP4: mx32.mxfp4,
    Format.NVFP4: nv16.nvfp4,
}

OF_COPY = 0.8
"""Budget of MXFP8, and of NVFP4 with its global scale given: this part of the copy's rate."""

OF_COPY_WHEN_FOUND = 0.5
"""Budget of NVFP4 without a given global scale, which reads x twice."""

GROUPS = 8
_ROWS, _FEW_ROWS, _CPU_ROWS = 1024, (128, 8), 16
_K, _CPU_K = 7168, 256


def case(
    layout: Layout, form: Format, rows: int, k: int, arch: Arch, *, has_budget: bool = False
) -> KernelCase:
    """
    Return the case of one problem, called for example ``contiguous mxfp8 8192 x 7168``.

    Args:
        layout: How rows belong to groups; contiguous rows are one matrix with all groups.
        form: Format of the result.
        rows: Rows of each of 8 groups.
        k: Columns K of a row.
        arch: Target.
        has_budget: Whether the budgets apply to it; then all candidate kernels are measured.
    """
    is_one = layout is Layout.CONTIGUOUS
    shape = f"{GROUPS * rows}" if is_one else f"{GROUPS} x {rows}"
    name = f"{layout} {form} {shape} x {k}"
    problem = QuantizeProblem(
        layout=layout, groups=1 if is_one else GROUPS, m=GROUPS * rows, k=k, format=form
    )
    ratios: tuple[Ratio, ...] = ()
    if has_budget:
        ours = next(iter(_kernels(problem, arch, has_others=False)))
        limits = {ours: OF_COPY, FOUND: OF_COPY_WHEN_FOUND}
        ratios = tuple(Ratio.of_rates(each, COPY, least) for each, least in limits.items())
    sides = partial(_sides, name, problem, has_budget=has_budget)
    return KernelCase(name=name, problem=problem, sides=sides, ratios=ratios)


def cases(arch: Arch) -> Iterator[KernelCase]:
    """Yield the cases to measure on a device of `arch`: on a CPU every format once, and small."""
    if not arch.is_gpu:
        for form in IN_ATOMS:
            yield case(Layout.CONTIGUOUS, form, _CPU_ROWS, _CPU_K, arch)
        return
    for form in IN_ATOMS:
        has_budget = form is not Format.MXFP4
        yield case(Layout.CONTIGUOUS, form, _ROWS, _K, arch, has_budget=has_budget)
    for layout in (Layout.RAGGED, Layout.MASKED):
        for form in (Format.MXFP8, Format.NVFP4):
            for rows in (_ROWS, *_FEW_ROWS):
                yield case(layout, form, rows, _K, arch)


def _tensors(problem: QuantizeProblem, device: str) -> tuple[Tensor, dict[str, Any]]:
    """Return x and the further arguments of calls, except the config."""
    rows, chance = problem.m // GROUPS, torch.Generator(device).manual_seed(0)
    each = torch.full((GROUPS,), rows, dtype=torch.int32, device=device)
    lead = (GROUPS, rows) if problem.layout is Layout.MASKED else (problem.m,)
    x = torch.randn(*lead, problem.k, generator=chance, device=device).bfloat16()
    named: dict[str, Any] = {}
    if problem.layout is Layout.RAGGED:
        named["offs"] = each.cumsum(0).int()
    if problem.layout is Layout.MASKED:
        named["masked_m"] = each
    if problem.format is Format.NVFP4:
        named["global_scale"] = torch.full((1,), 6 / (6 * 448), device=device)
    return x, named


def _sides(name: str, problem: QuantizeProblem, arch: Arch, *, has_budget: bool) -> Iterator[Side]:
    """
    Yield a copy, torch's operations, jitgen's kernels, and NVFP4 that computes its global scale.
    """
    device = device_of(arch)
    x, named = _tensors(problem, device)
    torchs = {name: value for name, value in named.items() if name != "masked_m"}
    plain = partial(_TORCH[problem.format], x, **torchs)
    check = partial(_check, name, problem, x, named.get("offs"))
    kernels = _kernels(problem, arch, has_others=has_budget)
    yield copy_side(problem.traffic_bytes, device, has_notes=True)
    yield Side.of(TORCH, plain, lambda _: None, tolerated=NEEDED)
    for number, (kernel, config) in enumerate(kernels.items()):
        call = partial(_CALLS[problem.format], x, **named, config=config)
        yield Side.of(
            kernel, call, partial(check, plain), tolerated=KernelMiss if number else NEEDED
        )
    if arch.is_gpu and has_budget and problem.format is Format.NVFP4:
        call = partial(nvfp4, x, config=next(iter(kernels.values())))
        yield Side.of(FOUND, call, partial(check, partial(nv16.nvfp4, x)), tolerated=NEEDED)


def _kernels(
    problem: QuantizeProblem, arch: Arch, *, has_others: bool
) -> dict[str, QuantizeConfig]:
    """Return the kernels to measure by name, the selector's first; none on a CPU."""
    if not arch.is_gpu:
        return {}
    choice = jitgen.select(problem, arch)
    others = (each.config for each in choice.candidates if has_others)
    found = (cast("QuantizeConfig", each) for each in dict.fromkeys((choice.config, *others)))
    return {f"{OURS}, {config.tiling.to_name() or 'default'}": config for config in found}


def _check(
    name: str,
    problem: QuantizeProblem,
    x: Tensor,
    offs: Tensor | None,
    plain: Callable[[], Sequence[Tensor]],
    found: Sequence[Tensor],
) -> None:
    """
    Check that results have the same bits as those of torch's operations; every row of x belongs to
    a group.
    """
    expected, size = plain(), -(-problem.k // problem.format.values)
    scales = [from_atoms(each[1], x.shape[-2], size, offs=offs) for each in (found, expected)]
    wrong = bits_differ(found[0], expected[0]).sum() + bits_differ(*scales).sum()
    if int(wrong):
        raise WrongResult(f"the kernel for {name} gives {int(wrong):,} wrong bytes")


quantize = KernelSuite(name="quantize", cases=cases).rows


_GPU_SIZES = ((32, 4096, 7168), (32, 7168, 2048), (32, 5760, 2880), (8, 2880, 2880))
"""Groups, N and K: the matrices of DeepSeek-V3 and gpt-oss, and a small number of weights."""

_CPU_SIZES = ((1, 64, 256),)
_EXPONENTS = (115, 124)


def unpack_cases(arch: Arch) -> Iterator[KernelCase]:
    """Yield a case for each layout and size; on a CPU for each layout a small one."""
    for layout in LAYOUTS:
        for groups, n, k in _GPU_SIZES if arch.is_gpu else _CPU_SIZES:
            problem = UnpackWeightsProblem(groups=groups, m=groups * n, k=k, b_layout=layout)
            name = f"{layout}, {groups} x N{n} K{k}"
            yield KernelCase(name=name, problem=problem, sides=partial(_unpack_sides, problem))


def _unpack_sides(problem: UnpackWeightsProblem, arch: Arch) -> Iterator[Side]:
    """
    Yield a copy, then every kernel that may be chosen; on a CPU, instead of kernels, one side with
    torch's operations.
    """
    device = device_of(arch)
    weights, out = _prepacked_weights(problem, device)
    expected = unpacked(weights)

    def check(name: str, found: Any) -> None:
        wrong = sum(int(bits_differ(*pair).sum()) for pair in zip(found, expected, strict=True))
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


def _prepacked_weights(
    problem: UnpackWeightsProblem, device: str
) -> tuple[PrepackedWeights, tuple[torch.Tensor, torch.Tensor]]:
    """Return random weights, and the tensors that receive them."""
    shape = (problem.groups, problem.rows_per_group)
    chance = torch.Generator(device).manual_seed(0)
    packed, scale = (
        torch.randint(low, high, (*shape, size), dtype=torch.uint8, device=device, generator=chance)
        for low, high, size in ((0, 256, problem.k // 2), (*_EXPONENTS, problem.k // 32))
    )
    b = torch.empty((*shape, problem.k), dtype=torch.float8_e4m3fn, device=device)
    weights = prepack_mxfp4(packed, scale, layout=problem.b_layout)
    return weights, (b, torch.empty(shape, device=device))


unpack = KernelSuite(name="unpack", cases=unpack_cases, repetitions=5).rows
