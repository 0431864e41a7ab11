# SPDX-License-Identifier: Apache-2.0
"""
`route` and `sort_pairs`: from the router's logits to pairs sorted by expert, with the sizes of
models.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import jitgen
from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench.glue import Operands, case, others
from jitgen.bench.runner import COPY, INDUCTOR, KernelCase
from jitgen.config import Arch, DType
from jitgen.config.route import RouteProblem, Scoring
from jitgen.formats.protocol import TORCH
from jitgen.ops.route.reference import scored
from jitgen.ops.route.results import Routing

LARGEST_ERROR = 2.0**-10
"""Largest relative error of weights: inductor's exponential differs."""

_TOKENS, _FEW_TOKENS, _CPU_TOKENS = (1, 16, 64, 512, 4096, 16_384), (64, 4096), 16


def operands(
    problem: RouteProblem, device: str, seed: int, *, top_groups: int = 1, scale: float = 1.0
) -> Operands:
    """
    Return a call with random logits, or random experts.

    Args:
        problem: The router.
        device: Device of the operands.
        seed: The same one gives the same values.
        top_groups: Groups of experts that are kept.
        scale: Factor of the weights.
    """
    chance = torch.Generator(device).manual_seed(seed)
    shape = (problem.m, problem.experts)
    logits = torch.randn(shape, generator=chance, device=device) * 2
    local: dict[str, Any] = {"local_experts": problem.sorted_experts}
    if problem.scoring is Scoring.GIVEN:
        ids = logits.topk(problem.top_k).indices.to(torch.int32)
        sort = partial(jitgen.sort_pairs, ids, experts=problem.experts, **local)
        return Operands(
            ours=sort,
            others=others(problem, sort),
            plain=partial(_sorted, experts=problem.experts),
            arguments=(ids,),
            check=lambda found: _check_sorting(found, ids),
        )
    scores = logits.to(TORCH[problem.scores_dtype or DType.F32])
    bias = torch.randn(shape[1], generator=chance, device=device) / 8 if problem.bias else None
    choice: dict[str, Any] = {
        "top_k": problem.top_k,
        "scoring": str(problem.scoring),
        "expert_groups": problem.expert_groups,
        "top_groups": top_groups,
        "routed_scaling_factor": scale,
    }
    expected = jitgen.reference.route(scores, correction_bias=bias, **choice, **local)
    ours = partial(jitgen.route, scores, correction_bias=bias, **choice, **local)
    return Operands(
        ours=ours,
        others=others(problem, ours),
        plain=partial(routed, **choice),
        arguments=(scores,) if bias is None else (scores, bias),
        check=lambda found: _check(found, expected),
    )


def cases(arch: Arch) -> Iterator[KernelCase]:
    """Yield the cases to measure on a device of `arch`: on a CPU each model once, few tokens."""
    deepseek: dict[str, Any] = {
        "m": 1,
        "experts": 256,
        "top_k": 8,
        "scoring": "sigmoid",
        "scores_dtype": "f32",
        "bias": True,
        "expert_groups": 8,
    }
    kept: dict[str, Any] = {"top_groups": 4, "scale": 2.5}
    one_of_eight = RouteProblem(**deepseek, local_experts=32)
    given = RouteProblem(m=1, experts=256, top_k=8, scoring=Scoring.GIVEN)
    for model, router, options in (
        ("DeepSeek-V3", RouteProblem(**deepseek), kept),
        ("DeepSeek-V3 with 32 of its experts", one_of_eight, kept),
        ("Qwen3", RouteProblem(m=1, experts=128, top_k=8), {}),
        ("Mixtral", RouteProblem(m=1, experts=8, top_k=2), {}),
        ("gpt-oss", RouteProblem(m=1, experts=128, top_k=4), {}),
        ("8 of 256", given, {}),
    ):
        is_first = model == "DeepSeek-V3"
        op = "sort_pairs" if router is given else "route"
        tokens = (_TOKENS if is_first else _FEW_TOKENS) if arch.is_gpu else (_CPU_TOKENS,)
        for count in tokens:
            problem = router.with_mean(count)
            budgets = {COPY: 0.85, INDUCTOR: 1.0} if is_first and count == 4096 else {}
            calls = partial(operands, problem, **options)
            yield case(f"{op} {model}, {count} tokens", problem, calls, budgets)


def routed(
    scores: Tensor,
    bias: Tensor | None = None,
    *,
    top_k: int,
    scoring: str,
    expert_groups: int,
    top_groups: int,
    routed_scaling_factor: float,
) -> tuple[Tensor, ...]:
    """
    Compute `route` with torch's operations as models do. Torch does not define which of several
    equal scores is chosen.
    """
    values = scored(scores, scoring)
    ranks = values if bias is None else values + bias
    if expert_groups > 1:
        groups = ranks.view(len(ranks), expert_groups, -1)
        kept = groups.topk(2, dim=-1).values.sum(-1).topk(top_groups, dim=-1, sorted=False).indices
        mask = torch.zeros(groups.shape[:2], dtype=torch.bool, device=ranks.device)
        mask = mask.scatter(1, kept, True).unsqueeze(-1)
        ranks = groups.masked_fill(~mask, float("-inf")).view(ranks.shape)
    ids = ranks.topk(top_k, dim=-1).indices
    weights = values.gather(1, ids)
    weights = weights / weights.sum(-1, keepdim=True) * routed_scaling_factor
    ids = ids.to(torch.int32)
    return weights, ids, *_sorted(ids, experts=scores.shape[1])


def _sorted(ids: Tensor, *, experts: int) -> tuple[Tensor, ...]:
    """
    Sort pairs with torch's operations as `sort_pairs` does if all experts are local, without
    waiting for the device.
    """
    flat = ids.flatten()
    permutation = flat.argsort(stable=True, dim=0)
    places = torch.arange(len(flat), device=ids.device, dtype=torch.int32)
    inverse = torch.empty_like(places).scatter(0, permutation, places)
    counts = torch.zeros(experts, dtype=torch.int32, device=ids.device)
    counts = counts.scatter_add(0, flat.long(), torch.ones_like(places))
    offs = counts.cumsum(0, dtype=torch.int32)
    return offs, permutation.to(torch.int32), inverse.view(ids.shape)


def _check(found: Any, expected: Routing) -> None:
    """Check that the chosen experts are as good as the expected ones, and that pairs are sorted."""
    weights, ids = found[0], found[1]
    error = (weights - expected.topk_weights).abs().max()
    if not error <= LARGEST_ERROR * expected.topk_weights.abs().max():
        raise WrongResult(f"weights differ by {float(error):.3g}")
    _check_sorting(found[2:], ids)


def _check_sorting(found: Any, ids: Tensor) -> None:
    """
    Check the sorting `found` against the reference's for `ids`; the experts that `found` has
    offsets for are local.
    """
    local = len(found[0])
    expected = jitgen.reference.sort_pairs(ids, experts=local, local_experts=local)
    for name, mine, right in zip(expected._fields, found, expected, strict=True):
        if not torch.equal(mine, right):
            raise WrongResult(f"{name} differs")
