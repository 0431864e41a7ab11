# SPDX-License-Identifier: Apache-2.0
"""Sample calls of `activation_quantize` that test a kernel, with their right results."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from jitgen.config import Arch
from jitgen.config.activation_quantize import Activation, ActivationQuantizeConfig
from jitgen.config.format import Format
from jitgen.config.layouts import ARGUMENT
from jitgen.ops.activation_quantize import reference
from jitgen.ops.activation_quantize.dispatch import new_tensors
from jitgen.ops.edges import around, in_pairs, rows_around
from jitgen.ops.quantize.samples import unusual
from jitgen.ops.sizes import GROUPS, ROWS, AnySizes, Number, grouped_rows, unequal_rows
from jitgen.ops.solved import (
    Output,
    Solved,
    bits_differ,
    further_than,
    nothing_unreachable,
    untouched,
)
from jitgen.ops.tensors import owned_rows
from jitgen.support.frozen import frozen

_NUMBERS: dict[Activation, tuple[float, ...]] = {
    Activation.SWIGLU_OAI: (7.0, 1.702),
    Activation.SWIGLU_CLAMP: (30.0,),
    Activation.SWIGLU_BIAS: (30.0, 1.25, 0.5),
    Activation.SWIGLU_STEP: (30.0,),
    Activation.SITU: (4.0, 25.0),
}
"""
The numbers of each activation in samples: those of gpt-oss, and a limit above which silu(gate)
equals gate in float32. So exact problems have the same bits, even if exp() is rounded differently.
"""

_NUMBERS_OF_RANDOM = {
    **_NUMBERS,
    Activation.SWIGLU_CLAMP: (2.0,),
    Activation.SWIGLU_BIAS: (2.0, 1.25, 0.5),
    Activation.SWIGLU_STEP: (2.0,),
}
"""
The limit in random problems: below it, silu(gate) differs from gate, so the order of limit and silu
matters.
"""

_WARP = 32
_VECTOR = 8


def numbers_of(activation: Activation, *, is_exact: bool = True) -> dict[str, float]:
    """Return the numbers of an activation in samples, by the names of the arguments."""
    numbers = _NUMBERS if is_exact else _NUMBERS_OF_RANDOM
    return dict(zip(activation.numbers, numbers.get(activation, ()), strict=True))


@frozen
class Sizes(AnySizes):
    """
    The sizes of a call.

    Attributes:
        rows: Rows of each group.
        n: Columns of the result.
    """

    numbers = (GROUPS, ROWS, Number("I", "I", multiple=_VECTOR))
    words = "rows {rows}, I {n}"

    rows: tuple[int, ...]
    n: int
    num_sms: int = 1

    @classmethod
    def of(cls, config: ActivationQuantizeConfig, arch: Arch) -> tuple[Self, ...]:
        """
        Return sizes that test `config`: more groups than lanes, which are empty, tiny, one row
        short of a tile and one row beyond it, and more columns than the threads of a CTA hold, with
        a tail of one vector.
        """
        tiling = config.tiling
        columns = _VECTOR * tiling.threads * tiling.held
        wide = cls(
            rows=(3, 0, tiling.rows + 1, *[0] * _WARP, tiling.rows - 1, 2 * tiling.rows),
            n=columns + 128 + _VECTOR if config.scale_granularity is Format.ROW else 520,
        )
        return (wide,)

    @classmethod
    def edges(cls, config: ActivationQuantizeConfig, arch: Arch) -> tuple[Self, ...]:
        tiling, lanes = config.tiling, _VECTOR * _WARP
        per_cta = _VECTOR * tiling.threads * tiling.held
        is_row = config.scale_granularity is Format.ROW
        columns = around(cls.numbers[-1], lanes, per_cta if is_row else 3 * lanes)
        return tuple(cls(rows=rows, n=n) for rows, n in in_pairs(rows_around(tiling.rows), columns))

    @classmethod
    def of_numbers(cls, config: ActivationQuantizeConfig, *numbers: int) -> Self:
        groups, m, n = numbers
        return cls(rows=unequal_rows(m, groups), n=n)


def joined(config: ActivationQuantizeConfig, gate: Tensor, up: Tensor) -> Tensor:
    """
    Return x with these gates and ups in the order that the kernel expects; without ups, the gates
    alone.
    """
    if not config.activation.is_gated:
        return gate.bfloat16()
    pair = torch.stack((gate, up), -1 if config.interleaved else -2)
    return pair.flatten(-2).bfloat16()


unreachable = nothing_unreachable


def tile(config: ActivationQuantizeConfig) -> tuple[int, int]:
    """Return the rows and columns of the tiles by which wrong results are reported."""
    return config.tiling.rows, _VECTOR * config.tiling.threads


def make(
    config: ActivationQuantizeConfig,
    sizes: Sizes,
    *,
    is_exact: bool,
    seed: int = 0,
    device: str = "cpu",
) -> Solved:
    """
    Return a call of `config` with `sizes`, the same for the same `seed` on the same `device`. Every
    layout gets rows of no group. In calls that are not exact, except with the first seed, some rows
    have tiny values, and some ups are NaN or infinite.
    """
    numbers = numbers_of(config.activation, is_exact=is_exact)
    chance = torch.Generator(device).manual_seed(seed)
    lead, groups = grouped_rows(config.layout, sizes.rows)
    groups = groups.to(device)
    gate, up = torch.randn(2, *lead, sizes.n, generator=chance, device=device)
    gate = gate * 4
    if seed and not is_exact:
        gate, up = gate * _small(chance, gate), unusual(chance, up * _small(chance, up))
    if is_exact:  # gates are open, shut or 0
        kinds = torch.randint(8, gate.shape, generator=chance, device=device)
        gate = gate.abs() * 8 + 20
        gate = gate.where(kinds != 0, 0.0).where(kinds != 1, -200.0)
    if "swiglu_limit" in numbers:  # some ups are far beyond it
        up = up * torch.randint(8, up.shape, generator=chance, device=device).eq(0).mul(63).add(1)
    if is_exact and config.activation is Activation.SITU:  # beyond what tanh() tells from 1
        gate, up = gate * 4, up.sign() * 1000
    x = joined(config, gate, up)
    is_given = config.scale_granularity is Format.TENSOR
    given = torch.tensor([0.0117], device=device) if is_given else None
    of_groups: list[Tensor] = []
    if config.per_group:
        of_groups, numbers = [of_every_group(numbers, len(sizes.rows), device)], {}
    named: dict[str, Any] = {
        ARGUMENT[config.layout]: groups,
        "global_scale": given,
        "format": str(config.scale_granularity),
        "activation": str(config.activation),
        "interleaved": config.interleaved,
        "power_of_two": config.power_of_two,
        **numbers,
        **dict(zip(("group_numbers",), of_groups, strict=False)),
    }
    expected_q, expected_scale = reference.activation_quantize(x, **named)
    owned = owned_rows(x.shape[-2], *(named.get(name) for name in ARGUMENT.values()))
    q, scale = new_tensors(x, sizes.n, config.scale_granularity)
    differ = bits_differ if is_exact else _differ
    outputs = [
        Output(name="q", found=untouched(q), expected=expected_q, owned=owned, differ=differ)
    ]
    scales = [each for each in (scale, given) if each is not None]
    if scale is not None and expected_scale is not None:
        near = bits_differ if is_exact else further_than(2.0**-20 * expected_scale)
        outputs.append(
            Output(
                name="scale",
                found=untouched(scale),
                expected=expected_scale,
                owned=owned,
                differ=near,
            )
        )
    return Solved(
        tensors=(x, groups, q, *scales, *of_groups, *numbers.values()),
        arguments={"x": x, "out": (q, scale), **named},
        is_exact=is_exact,
        outputs=tuple(outputs),
    )


def of_every_group(numbers: dict[str, float], groups: int, device: str) -> Tensor:
    """
    Return the numbers of each group, (G, n) float32; every second group has numbers twice as large.
    """
    each = torch.tensor([*numbers.values()], device=device)
    return each * torch.tensor([1.0, 2.0], device=device).repeat(groups)[:groups, None]


def _small(chance: torch.Generator, x: Tensor) -> Tensor:
    """Return a factor for each row of `x`: a power of two; 1 for half of the rows, else smaller."""
    powers = torch.randint(-100, 100, (*x.shape[:-1], 1), generator=chance, device=x.device)
    return torch.exp2(powers.clamp(max=0).float())


def _differ(found: Tensor, expected: Tensor) -> Tensor:
    """
    Return which values of q differ by more than one step of their type. Values below the normal
    numbers of float32 never differ, because exp() on a GPU flushes these to 0; nor do NaNs.
    """
    sizes = torch.maximum(found.float().abs(), expected.float().abs())
    is_normal = ~(sizes < torch.finfo(torch.float32).tiny)
    both_nan = found.float().isnan() & expected.float().isnan()
    return is_normal & ~both_nan & ((_ordered(found) - _ordered(expected)).abs() > 1)


def _ordered(values: Tensor) -> Tensor:
    """Return e4m3 or bf16 values as integers in the order of the values; -0 comes before 0."""
    kind, sign = (torch.uint8, 0x80) if values.dtype.itemsize == 1 else (torch.int16, 0x8000)
    bits = values.view(kind).int() & (2 * sign - 1)
    return torch.where(bits >= sign, sign - 1 - bits, bits)
