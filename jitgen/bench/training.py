# SPDX-License-Identifier: Apache-2.0
"""
Device time of a training step (forward and backward) of a layer of bfloat16 experts, compared with
torch's grouped products, eager and compiled by inductor.

A step computes the gradients of tokens, of the weights of pairs and of both matrices. Each is
compared with autograd of float32 torch before a side is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn import functional

import jitgen
from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench.report import OURS
from jitgen.bench.runner import INDUCTOR, NEEDED, KernelCase, Ratio, Ready, Side, device_of
from jitgen.config import Arch
from jitgen.layer import reference
from jitgen.plans.plan import Plan
from jitgen.support.frozen import frozen

EAGER = "torch._grouped_mm"

NEAR = 0.02
"""Largest relative change of a result's norm by the rounding of bfloat16 in a step."""

NAMES = ("out", "x", "topk_weights", "w13", "w2")
"""The result of a step, then the tensors whose gradients it computes."""

Layer = Callable[..., Tensor]


@frozen
class Case:
    """
    Sizes of one measurement.

    Attributes:
        tokens: Number of tokens.
        experts: Number of experts.
        top_k: Experts of a token.
        hidden: Columns of a token.
        intermediate: Columns between the products.
    """

    tokens: int
    experts: int
    top_k: int
    hidden: int
    intermediate: int

    def __str__(self) -> str:
        """Return the case as tables show it: ``step 4096 tokens 128 experts top 8 H2048 I768``."""
        experts = f"{self.experts} experts top {self.top_k}"
        return f"step {self.tokens} tokens {experts} H{self.hidden} I{self.intermediate}"

    @property
    def flop(self) -> float:
        """Operations of the products: each is computed once forward and twice backward."""
        return 3 * 2.0 * self.tokens * self.top_k * self.hidden * 3 * self.intermediate

    @property
    def config(self) -> jitgen.MoEConfig:
        """The config of the layer."""
        return jitgen.MoEConfig(
            hidden=self.hidden,
            intermediate=self.intermediate,
            experts=self.experts,
            top_k=self.top_k,
        )

    def plan(self, arch: Arch) -> Plan:
        """Return the kernels of a step on a target."""
        shape = (self.experts, 2 * self.intermediate, self.hidden)
        w13 = torch.empty(shape, dtype=torch.bfloat16, device="meta")
        w2 = w13.new_empty((self.experts, self.hidden, self.intermediate))
        layer = jitgen.MoELayer(self.config, jitgen.ExpertWeights(w13=w13, w2=w2))
        return layer.plan(self.tokens, arch, name="training", trains=True)


CASES = tuple(
    Case(tokens=tokens, experts=experts, top_k=top_k, hidden=hidden, intermediate=intermediate)
    for experts, top_k, hidden, intermediate in (
        (32, 4, 2880, 2880),  # gpt-oss-20b's
        (128, 8, 2048, 768),  # Qwen3-30B-A3B's
    )
    for tokens in (4096, 16384)
)


class Operands:
    """
    The operands of a step.

    Args:
        case: The sizes.
        device: Device of the operands, by torch's name.
    """

    def __init__(self, case: Case, device: str) -> None:
        chance = torch.Generator(device).manual_seed(0)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=chance, device=device)

        self.config = case.config
        hidden, inner, experts = case.hidden, case.intermediate, case.experts
        self.dout = draw(case.tokens, hidden).bfloat16()
        weights, ids = draw(case.tokens, experts).softmax(-1).topk(case.top_k)
        self.topk_ids = ids.int()
        self.leaves = [
            draw(case.tokens, hidden).bfloat16(),
            weights,
            (draw(experts, 2 * inner, hidden) / hidden**0.5).bfloat16(),
            (draw(experts, hidden, inner) / inner**0.5).bfloat16(),
        ]

    @cached_property
    def right(self) -> tuple[Tensor, ...]:
        """Result and gradients by autograd of float32 torch."""

        def layer(x: Tensor, weights: Tensor, w13: Tensor, w2: Tensor, ids: Tensor) -> Tensor:
            experts = jitgen.ExpertWeights(w13=w13, w2=w2)
            return reference.moe(x, experts, weights, ids, self.config)

        return self.step(layer)

    def step(self, layer: Layer) -> tuple[Tensor, ...]:
        """Run a layer forward and backward; return its result and the gradients."""
        leaves = [each.detach().requires_grad_() for each in self.leaves]
        out = layer(*leaves, self.topk_ids)
        gradients = torch.autograd.grad(out, leaves, self.dout.to(out.dtype))
        return out.detach(), *gradients

    def check(self, who: str, found: Sequence[Tensor]) -> None:
        """
        Check a result and all gradients.

        Raises:
            WrongResult: One of them is wrong.
        """
        for name, mine, right in zip(NAMES, found, self.right, strict=True):
            error = reference.relative_error(mine, right)
            if not error <= NEAR:  # a NaN is not less
                raise WrongResult(f"{who}: {name} is off by {error:.3f} of its norm")


def ours(x: Tensor, weights: Tensor, w13: Tensor, w2: Tensor, ids: Tensor) -> Tensor:
    """Compute the layer by jitgen."""
    return jitgen.moe(x, w13, w2, weights, ids)


def theirs(x: Tensor, weights: Tensor, w13: Tensor, w2: Tensor, ids: Tensor) -> Tensor:
    """Compute the layer by torch's grouped products, as transformers does."""
    pairs = ids.flatten()
    order = pairs.argsort(stable=True)
    inverse = torch.empty_like(order).scatter_(
        0, order, torch.arange(len(order), device=order.device)
    )
    experts = torch.arange(w13.shape[0], device=ids.device, dtype=ids.dtype)
    offs = torch.searchsorted(pairs[order], experts, right=True, out_int32=True)
    rows = x[order // ids.shape[1]]
    gate, up = torch._grouped_mm(rows, w13.transpose(1, 2), offs=offs).chunk(2, -1)
    y = torch._grouped_mm(functional.silu(gate) * up, w2.transpose(1, 2), offs=offs)
    weighted = y * weights.flatten()[order, None]
    return weighted[inverse].view(*ids.shape, -1).sum(1).to(x.dtype)


def steps(cases: Sequence[Case] = CASES) -> Iterator[KernelCase]:
    """Yield the measurement of a step for each case."""
    for case in cases:
        yield KernelCase(
            name=str(case),
            problem=None,
            sides=partial(_sides, case),
            ratios=tuple(
                Ratio(what=f"{other} over {OURS}", fast=OURS, slow=other, budget=1.0)
                for other in (EAGER, INDUCTOR)
            ),
            flop=case.flop,
        )


def _sides(case: Case, arch: Arch) -> Iterator[Side]:
    """Yield ours, torch's, and torch's compiled by inductor."""
    operands = Operands(case, device_of(arch))

    def side(name: str, layer: Layer) -> Side:
        call = partial(operands.step, layer)
        ready = Ready(calls=(call,), check=lambda: operands.check(name, call()))
        return Side(name=name, prepare=lambda: ready)

    yield replace(side(OURS, ours), tolerated=NEEDED)
    yield side(EAGER, theirs)
    yield side(INDUCTOR, torch.compile(theirs, dynamic=False))
