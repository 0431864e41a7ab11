# SPDX-License-Identifier: Apache-2.0
"""Calls of `silu_mul_quantize` that put a kernel to the test, and what they must give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Self

import torch
from torch import Tensor

from jitgen.config import Arch, Layout
from jitgen.config.layouts import ARGUMENT
from jitgen.config.operation import Result
from jitgen.config.silu_mul_quantize import Activation, Scales, SiluMulQuantizeConfig
from jitgen.errors import ConfigError
from jitgen.ops.silu_mul_quantize import reference
from jitgen.ops.silu_mul_quantize.dispatch import new_tensors
from jitgen.ops.solved import (
    Compared,
    compared,
    nothing_unreachable,
    numbers_of,
    relative_errors,
    rows_in_words,
    unequal_rows,
)
from jitgen.support.frozen import frozen

LIMITS = {"limit": 7.0, "alpha": 1.702}
"""What gpt-oss uses."""

_UNTOUCHED, _POISON = 77, -3.0
"""What bytes of q and scales hold before."""

_WARP = 32
_VECTOR = 8


@frozen
class Sizes:
    """
    The sizes of a call.

    Attributes:
        rows: Rows of each group.
        n: Columns of the result.
        num_sms: SMs of the GPU: few, so that a warp gets several tiles.
    """

    rows: tuple[int, ...]
    n: int
    num_sms: int = 1

    @classmethod
    def of(cls, config: SiluMulQuantizeConfig, arch: Arch) -> tuple[Self, ...]:  # noqa: ARG003
        """
        Return sizes that test `config`: more groups than lanes, which are empty, tiny, one row
        short of a tile and one row beyond it, and more columns than the threads of a CTA hold, with
        a tail of one vector.
        """
        tiling = config.tiling
        columns = _VECTOR * tiling.threads * tiling.held
        wide = cls(
            rows=(3, 0, tiling.rows + 1, *[0] * _WARP, tiling.rows - 1, 2 * tiling.rows),
            n=columns + 128 + _VECTOR if config.scale_granularity is Scales.ROW else 520,
        )
        return (wide,)

    @classmethod
    def parse(cls, text: str, config: SiluMulQuantizeConfig) -> Self:  # noqa: ARG003  # any serves
        """
        Return the sizes that ``G:M:I`` stands for: M rows in G groups, as unequal as it goes.

        Raises:
            ConfigError: `text` is something else.
        """
        groups, m, n = numbers_of(text, 3)
        if min(groups, n) < 1 or n % _VECTOR:
            raise ConfigError(
                f"problem {text!r} is not G:M:I: groups, rows in all, I, a multiple of {_VECTOR}"
            )
        rows = unequal_rows(m, groups)
        return cls(rows=rows, n=n)

    def __str__(self) -> str:
        """Return the sizes in words."""
        rows = rows_in_words(self.rows)
        return f"rows {rows}, I {self.n}, {self.num_sms} SMs"


@frozen
class Solved(Compared):
    """
    A call with its answer.

    Attributes:
        tensors: What kernels take, in order, without the number of SMs.
        named: What `jitgen.silu_mul_quantize` takes besides x, by its names.
        is_exact: Whether y is the same however exp() is computed, so that results are, too.
        is_owned: Rows that belong to a group.
        q, scale: What the kernel writes; scale None where it finds none.
        expected_q, expected_scale: What they must be.
    """

    tensors: tuple[Any, ...]
    named: dict[str, Any]
    is_exact: bool
    is_owned: Tensor
    q: Tensor
    scale: Tensor | None
    expected_q: Tensor
    expected_scale: Tensor | None

    def solve(self, function: Callable[..., tuple[Tensor, Tensor | None]]) -> int:
        """Let what takes the arguments of `jitgen.silu_mul_quantize` solve it; return `wrong`."""
        _, scale = function(self.tensors[0], out=self.q, **self.named)
        if self.scale is not None and scale is not None:
            self.scale[self.is_owned] = scale[self.is_owned]
        return self.wrong()

    def results(self) -> list[Result]:
        """Return the results, value by value."""
        q, bits = self.q, self.q.view(torch.uint8)
        touched = (bits != _UNTOUCHED).reshape(*q.shape, -1).any(-1)
        steps = (_ordered(q) - _ordered(self.expected_q)).abs()
        found = [self._result("q", q, self.expected_q, touched, steps > (not self.is_exact))]
        if self.scale is not None and self.expected_scale is not None:
            scale, expected = self.scale, self.expected_scale
            allowed = 0.0 if self.is_exact else 2.0**-20
            differ = (scale - expected).abs() > allowed * expected
            found.append(self._result("scale", scale, expected, scale != _POISON, differ))
        return found

    def _result(
        self, name: str, found: Tensor, expected: Tensor, touched: Tensor, differ: Tensor
    ) -> Result:
        """Return a result; a row of no group is wrong where the kernel wrote it."""
        owned = self.is_owned.reshape(
            *self.is_owned.shape, *[1] * (found.ndim - self.is_owned.ndim)
        )
        is_wrong = differ.where(owned, touched)
        group = torch.where(self.is_owned, 0, -1).flatten().cpu()
        return compared(name, found.float(), expected.float(), is_wrong, group)

    def errors(self) -> tuple[float, float]:
        """Return the error of q in the Frobenius norm, and the largest one, relative."""
        found, expected = (q[self.is_owned].float() for q in (self.q, self.expected_q))
        return relative_errors(found, expected)


unreachable = nothing_unreachable


def tile(config: SiluMulQuantizeConfig) -> tuple[int, int]:
    """Return rows and columns of what is told of wrong results together."""
    return config.tiling.rows, _VECTOR * config.tiling.threads


def make(
    config: SiluMulQuantizeConfig,
    sizes: Sizes,
    *,
    is_exact: bool,
    seed: int = 0,
    device: str = "cpu",
) -> Solved:
    """
    Return a call of `config` with `sizes`, the same for the same `seed` on the same `device`. Every
    layout gets rows of no group.
    """
    chance = torch.Generator(device).manual_seed(seed)
    lead, groups = _rows(config.layout, sizes.rows)
    groups = groups.to(device)
    gate, up = torch.randn(2, *lead, sizes.n, generator=chance, device=device)
    gate = gate * 4
    if is_exact:  # gates are open, shut or 0
        kinds = torch.randint(8, gate.shape, generator=chance, device=device)
        gate = gate.abs() * 8 + 20
        gate = gate.where(kinds != 0, 0.0).where(kinds != 1, -200.0)
    pair = torch.stack((gate, up), -1) if config.interleaved else torch.stack((gate, up), -2)
    x = pair.flatten(-2).bfloat16()
    limits: dict[str, Any] = LIMITS if config.activation is Activation.SWIGLU_OAI else {}
    is_given = config.scale_granularity is Scales.TENSOR
    given = torch.tensor([0.0117], device=device) if is_given else None
    named: dict[str, Any] = {
        ARGUMENT[config.layout]: groups,
        "scale": given,
        "scale_granularity": str(config.scale_granularity),
        "activation": str(config.activation),
        "interleaved": config.interleaved,
        "power_of_two": config.power_of_two,
        **limits,
    }
    expected_q, expected_scale = reference.silu_mul_quantize(x, **named)
    q, scale = new_tensors(x, sizes.n, config.scale_granularity)
    q.view(torch.uint8).fill_(_UNTOUCHED)
    if scale is not None:
        scale.fill_(_POISON)
    scales = [each for each in (scale, given) if each is not None]
    return Solved(
        tensors=(x, groups, q, *scales, *limits.values()),
        named=named,
        is_exact=is_exact,
        is_owned=reference.owned_rows(
            x, named.get("offs"), named.get("m_indices"), named.get("masked_m")
        ),
        q=q,
        scale=scale,
        expected_q=expected_q,
        expected_scale=expected_scale,
    )


def _rows(layout: Layout, rows: Sequence[int]) -> tuple[tuple[int, ...], Tensor]:
    """Return the leading shape of x, and what says which rows count."""
    if layout is Layout.MASKED:
        return (len(rows), max(*rows, 1, 1) + 3), torch.tensor(rows, dtype=torch.int32)
    if layout is Layout.RAGGED:
        return (sum(rows) + 5,), torch.tensor([*accumulate(rows)], dtype=torch.int32)
    indices: list[int] = []
    for group, count in enumerate(rows):
        indices += [group] * count + [-1] * (group % 3 + 1)
    return (len(indices),), torch.tensor(indices, dtype=torch.int32)


def _ordered(values: Tensor) -> Tensor:
    """Return e4m3 or bf16 values as integers in the order of the values; -0 comes before 0."""
    kind, sign = (torch.uint8, 0x80) if values.dtype.itemsize == 1 else (torch.int16, 0x8000)
    bits = values.view(kind).int() & (2 * sign - 1)
    return torch.where(bits >= sign, sign - 1 - bits, bits)
