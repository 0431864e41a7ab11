# SPDX-License-Identifier: Apache-2.0
"""Sample calls of `moe_decode` that test a kernel, with their right results."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from jitgen.config import Arch
from jitgen.config.moe_decode import MOST_PAIRS, MOST_TOKENS, MoeDecodeConfig
from jitgen.ops.edges import around, each_once
from jitgen.ops.moe_decode import reference
from jitgen.ops.moe_decode.exchange import Exchange
from jitgen.ops.sizes import AnySizes, Number
from jitgen.ops.solved import Output, Solved, further_than, nothing_unreachable, untouched
from jitgen.support.frozen import frozen

_BLOCK, _CHUNK = 128, 512
_COLUMNS_OF_CTA = 64
_UNITS = 16  # of 8 columns of h in a block
_FIRST = 2
"""Number of the first expert here."""

_LAUNCHES = 6
"""Number of launches before that of a sample call, as its state says."""


@frozen
class Sizes(AnySizes):
    """
    The sizes of a call.

    Attributes:
        tokens: Number of tokens.
        top_k: Number of experts of a token.
        experts: Number of experts.
        hidden: Columns of a token.
        inner: Columns of h.
    """

    numbers = (
        Number("T", "tokens", most=MOST_TOKENS),
        Number("TOP", "experts of a token", most=MOST_PAIRS // MOST_TOKENS),
        Number("E", "experts"),
        Number("H", "columns of a token", multiple=_BLOCK),
        Number("I", "columns of h", multiple=_BLOCK),
    )
    words = "{tokens} tokens, top {top_k} of {experts} experts, H {hidden}, I {inner}"

    tokens: int
    top_k: int
    experts: int
    hidden: int
    inner: int
    num_sms: int = 1

    @classmethod
    def of(cls, config: MoeDecodeConfig, arch: Arch) -> tuple[Self, ...]:
        """
        Return sizes that test `config`: as many columns of the result as a CTA has sums for, more
        stages than a warpgroup has; two chunks of both products, the last of them short; more
        blocks of tokens than warps load at once, and more pairs than a warp has lanes; units of h,
        of three chunks, that warpgroups share: on some CTAs one less than there are warpgroups; and
        more pieces of h than two for each warpgroup, of experts that other tokens chose.
        """
        wide = 2 * _CHUNK + _BLOCK
        units = (config.tiling.warpgroups - 1) * -(-wide // _COLUMNS_OF_CTA)
        sizes = (
            (3, 2, 5, 2 * _BLOCK, _BLOCK),
            (1, 2, 3, _CHUNK + _BLOCK, _CHUNK + _BLOCK),
            (MOST_TOKENS, 5, 2, (3 * config.tiling.warpgroups // 2 + 1) * _BLOCK, _BLOCK),
            (2, 2, 1, wide, units // _UNITS * _BLOCK),
            (MOST_TOKENS, 1, 3, _BLOCK, (4 * config.tiling.warpgroups + 2) * _BLOCK),
        )
        return tuple(cls.of_numbers(config, *each) for each in sizes)

    @classmethod
    def edges(cls, config: MoeDecodeConfig, arch: Arch) -> tuple[Self, ...]:
        tokens, places, experts, hidden, inner = cls.numbers
        sizes = each_once(
            around(tokens, MOST_TOKENS),
            around(places, 4, MOST_PAIRS // MOST_TOKENS),
            around(experts),
            around(hidden, _CHUNK),
            around(inner, _CHUNK),
        )
        return tuple(cls.of_numbers(config, *each) for each in sizes)

    @classmethod
    def of_numbers(cls, config: MoeDecodeConfig, *numbers: int) -> Self:
        tokens, top_k, experts, hidden, inner = numbers
        return cls(
            tokens=tokens,
            top_k=top_k,
            experts=experts,
            hidden=hidden,
            inner=inner,
            num_sms=-(-hidden // _COLUMNS_OF_CTA),
        )


unreachable = nothing_unreachable


def tile(_config: MoeDecodeConfig) -> tuple[int, int]:
    """Return the rows and columns of the tiles by which wrong results are reported."""
    return 1, 8


def make(
    config: MoeDecodeConfig,
    sizes: Sizes,
    *,
    is_exact: bool,
    seed: int = 0,
    device: str = "cpu",
) -> Solved:
    """
    Return a call with `sizes`, the same for the same `seed` on the same `device`.

    Some chosen experts are on other devices, and a token may have one expert twice. Gates of exact
    calls are so large that silu(gate) equals gate. So every kernel quantises the same h, and
    results differ only by float32 sums. In other calls a value of h may be rounded to the
    neighbouring e4m3 value.
    """
    chance = torch.Generator(device).manual_seed(seed)
    tokens, experts, hidden, inner = sizes.tokens, sizes.experts, sizes.hidden, sizes.inner
    ids = _experts((tokens, sizes.top_k), experts, chance)
    named: dict[str, Any] = {
        "x": _tokens((tokens, hidden), chance, is_exact=is_exact),
        "topk_ids": (ids + _FIRST).int(),
        "topk_weights": torch.rand(ids.shape, generator=chance, device=device) + 0.25,
        **_weights("w13", (experts, 2 * inner, hidden), chance, is_exact=is_exact),
        **_weights("w2", (experts, hidden, inner), chance, is_exact=is_exact),
    }
    if is_exact:
        gates = named["w13"][:, :inner]
        gates.copy_(gates.float().abs())
    wanted = reference.moe_decode(**named, first_expert=_FIRST)
    shared = _shared(config, (tokens, hidden), chance, 1e6 if is_exact else 1.0)
    if shared:
        weights = shared.get("shared_weights", torch.ones(tokens, device=device))
        added = shared["shared"].double() * weights.double()[:, None]
        wanted = wanted._replace(out=wanted.out + added)
    flips = 0.0 if is_exact else wanted.largest * 2.0**-2
    allowed = wanted.out.abs() * 2.0**-7 + wanted.magnitude * 2.0**-11 + flips
    exchange, state = Exchange.of(tokens, sizes.top_k, inner, device)
    exchange.random_(1 << 32, (_LAUNCHES + 1) << 32, generator=chance)  # of launches before
    state += _LAUNCHES << 32
    now = state + (1 << 32)
    expected = wanted.out.bfloat16()
    out = untouched(torch.empty_like(expected))
    return Solved(
        tensors=(*named.values(), exchange, state, *shared.values(), out, _FIRST),
        arguments={},
        is_exact=is_exact,
        outputs=(
            Output(name="out", found=out, expected=expected, differ=further_than(allowed)),
            Output(name="state", found=state.view(torch.int32), expected=now.view(torch.int32)),
        ),
    )


def _experts(shape: tuple[int, int], experts: int, chance: torch.Generator) -> Tensor:
    """
    Return experts of tokens, some of which are on other devices; experts repeat if there are fewer
    than needed. If there are several experts and tokens, only the last pair has the last expert.
    """
    here = torch.arange(-1, experts + 1, device=chance.device)
    every = [
        here[torch.randperm(len(here), generator=chance, device=chance.device)]
        for _ in range(shape[0])
    ]
    times = -(-shape[1] // len(here))
    ids = torch.stack(every).repeat(1, times)[:, : shape[1]].clone()
    if experts > 1 and shape[0] > 1:
        ids[ids == experts - 1] = -1
        ids[-1, -1] = experts - 1
    return ids


def _shared(
    config: MoeDecodeConfig, shape: tuple[int, int], chance: torch.Generator, size: float
) -> dict[str, Tensor]:
    """Return the output of a shared expert, of magnitude `size`, and its weights, by name."""
    found: dict[str, Tensor] = {}
    if config.has_shared:
        rows = torch.randn(shape, generator=chance, device=chance.device)
        found["shared"] = (rows * size).bfloat16()
    if config.is_weighted:
        found["shared_weights"] = torch.rand(shape[0], generator=chance, device=chance.device)
    return found


def _tokens(shape: tuple[int, int], chance: torch.Generator, *, is_exact: bool) -> Tensor:
    """Return tokens; of exact calls each block has the scale 1 / 64 times a power of two."""
    if not is_exact:
        return torch.randn(shape, generator=chance, device=chance.device).bfloat16()
    values = torch.randint(0, 8, shape, generator=chance, device=chance.device).float()
    values[:, ::_BLOCK] = 7
    blocks = (shape[0], shape[1] // _BLOCK)
    powers = torch.randint(-1, 2, blocks, generator=chance, device=chance.device)
    return (values * torch.exp2(powers.float()).repeat_interleave(_BLOCK, 1)).bfloat16()


def _weights(
    name: str, shape: tuple[int, int, int], chance: torch.Generator, *, is_exact: bool
) -> dict[str, Tensor]:
    """
    Return weights and their scales by name; those of exact calls are small integers and powers of
    two.
    """
    blocks = (shape[0], shape[1] // _BLOCK, shape[2] // _BLOCK)
    device = chance.device
    if is_exact:
        values = torch.randint(-3, 4, shape, generator=chance, device=device).float()
        scale = torch.exp2(torch.randint(-1, 2, blocks, generator=chance, device=device).float())
    else:
        values = torch.randn(shape, generator=chance, device=device) * 8
        scale = torch.rand(blocks, generator=chance, device=device) / 64 + 1 / 256
    return {name: values.to(torch.float8_e4m3fn), f"{name}_scale": scale}
