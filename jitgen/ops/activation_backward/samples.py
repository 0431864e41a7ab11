# SPDX-License-Identifier: Apache-2.0
"""Sample calls of `activation_backward` that test a kernel, with their right results."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from jitgen.config import Arch
from jitgen.config.activation_backward import SUM_COLUMNS, ActivationBackwardConfig
from jitgen.config.activation_quantize import Activation
from jitgen.config.layouts import ARGUMENT
from jitgen.ops.activation_backward import reference
from jitgen.ops.activation_backward.dispatch import new_results
from jitgen.ops.activation_quantize import samples as of_activation
from jitgen.ops.edges import around, in_pairs, rows_around
from jitgen.ops.sizes import GROUPS, ROWS, AnySizes, Number, grouped_rows, unequal_rows
from jitgen.ops.solved import (
    Output,
    Solved,
    further_than,
    nothing_unreachable,
    untouched,
)
from jitgen.ops.tensors import owned_rows
from jitgen.support.frozen import frozen

_WARP, _VECTOR = 32, 8

_BITS = 18
"""Least number of bits of the largest term of a formula that the result keeps."""


_NOTHING = 2.0**-64
"""
Absolute error that is allowed in exact problems. Their results are 0 or much larger than this;
where a formula multiplies 0 by the value of a closed gate, a kernel may return the tiny value of
its exponential instead of 0.
"""


@frozen
class Sizes(AnySizes):
    """
    The sizes of a call.

    Attributes:
        rows: Rows of each group.
        n: Columns of y.
    """

    numbers = (GROUPS, ROWS, Number("I", "I", multiple=_VECTOR))
    words = "rows {rows}, I {n}"

    rows: tuple[int, ...]
    n: int
    num_sms: int = 1

    @classmethod
    def of(cls, config: ActivationBackwardConfig, arch: Arch) -> tuple[Self, ...]:
        """
        Return sizes that test `config`: more groups than lanes, which are empty, tiny, one row
        short of a tile and one row beyond it, and two sums for each row, the second of one vector.
        """
        rows = config.tiling.rows
        counts = (3, 0, rows + 1, *[0] * _WARP, rows - 1, 2 * rows)
        return (cls(rows=counts, n=SUM_COLUMNS + _VECTOR),)

    @classmethod
    def edges(cls, config: ActivationBackwardConfig, arch: Arch) -> tuple[Self, ...]:
        columns = around(cls.numbers[-1], SUM_COLUMNS, 3 * SUM_COLUMNS)
        pairs = in_pairs(rows_around(config.tiling.rows), columns)
        return tuple(cls(rows=rows, n=n) for rows, n in pairs)

    @classmethod
    def of_numbers(cls, config: ActivationBackwardConfig, *numbers: int) -> Self:
        groups, m, n = numbers
        return cls(rows=unequal_rows(m, groups), n=n)


unreachable = nothing_unreachable


def numbers_of(activation: Activation, *, is_exact: bool) -> dict[str, float]:
    """
    Return the numbers of an activation in samples, by the names of the arguments: in exact
    problems, a limit above which silu(gate) equals gate in float32.
    """
    found = of_activation.numbers_of(activation, is_exact=is_exact)
    return found | ({"swiglu_limit": 30.0} if is_exact and "swiglu_limit" in found else {})


def tile(config: ActivationBackwardConfig) -> tuple[int, int]:
    """Return the rows and columns of the tiles by which wrong results are reported."""
    return config.tiling.rows, SUM_COLUMNS


def make(
    config: ActivationBackwardConfig,
    sizes: Sizes,
    *,
    is_exact: bool,
    seed: int = 0,
    device: str = "cpu",
) -> Solved:
    """
    Return a call of `config` with `sizes`, the same for the same `seed` on the same `device`. Every
    layout gets rows of no group.

    Exact calls have gates that are open, closed or 0, other values that are small integers, and
    weights that are powers of two, so that no sum is rounded. Results of other calls may differ
    from the right ones by one step of bfloat16 and by the rounding errors of their formulas.
    """
    activation = config.activation
    numbers = numbers_of(activation, is_exact=is_exact)
    chance = torch.Generator(device).manual_seed(seed)
    lead, groups = grouped_rows(config.layout, sizes.rows)
    shape, groups = (*lead, sizes.n), groups.to(device)

    def draw(low: int, high: int, shape: tuple[int, ...] = shape) -> Tensor:
        return torch.randint(low, high + 1, shape, generator=chance, device=device).float()

    if is_exact:
        kinds = draw(0, 7)
        gate, up, dy = draw(20, 60), draw(-8, 8), draw(-8, 8)
        gate = gate.where(kinds != 0, 0.0).where(kinds != 1, -200.0)
        weights = torch.exp2(draw(-2, 0, tuple(lead)))
        if activation is Activation.SITU:  # beyond what tanh() tells from 1
            gate, up = gate * 4, up.sign() * 1000
    else:
        gate, up, dy = torch.randn(3, *shape, generator=chance, device=device)
        gate, weights = gate * 4, torch.rand(*lead, generator=chance, device=device)
    if "swiglu_limit" in numbers:  # some ups are far beyond it
        up = up * draw(0, 7).eq(0).mul(63).add(1)
    x, dy = _joined(config, gate, up), dy.bfloat16()
    named: dict[str, Any] = {
        ARGUMENT[config.layout]: groups,
        "activation": str(activation),
        "interleaved": config.interleaved,
        **numbers,
    }
    expected = reference.activation_backward(dy, x, weights, **named)
    found = new_results(dy, x)
    owned = owned_rows(x.shape[-2], *(named.get(name) for name in ARGUMENT.values()))
    allowed = _allowed(config, dy, gate, up, weights, expected)
    outputs = tuple(
        Output(
            name=name,
            found=untouched(each),
            expected=right,
            owned=owned,
            differ=further_than(_NOTHING if is_exact else near),
        )
        for name, each, right, near in zip(
            ("dx", "y", "sums"), found, expected, allowed, strict=True
        )
    )
    return Solved(
        tensors=(dy, x, weights, groups, *found, *numbers.values()),
        arguments={"dy": dy, "x": x, "weights": weights, "out": found, **named},
        is_exact=is_exact,
        outputs=outputs,
    )


def _joined(config: ActivationBackwardConfig, gate: Tensor, up: Tensor) -> Tensor:
    """
    Return x with these gates and ups in the order that the kernel expects; without ups, the gates
    alone.
    """
    if not config.activation.is_gated:
        return gate.bfloat16()
    return torch.stack((gate, up), -1 if config.interleaved else -2).flatten(-2).bfloat16()


def _allowed(
    config: ActivationBackwardConfig,
    dy: Tensor,
    gate: Tensor,
    up: Tensor,
    weights: Tensor,
    expected: tuple[Tensor, Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return by how much each result of a random call may differ from the expected result."""
    dx, y, _ = expected
    size = (1 + gate.abs()) * (1 + up.abs()) * 2.0**-_BITS
    of_y = size * weights.unsqueeze(-1)
    of_dx = of_y * dy.float().abs() * 4
    of_dx = torch.stack([of_dx] * config.activation.inputs, -1 if config.interleaved else -2)
    products = torch.nn.functional.pad(size * dy.float().abs(), (0, -dy.shape[-1] % SUM_COLUMNS))
    sums = products.unflatten(-1, (-1, SUM_COLUMNS)).sum(-1)
    return (
        dx.float().abs() * 2.0**-7 + of_dx.flatten(-2),
        y.float().abs() * 2.0**-7 + of_y,
        sums,
    )
