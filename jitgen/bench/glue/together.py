# SPDX-License-Identifier: Apache-2.0
"""
All four steps of a layer one after the other, without the GEMMs between them: the work that a
decoding model adds to its GEMMs. All sides run in a CUDA graph, so the time includes the launches
but no work of the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import jitgen
from jitgen.bench.glue import (
    Operands,
    activation_quantize,
    case,
    combine,
    kernel_of,
    permute_quantize,
    route,
)
from jitgen.bench.glue.permute_quantize import EXPERTS, TOP_K
from jitgen.bench.runner import INDUCTOR, KernelCase
from jitgen.config import Arch, DType, Layout
from jitgen.config.activation_quantize import ActivationQuantizeProblem
from jitgen.config.combine import CombineProblem
from jitgen.config.format import Format
from jitgen.config.permute_quantize import PermuteQuantizeProblem, Walk
from jitgen.config.route import RouteProblem, Scoring
from jitgen.support.frozen import frozen
from jitgen.targets.devices import default_arch

_OF_INDUCTOR = 1.3
"""Least ratio of inductor's time to ours that the four steps must reach at 64 tokens."""

_CHOICE: dict[str, Any] = {
    "top_k": TOP_K,
    "scoring": "sigmoid",
    "expert_groups": 8,
    "top_groups": 4,
    "routed_scaling_factor": 2.5,
}
"""DeepSeek-V3's router."""


@frozen
class Layer:
    """
    The four steps around the GEMMs of DeepSeek-V3's layer.

    Attributes:
        tokens: Number of tokens.
        k: Columns of a token.
        n: Columns between the GEMMs.
    """

    tokens: int
    k: int
    n: int

    def problems(self, arch: Arch) -> tuple[Any, ...]:
        """Return the problems of the four steps."""
        rows = self.tokens * TOP_K
        return (
            RouteProblem(
                m=self.tokens,
                experts=EXPERTS,
                top_k=TOP_K,
                scoring=Scoring.SIGMOID,
                scores_dtype=DType.F32,
                bias=True,
                expert_groups=8,
            ),
            PermuteQuantizeProblem(
                layout=Layout.RAGGED,
                m=self.tokens,
                k=self.k,
                top_k=TOP_K,
                walk=Walk.SCATTER if arch.is_gpu else Walk.GATHER,
            ),
            ActivationQuantizeProblem(layout=Layout.RAGGED, groups=EXPERTS, m=rows, n=self.n),
            CombineProblem(m=self.tokens, n=self.k, top_k=TOP_K, has_shared=True),
        )

    @property
    def traffic_bytes(self) -> int:
        """Bytes that the four steps move."""
        return sum(int(problem.traffic_bytes) for problem in self.problems(Arch.CPU))

    def operands(self, device: str, seed: int) -> Operands:
        """Return a call of all steps, with random values in place of the GEMMs' results."""
        arch = default_arch() if device == "cuda" else Arch.CPU
        chance, rows = torch.Generator(device).manual_seed(seed), self.tokens * TOP_K

        def values(*shape: int) -> Tensor:
            return torch.randn(shape, generator=chance, device=device)

        scores, bias = values(self.tokens, EXPERTS) * 2, values(EXPERTS) / 8
        x, between = values(self.tokens, self.k).bfloat16(), values(rows, 2 * self.n).bfloat16()
        y, shared = values(rows, self.k).bfloat16(), values(self.tokens, self.k).bfloat16()
        arguments = (scores, bias, x, between, y, shared)
        return Operands(
            ours=partial(_ours, *arguments),
            plain=_plain,
            arguments=arguments,
            check=partial(_check, arguments=arguments),
            kernel=", ".join(kernel_of(problem, arch) for problem in self.problems(arch)),
        )


def cases(arch: Arch) -> Iterator[KernelCase]:
    """Yield the cases to measure on a device of `arch`."""
    for tokens in (1, 16, 64, 512) if arch.is_gpu else (16,):
        k, n = (7168, 2048) if arch.is_gpu else (256, 128)
        layer = Layer(tokens=tokens, k=k, n=n)
        budgets = {INDUCTOR: _OF_INDUCTOR} if tokens == 64 else {}
        yield case(f"all four, {tokens} tokens K{k} I{n}", layer, layer.operands, budgets)


def _ours(
    scores: Tensor, bias: Tensor, x: Tensor, between: Tensor, y: Tensor, shared: Tensor
) -> tuple[Any, ...]:
    """Return the results of jitgen's four steps, with the routing that the later ones depend on."""
    routing = jitgen.route(scores, correction_bias=bias, **_CHOICE)
    weights, _, offs, permutation, inverse = routing
    return (
        *(weights, offs, permutation, inverse),
        jitgen.permute_quantize(x, permutation, top_k=TOP_K, offs=offs, inverse=inverse),
        jitgen.activation_quantize(between, offs=offs),
        jitgen.combine(y, inverse, weights, shared=shared),
    )


def _plain(
    scores: Tensor, bias: Tensor, x: Tensor, between: Tensor, y: Tensor, shared: Tensor
) -> tuple[Any, ...]:
    """Return the results of the four steps in torch."""
    weights, _, offs, permutation, inverse = route.routed(scores, bias, **_CHOICE)
    return (
        *(weights, offs, permutation, inverse),
        permute_quantize.permuted(x, permutation, top_k=TOP_K, form=Format.BLOCK128),
        activation_quantize.activated(between),
        combine.summed(y, inverse, weights, shared),
    )


def _check(found: tuple[Any, ...], *, arguments: tuple[Tensor, ...]) -> None:
    """
    Check the results of all steps; those after `route` are checked for the routing that it found.

    Raises:
        WrongResult: A result is wrong.
    """
    _, _, x, between, y, shared = arguments
    weights, offs, permutation, inverse, sent, activated, summed = found
    reference = jitgen.reference
    expected = reference.permute_quantize(x, permutation, top_k=TOP_K, offs=offs)
    permute_quantize.check(sent, expected=expected)
    permute_quantize.check(activated, expected=reference.activation_quantize(between, offs=offs))
    combine.check(summed, expected=reference.combine(y, inverse, weights, shared=shared))
