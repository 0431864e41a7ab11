# SPDX-License-Identifier: Apache-2.0
"""
Device time of the second GEMM of an MoE layer in two ways: `moe_fc2_dense`, and `grouped_gemm` over
the rows of each expert with the sum over the rows of each token.

The layer has 256 experts of 256 columns, 8 for each token, and 7168 columns of output. Both begin
with quantised activations: the dense way with those of all experts, the grouped way with the routed
rows in the order of their experts. Gathering these rows is not timed. In addition to the kernel
that the selector chooses, every other candidate that is compiled is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

import jitgen
from jitgen.autotune.measure.clock import Call
from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench.runner import NEEDED, KernelCase, KernelSuite, Ratio, Ready, Side, device_of
from jitgen.config import Arch
from jitgen.config.moe_fc2_dense import TOP_K, MoEFc2DenseConfig, MoEFc2DenseProblem
from jitgen.formats.block128 import kernel_layout
from jitgen.ops.moe_fc2_dense import samples
from jitgen.ops.moe_fc2_dense.ways import ways
from jitgen.ops.sums import ACCUMULATOR_BITS, SolvedSums

DENSE, GROUPED, COMBINE = "dense", "grouped", "grouped and combine"

TENSOR_CORE_BITS = 12
"""Bits that Hopper's tensor cores keep of a sum of FP8 products, at least."""

LARGEST_ERROR = 2.0**-6
"""
Largest error of `grouped_gemm` and combine, relative to the largest result: the rows are rounded to
bf16 in between.
"""

_GPU_TOKENS, _CPU_TOKENS = (1, 8, 16, 32, 64, 96, 128, 192, 256, 288, 384), (8,)
_GPU_SIZES, _CPU_SIZES = (256, 7168, 256, TOP_K), (6, 128, 128, 2)


def case(tokens: int, experts: int, n: int, k: int, top_k: int) -> KernelCase:
    """
    Return the case of one problem, called for example ``32 tokens, 8 of 256 experts, N7168 I256``.

    Args:
        tokens: Rows of the output.
        experts: Number of experts, each with a matrix of weights.
        n: Columns of the output.
        k: Columns of an expert's activations.
        top_k: Number of experts of a token.
    """
    name = f"{tokens} tokens, {top_k} of {experts} experts, N{n} I{k}"
    problem = MoEFc2DenseProblem(groups=experts, m=tokens, n=n, k=k, top_k=top_k)
    sizes = samples.Sizes(tokens=tokens, experts=experts, n=n, k=k, top_k=top_k)
    return KernelCase(name=name, problem=problem, sides=partial(_sides, name, sizes, problem))


def cases(arch: Arch) -> Iterator[KernelCase]:
    """Yield the cases to measure on a device of `arch`: on a CPU one small case."""
    sizes = _GPU_SIZES if arch.is_gpu else _CPU_SIZES
    for tokens in _GPU_TOKENS if arch.is_gpu else _CPU_TOKENS:
        found = case(tokens, *sizes)
        yield replace(found, ratios=(_predicted(found.problem, arch),))


def _predicted(problem: MoEFc2DenseProblem, arch: Arch) -> Ratio:
    """
    Return the ratio of the time of the grouped GEMM with the sum to the dense GEMM's, with the
    predicted times as detail.
    """
    found = ways(problem, arch)
    return Ratio(
        what=f"{COMBINE} over {DENSE}",
        fast=DENSE,
        slow=COMBINE,
        detail=f"predicted {found.dense_us:.1f} us for {DENSE}, {found.grouped_us:.1f} for "
        f"{GROUPED}, {found.combine_us:.1f} to combine",
    )


def _sides(
    name: str, sizes: samples.Sizes, problem: MoEFc2DenseProblem, arch: Arch
) -> Iterator[Side]:
    """Yield the dense GEMM, the grouped one without and with the sum, and other dense ones."""
    make = partial(samples.of_sizes, samples.BLOCKS, sizes, has_idle=False, device=device_of(arch))
    solved = make(is_exact=False)
    chosen = jitgen.select(replace(problem, top_k=TOP_K), arch)  # no call says its top_k

    def dense(config: MoEFc2DenseConfig | None) -> Ready:
        def check() -> None:
            for each in (make(is_exact=True), solved) if config is None else (solved,):
                _check(each, name, config)

        return Ready(
            calls=(partial(jitgen.moe_fc2_dense, **solved.arguments, config=config),),
            check=check,
            kernel=(config or chosen.config).name(arch),
        )

    multiply, combine, check = _grouped(solved, name)
    yield Side(name=DENSE, prepare=partial(dense, None), tolerated=NEEDED)
    yield Side.of(GROUPED, multiply, lambda _: None, tolerated=NEEDED)
    yield Side.of(COMBINE, combine, check, tolerated=NEEDED)
    for other in (cast("MoEFc2DenseConfig", each.config) for each in chosen.candidates[1:]):
        yield Side(name=f"{DENSE} {other.short}", prepare=partial(dense, other))


def _check(solved: SolvedSums, name: str, config: MoEFc2DenseConfig | None) -> None:
    """
    Check a kernel, by default the selector's choice; raise WrongResult if it gives wrong values.
    """
    solved.out.fill_(float("nan"))
    jitgen.moe_fc2_dense(**solved.arguments, config=config)
    bits = TENSOR_CORE_BITS if solved.out.is_cuda else ACCUMULATOR_BITS
    if wrong := solved.wrong(bits):
        raise WrongResult(f"the kernel for {name} gives {wrong:,} wrong values")


def _grouped(
    solved: SolvedSums, name: str
) -> tuple[Call, Callable[[], Tensor], Callable[[Tensor], None]]:
    """
    Return the grouped GEMM over the routed rows, the same with the sum over experts, and a function
    that raises WrongResult if that sum is wrong.
    """
    a, b, a_scale, b_scale, alpha, _ = solved.tensors
    rows, n = solved.out.shape
    routed = alpha != 0
    experts, tokens = routed.T.nonzero().unbind(1)  # in the order of experts
    offs = routed.sum(0).cumsum(0).int()
    row_scale = kernel_layout(a_scale[experts, tokens].contiguous())
    each = (a.view(torch.uint8)[tokens, experts].view(a.dtype), b, row_scale, b_scale)
    of_token = tokens.argsort(stable=True)  # rows of a token, side by side
    weights = alpha[tokens, experts][of_token].view(rows, 1, -1).to(solved.out.dtype)
    y = solved.out.new_empty((len(tokens), n))
    out = torch.empty_like(solved.out)
    multiply = partial(jitgen.grouped_gemm, *each, offs=offs, out=y)

    def combine() -> Tensor:
        multiply()
        sums = torch.bmm(weights, y[of_token].view(rows, -1, n))
        return out.copy_(sums.view_as(out))

    def check(found: Tensor) -> None:
        expected = solved.expected
        if (found.double() - expected).abs().max() > LARGEST_ERROR * expected.abs().max():
            raise WrongResult(f"the grouped way for {name} gives another result")

    return multiply, combine, check


SUITE = KernelSuite(name="fc2", cases=cases, unit="us")
rows = SUITE.rows
