# SPDX-License-Identifier: Apache-2.0
"""Calls of `route` that put a kernel to the test, and what they must give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from jitgen.config import Arch
from jitgen.config.config import DType
from jitgen.config.operation import Result
from jitgen.config.route import RouteConfig, Scoring
from jitgen.errors import ConfigError
from jitgen.ops.route import reference
from jitgen.ops.solved import Compared, compared, nothing_unreachable, numbers_of, relative_errors
from jitgen.support.frozen import frozen

UNTOUCHED = -77
"""What results hold before."""

TOLERANCE = 2.0**-17
"""Of weights, relative: two exponentials and a sum, each its own way."""

_DOUBT = 3e-6
"""Scores that are nearer than this, relative, may be chosen either way."""

_LANES = 32
_TOKENS = 20
"""Of a CTA at least: their pairs are five warps', for loops over warps take four at a time."""


@frozen
class Sizes:
    """
    The sizes of a call.

    Attributes:
        tokens: T.
        experts: E.
        top_k: k.
        expert_groups, top_groups: As of `jitgen.route`.
        first_expert, local_experts: Likewise.
        num_sms: SMs of the GPU: few, so that a warp gets several tokens.
    """

    tokens: int
    experts: int
    top_k: int
    expert_groups: int = 1
    top_groups: int = 1
    first_expert: int = 0
    local_experts: int = 1
    num_sms: int = 16

    @classmethod
    def of(cls, config: RouteConfig, arch: Arch) -> tuple[Self, ...]:  # noqa: ARG003
        """
        Return sizes that test `config`: as many experts as it takes, more tokens than warps, pairs
        for several of them, and two clusters where there may be several; then experts that fill no
        lane and tokens that fill no warp, of which most experts are not local.
        """
        most, tiling = config.experts, config.tiling
        ctas = tiling.cluster * (2 if tiling.is_spread else 1)
        groups = 4 if config.grouped else 1
        odd = most - (groups if most > _LANES else 2 * groups)
        return (
            cls(
                tokens=ctas * max(tiling.threads // _LANES, _TOKENS) + 5,
                experts=most,
                top_k=8,
                expert_groups=groups,
                top_groups=min(2, groups),
                first_expert=0,
                local_experts=most,
                num_sms=2 * tiling.cluster,
            ),
            cls(
                tokens=13,
                experts=odd,
                top_k=5,
                expert_groups=groups,
                top_groups=min(2, groups),
                first_expert=3,
                local_experts=most // 4 + 1,
                num_sms=2 * tiling.cluster,
            ),
        )

    @classmethod
    def parse(cls, text: str, config: RouteConfig) -> Self:
        """
        Return the sizes that ``T:E:K`` stands for: T tokens to K of E experts, all of them local.

        Raises:
            ConfigError: `text` is something else, or beyond what `config` takes.
        """
        tokens, experts, top_k = numbers_of(text, 3)
        groups = 4 if config.grouped else 1
        is_right = 1 <= top_k <= min(experts // groups, _LANES) and experts % groups == 0
        if not (is_right and experts <= config.experts and tokens):
            raise ConfigError(
                f"problem {text!r} is not T:E:K: tokens, at most {config.experts} experts, a "
                f"multiple of {groups}, and those of a token, at most {_LANES}"
            )
        return cls(
            tokens=tokens,
            experts=experts,
            top_k=top_k,
            expert_groups=groups,
            top_groups=min(2, groups),
            local_experts=experts,
        )

    def __str__(self) -> str:
        """Return the sizes in words."""
        local = f"{self.first_expert} to {self.first_expert + self.local_experts - 1} local"
        groups = f" in {self.expert_groups} groups" if self.expert_groups > 1 else ""
        return (
            f"{self.tokens} tokens to {self.top_k} of {self.experts} experts{groups}, {local}, "
            f"{self.num_sms} SMs"
        )


@frozen
class Solved(Compared):
    """
    A call with its answer.

    Attributes:
        tensors: What kernels take, in order, without the number of SMs.
        given: What is chosen by, or (T, k) experts where they are given.
        named: What `jitgen.route` or `jitgen.sort_pairs` takes besides, by its names.
        is_exact: Whether logits are small integers, of which many are equal.
        found: What the kernel writes, by name.
        expected: What it must be.
    """

    tensors: tuple[Any, ...]
    given: Tensor
    named: dict[str, Any]
    is_exact: bool
    found: dict[str, Tensor]
    expected: dict[str, Tensor]

    def solve(self, function: Callable[..., Any]) -> int:
        """Let what takes the arguments of the public function solve it; return `wrong`."""
        result = function(self.given, **self.named)
        for name, tensor in self.found.items():
            tensor.copy_(getattr(result, name))
        return self.wrong()

    def results(self) -> list[Result]:
        """Return the results, value by value."""
        return [
            _result(name, self.found[name], expected) for name, expected in self.expected.items()
        ]

    def errors(self) -> tuple[float, float]:
        """Return the error of weights in the Frobenius norm, and the largest one, relative."""
        if "topk_weights" not in self.found:
            return 0.0, 0.0
        found, expected = self.found["topk_weights"], self.expected["topk_weights"]
        return relative_errors(found, expected)


def _result(name: str, found: Tensor, expected: Tensor) -> Result:
    """Return a result: weights may be a little off, NaN where they must be."""
    found, expected = (x.reshape(len(x), -1).cpu() for x in (found, expected))
    is_wrong = found != expected
    if found.is_floating_point():
        off = (found - expected).abs() > TOLERANCE * expected.abs()
        is_wrong = torch.where(expected.isnan(), ~found.isnan(), off | found.isnan())
    return compared(name, found, expected, is_wrong)


unreachable = nothing_unreachable


def tile(config: RouteConfig) -> tuple[int, int]:
    """Return rows and columns of what is told of wrong results together."""
    return config.tiling.threads // _LANES, _LANES


def make(
    config: RouteConfig,
    sizes: Sizes,
    *,
    is_exact: bool,
    seed: int = 0,
    device: str = "cpu",
) -> Solved:
    """
    Return a call of `config` with `sizes`, the same for the same `seed` on the same `device`.

    Small integers are often equal; random numbers of whose choice there is doubt are left out.
    """
    chance = torch.Generator(device).manual_seed(seed)
    shape = (sizes.tokens, sizes.experts)
    if config.scoring is Scoring.GIVEN:
        ids = (sizes.tokens, sizes.top_k)
        low, high = -1, sizes.experts + sizes.first_expert + 2
        given = torch.randint(low, high, ids, generator=chance, device=device, dtype=torch.int32)
        return solved(config, sizes, given, None, is_exact=is_exact)
    if is_exact:
        scores = torch.randint(-6, 7, shape, generator=chance, device=device).float()
    else:
        scores = torch.randn(shape, generator=chance, device=device) * 3
    scores = scores.to(torch.bfloat16 if config.scores_dtype is DType.BF16 else torch.float32)
    bias = None
    if config.bias:
        bias = torch.randint(-4, 5, shape[1:], generator=chance, device=device).float() / 8
    return solved(config, sizes, _decided(config, sizes, scores, bias), bias, is_exact=is_exact)


def solved(
    config: RouteConfig, sizes: Sizes, given: Tensor, bias: Tensor | None, *, is_exact: bool = False
) -> Solved:
    """Return the call for logits, or given experts, with its answer."""
    local = {"first_expert": sizes.first_expert, "local_experts": sizes.local_experts}
    expected: dict[str, Tensor]
    if config.scoring is Scoring.GIVEN:
        named: dict[str, Any] = {"experts": sizes.experts, **local}
        expected = reference.sort_pairs(given, **named)._asdict()
        tensors: tuple[Any, ...] = (given,)
        numbers: tuple[Any, ...] = ()
    else:
        named = {
            "top_k": sizes.top_k,
            "scoring": str(config.scoring),
            "bias": bias,
            "expert_groups": sizes.expert_groups,
            "top_groups": sizes.top_groups,
            "renormalize": not is_exact,
            "scale": 2.5,
            **local,
        }
        expected = reference.route(given, **named)._asdict()
        tensors = (given,) if bias is None else (given, bias)
        numbers = (sizes.expert_groups, sizes.top_groups, int(not is_exact), 2.5)
    found = {name: torch.full_like(each, UNTOUCHED) for name, each in expected.items()}
    workspace: tuple[Tensor, ...] = ()
    if config.tiling.is_spread:
        counts = config.tiling.counts(sizes.num_sms)
        workspace = (given.new_empty((counts, sizes.local_experts), dtype=torch.int32),)
    return Solved(
        tensors=(*tensors, *found.values(), *workspace, *numbers, sizes.first_expert),
        given=given,
        named=named,
        is_exact=is_exact,
        found=found,
        expected=expected,
    )


def _decided(config: RouteConfig, sizes: Sizes, scores: Tensor, bias: Tensor | None) -> Tensor:
    """
    Return `scores` with another token's in the place of each whose choice hangs on last bits.

    Equal scores stay equal when they are disturbed, for the disturbance follows from the score.
    """
    of = (sizes.top_k, sizes.expert_groups, sizes.top_groups)
    scoring, groups = str(config.scoring), sizes.expert_groups
    exact = None if bias is None else bias.double()
    choice = reference.chosen(reference.by_rank(scores, scoring, bias, groups), *of)
    ranks = reference.by_rank(scores.double(), scoring, exact, groups)
    doubt = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
    for phase in range(4):
        disturbed = ranks * (1 + _DOUBT * torch.sin(1e6 * ranks + phase))
        doubt |= (reference.chosen(disturbed, *of) != choice).any(-1)
    if doubt.all():
        raise ConfigError(f"no token of {sizes} is beyond doubt: take fewer experts")
    return torch.where(doubt[:, None], scores[~doubt][:1], scores)
