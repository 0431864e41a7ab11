# SPDX-License-Identifier: Apache-2.0
"""Sample calls of `route` that test a kernel, with their right results."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from jitgen.config import Arch
from jitgen.config.config import DType
from jitgen.config.route import RouteConfig, Scoring
from jitgen.errors import ConfigError
from jitgen.formats.protocol import TORCH
from jitgen.ops.edges import around, in_pairs
from jitgen.ops.route import reference
from jitgen.ops.sizes import AnySizes, Number
from jitgen.ops.solved import (
    Output,
    Solved,
    bits_differ,
    further_than,
    nothing_unreachable,
    untouched,
)
from jitgen.support.frozen import frozen

TOLERANCE = 2.0**-17
"""Largest relative error of weights, which are computed from two exponentials and a sum."""

_DOUBT = 3e-6
"""Relative difference of scores below which either expert may be chosen."""

SOFTCAP = 4.0
"""Bound of the logits in calls with a softcap; most random logits are close to it."""

_IDS = 50
"""Token ids that the table has experts for."""

_LANES = 32
_TOKENS = 20
"""
Fewest tokens of a CTA: their pairs fill five warps, one more than a loop over warps takes at a
time.
"""


@frozen
class Sizes(AnySizes):
    """
    The sizes of a call.

    Attributes:
        tokens: T.
        experts: E.
        top_k: k.
        expert_groups, top_groups: As of `jitgen.route`.
        first_expert, local_experts: Likewise.
    """

    numbers = (
        Number("T", "tokens"),
        Number("E", "experts"),
        Number("K", "experts of a token", most=_LANES),
    )

    tokens: int
    experts: int
    top_k: int
    expert_groups: int = 1
    top_groups: int = 1
    first_expert: int = 0
    local_experts: int = 1
    num_sms: int = 16

    @classmethod
    def of(cls, config: RouteConfig, arch: Arch) -> tuple[Self, ...]:
        """
        Return sizes that test `config`: first the most experts that it allows, more tokens than
        warps, pairs for several warps, and two clusters if several are allowed; then few experts
        and few tokens, which leave lanes and warps idle, and most of these experts are not local.
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
    def edges(cls, config: RouteConfig, arch: Arch) -> tuple[Self, ...]:
        tiling, most = config.tiling, config.experts
        tokens, experts, places = cls.numbers
        sizes = in_pairs(
            around(tokens, tiling.threads // _LANES, _TOKENS),
            tuple(each for each in around(experts, _LANES, most) if each <= most),
            around(places, 8, _LANES),
            ((1, 1), (2, 1), (4, 3), (8, 2)) if config.grouped else ((1, 1),),
            ((0, most), (1, 1), (most - 1, 1), (3, most // 2)),
        )
        return tuple(cls._nearest(2 * tiling.cluster, *each) for each in sizes)

    @classmethod
    def _nearest(
        cls, num_sms: int, tokens: int, experts: int, top_k: int, of: tuple[int, int], *local: Any
    ) -> Self:
        """
        Return the nearest sizes that are possible: at least as many experts as `top_k` and the
        groups need.
        """
        groups, top = of
        each = max(2 if groups > 1 else 1, experts // groups)
        ((first, count),) = local
        first = min(first, groups * each - 1)
        return cls(
            tokens=tokens,
            experts=groups * each,
            top_k=min(top_k, top * each),
            expert_groups=groups,
            top_groups=top,
            first_expert=first,
            local_experts=min(count, groups * each - first),
            num_sms=num_sms,
        )

    @classmethod
    def of_numbers(cls, config: RouteConfig, *numbers: int) -> Self:
        """
        Return sizes where all experts are local.

        Raises:
            ConfigError: They are beyond the limits of `config`.
        """
        tokens, experts, top_k = numbers
        groups = 4 if config.grouped else 1
        if experts > config.experts or experts % groups or top_k > experts // groups:
            raise ConfigError(
                f"problem {tokens}:{experts}:{top_k}: at most {config.experts} experts, a multiple "
                f"of {groups}, and as many for a token as a group has"
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
        """Return the sizes as text."""
        local = f"{self.first_expert} to {self.first_expert + self.local_experts - 1} local"
        groups = f" in {self.expert_groups} groups" if self.expert_groups > 1 else ""
        return (
            f"{self.tokens} tokens to {self.top_k} of {self.experts} experts{groups}, {local}, "
            f"{self.num_sms} SMs"
        )


unreachable = nothing_unreachable


def tile(config: RouteConfig) -> tuple[int, int]:
    """Return the rows and columns of the tiles by which wrong results are reported."""
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

    Logits of exact calls are small integers, many of them equal. Tokens whose choice depends on
    rounding get the logits of another token. If that holds for every token, logits are -1, 0 and 1,
    whose scores are either equal or very different.
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
    scores = scores.to(TORCH[config.scores_dtype or DType.F32])
    if config.hashed:
        return solved(config, sizes, scores, None, is_exact=is_exact, chance=chance)
    bias = None
    if config.bias:
        bias = torch.randint(-4, 5, shape[1:], generator=chance, device=device).float() / 8
    decided = _decided(config, sizes, scores, bias)
    if decided is None:
        plain = torch.randint(-1, 2, shape, generator=chance, device=device).to(scores.dtype)
        decided = _decided(config, sizes, plain, bias)
    if decided is None:
        raise ConfigError(f"no token of {sizes} is beyond doubt: take fewer experts")
    return solved(config, sizes, decided, bias, is_exact=is_exact)


def solved(
    config: RouteConfig,
    sizes: Sizes,
    given: Tensor,
    bias: Tensor | None,
    *,
    is_exact: bool = False,
    chance: torch.Generator | None = None,
) -> Solved:
    """
    Return the call for logits, or for given experts, with its expected results. `chance` draws a
    table of experts and token ids; some of both are out of range.
    """
    local = {"first_expert": sizes.first_expert, "local_experts": sizes.local_experts}
    expected: dict[str, Tensor]
    loads: list[Output] = []
    if config.scoring is Scoring.GIVEN:
        named: dict[str, Any] = {"topk_ids": given, "experts": sizes.experts, **local}
        expected = reference.sort_pairs(**named)._asdict()
        tensors: tuple[Any, ...] = (given,)
        numbers: tuple[Any, ...] = ()
    else:
        named = {
            "logits": given,
            "top_k": sizes.top_k,
            "scoring": str(config.scoring),
            "correction_bias": bias,
            "expert_groups": sizes.expert_groups,
            "top_groups": sizes.top_groups,
            "renormalize": not is_exact,
            "routed_scaling_factor": 2.5,
            "group_scoring": str(config.group_scoring),
            "softcap": SOFTCAP if config.softcap else None,
            **local,
        }
        if config.hashed:
            kind: dict[str, Any] = {"generator": chance, "device": given.device}
            size = (_IDS, sizes.top_k)
            table = torch.randint(-1, sizes.experts + 1, size, dtype=torch.int32, **kind)
            ids = torch.randint(-1, _IDS + 1, (len(given),), dtype=torch.int32, **kind)
            named |= {"token_ids": ids, "hash_table": table}
        if config.load:  # of earlier calls
            before = torch.arange(sizes.experts, dtype=torch.int32, device=given.device)
            named["load"], after = before.clone(), before.clone()
            expected = reference.route(**named | {"load": after})._asdict()
            loads = [Output(name="load", found=named["load"], expected=after)]
        else:
            expected = reference.route(**named)._asdict()
        tensors = (given,) if bias is None else (given, bias)
        tensors = (given, ids, table) if config.hashed else tensors
        numbers = (sizes.expert_groups, sizes.top_groups, int(not is_exact), 2.5)
        numbers += (SOFTCAP,) if config.softcap else ()
    outputs = tuple(
        Output(
            name=name,
            found=untouched(torch.empty_like(each)),
            expected=each,
            differ=(
                further_than(TOLERANCE * each.abs()) if each.is_floating_point() else bits_differ
            ),
        )
        for name, each in expected.items()
    )
    outputs = (*outputs, *loads)
    workspace: tuple[Tensor, ...] = ()
    if config.tiling.is_spread:
        counts = config.tiling.counts(sizes.num_sms)
        counters = given.new_empty((counts, sizes.local_experts), dtype=torch.int32)
        workspace = (untouched(counters),)
    found = (each.found for each in outputs)
    return Solved(
        tensors=(*tensors, *found, *workspace, *numbers, sizes.first_expert),
        arguments=named,
        is_exact=is_exact,
        outputs=outputs,
    )


def _decided(
    config: RouteConfig, sizes: Sizes, scores: Tensor, bias: Tensor | None
) -> Tensor | None:
    """
    Return `scores` in which a token whose choice depends on the last bits has another token's
    scores; None if every token's does.

    Equal scores stay equal when they are disturbed, because the disturbance is a function of the
    score.
    """
    of = (sizes.top_k, sizes.expert_groups, sizes.top_groups, str(config.group_scoring))
    given, scores = scores, reference.softcapped(scores, SOFTCAP if config.softcap else None)
    scoring, groups = str(config.scoring), sizes.expert_groups
    exact = None if bias is None else bias.double()
    choice = reference.chosen(reference.by_rank(scores, scoring, bias, groups), *of)
    exactly = reference.softcapped(given.double(), SOFTCAP if config.softcap else None)
    ranks = reference.by_rank(exactly, scoring, exact, groups)
    doubt = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
    for phase in range(4):
        disturbed = ranks * (1 + _DOUBT * torch.sin(1e6 * ranks + phase))
        doubt |= (reference.chosen(disturbed, *of) != choice).any(-1)
    if doubt.all():
        return None
    return torch.where(doubt[:, None], given[~doubt][:1], given)
