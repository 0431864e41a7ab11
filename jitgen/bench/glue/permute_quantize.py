# SPDX-License-Identifier: Apache-2.0
"""
`permute_quantize`: the rows of tokens in the order of their experts, quantised, with and without
the inverse permutation.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

import jitgen
from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench.glue import Operands, case, others
from jitgen.bench.runner import COPY, INDUCTOR, KernelCase
from jitgen.config import Arch, Layout
from jitgen.config.format import Format
from jitgen.config.permute_quantize import PermuteQuantizeProblem, Walk
from jitgen.formats.e4m3 import MAX
from jitgen.ops.permute_quantize import reference
from jitgen.targets.legality import rules

EXPERTS, TOP_K = 256, 8
"""Number of experts of DeepSeek-V3, all of them on this device."""

_STEP = 2.0**-3
"""Largest relative error of inductor's results: one step of e4m3."""

_TOKENS, _FEW_TOKENS, _CPU_TOKENS = (1, 16, 64, 512, 4096), (64, 4096), 16
_GPU_K, _CPU_K = 7168, 256


def _operands(problem: PermuteQuantizeProblem, device: str, seed: int) -> Operands:
    """Return a call with random tokens and experts, all of them on this device."""
    chance = torch.Generator(device).manual_seed(seed)
    x = torch.randn((problem.m, problem.k), generator=chance, device=device).bfloat16()
    logits = torch.randn((problem.m, EXPERTS), generator=chance, device=device)
    ids = logits.topk(problem.top_k).indices.to(torch.int32)
    offs, permutation, inverse = jitgen.reference.sort_pairs(ids, experts=EXPERTS)
    is_given = problem.format is Format.TENSOR
    scale = torch.tensor([0.01], device=device) if is_given else None
    expected = reference.permute_quantize(
        *(x, permutation),
        top_k=problem.top_k,
        offs=offs,
        format=str(problem.format),
        global_scale=scale,
    )
    ours = partial(
        jitgen.permute_quantize,
        *(x, permutation),
        top_k=problem.top_k,
        offs=offs,
        inverse=inverse if problem.walk is Walk.SCATTER else None,
        format=str(problem.format),
        global_scale=scale,
    )
    return Operands(
        ours=ours,
        others=others(problem, ours),
        plain=partial(permuted, top_k=problem.top_k, form=problem.format),
        arguments=(x, permutation, *([] if scale is None else [scale])),
        check=partial(check, expected=expected),
    )


def cases(arch: Arch) -> Iterator[KernelCase]:
    """
    Yield the cases to measure on a device of `arch`: on a CPU every format with a kernel once, and
    small.
    """
    has = rules(arch, "permute_quantize").candidates
    k = _GPU_K if arch.is_gpu else _CPU_K
    for form, walk in _kinds():
        is_first = (form, walk) == (Format.BLOCK128, Walk.SCATTER)
        tokens = (_TOKENS if is_first else _FEW_TOKENS) if arch.is_gpu else (_CPU_TOKENS,)
        for count in tokens:
            problem = PermuteQuantizeProblem(
                layout=Layout.RAGGED, m=count, k=k, top_k=TOP_K, format=form, walk=walk
            )
            has_budget = is_first and count == _TOKENS[-1]
            if has(problem):
                way = "" if walk is Walk.SCATTER else ", without inverse"
                name = f"permute_quantize {form}{way}, {count} tokens K{k}"
                budgets = {COPY: 0.85, INDUCTOR: 1.0} if has_budget else {}
                yield case(name, problem, partial(_operands, problem), budgets)


def _kinds() -> Iterator[tuple[Format, Walk]]:
    """
    Yield formats with and without the inverse permutation, beginning with those that models on
    Hopper use.
    """
    for form in (Format.BLOCK128, Format.ROW, Format.TENSOR, Format.NONE):
        yield form, Walk.SCATTER
        yield form, Walk.GATHER
    yield Format.MXFP8, Walk.GATHER


def permuted(
    x: Tensor, permutation: Tensor, scale: Tensor | None = None, *, top_k: int, form: Format
) -> tuple[Tensor, Tensor | None]:
    """
    Compute `permute_quantize` with torch's operations as models do; a row of no group takes the
    values of the last token. Raises WrongResult for MXFP8, which torch cannot compute.
    """
    if form is Format.MXFP8:
        raise WrongResult("torch has no operation for scales in atoms")
    rows = x[permutation // top_k]
    if form is Format.NONE:
        return rows, None
    if scale is not None:
        return (rows.float() / scale).clamp(-MAX, MAX).to(torch.float8_e4m3fn), scale
    return quantized(rows.float(), 128 if form is Format.BLOCK128 else rows.shape[-1])


def quantized(values: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """
    Return float32 rows as e4m3, and a scale for each `group` columns; the scales of adjacent rows
    are adjacent in memory.
    """
    padded = torch.nn.functional.pad(values, (0, -values.shape[-1] % group))
    blocks = padded.view(*values.shape[:-1], -1, group)
    found = (blocks.abs().amax(-1) / MAX).clamp_min(2.0**-126)
    q = (blocks / found.unsqueeze(-1)).clamp(-MAX, MAX).to(torch.float8_e4m3fn)
    scale = found.transpose(-1, -2).contiguous().transpose(-1, -2)
    return q.view(padded.shape)[..., : values.shape[-1]], scale


def check(found: tuple[Tensor, Tensor | None], *, expected: tuple[Tensor, Tensor | None]) -> None:
    """
    Check that results differ from the expected ones by at most one step of e4m3. Scales of one byte
    are not compared.

    Raises:
        WrongResult: They differ by more.
    """
    for name, mine, right in zip(("q", "scale"), found, expected, strict=True):
        if mine is None or right is None or mine.dim() != right.dim():
            continue
        is_code = right.dtype.itemsize == 1 and right.dtype is not torch.float8_e4m3fn
        if is_code:  # rows of no group have no scales, except padding in atoms
            continue
        off = (mine.float() - right.float()).abs()
        if not bool((off <= _STEP * right.float().abs() + 2.0**-9).all()):
            raise WrongResult(f"{name} differs")
