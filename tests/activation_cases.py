# SPDX-License-Identifier: Apache-2.0
"""Problems of `activation_quantize` with known answers, and the configs of the kernels for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jitgen.config.activation_quantize import Activation, ActivationQuantizeConfig
from jitgen.config.layouts import ARGUMENT
from jitgen.ops.activation_quantize import reference, samples
from jitgen.ops.tensors import owned_rows

GARBAGE, POISON = 77, -3.0
"""What bytes of q and scales hold before."""

MOST_DIFFERENT = {1: 1e-4, 2: 2e-3}
"""
Part of the results, by their bytes, that may be one step of e4m3 or bf16 away from the reference.

Both y have errors of some 2^-21, and a step is 2^-4 to 2^-3 of a value, or 2^-8 to 2^-7: about so
many lie so near to the middle of a step that they may fall to the other side.
"""


def numbers_of(kernel: ActivationQuantizeConfig) -> dict[str, float]:
    """Return what the activation of a kernel takes at run time, for all groups."""
    return {} if kernel.per_group else samples.numbers_of(kernel.activation)


def options_of(kernel: ActivationQuantizeConfig) -> dict[str, Any]:
    """Return what a call that the kernel is for takes, besides tensors."""
    words = {
        "format": str(kernel.scale_granularity),
        "activation": str(kernel.activation),
    }
    switches = {"interleaved": kernel.interleaved, "power_of_two": kernel.power_of_two}
    return words | switches | numbers_of(kernel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """
    One call and what it must give.

    Attributes:
        kernel: Config of the kernel whose call it is.
        arguments: Arguments of the kernel, in order, without the number of SMs; q holds garbage.
        owned: Rows that belong to a group.
        q, scale: Tensors that the kernel writes (or, for tensor, reads).
        expected_q, expected_scale: Right values of these tensors.
    """

    kernel: ActivationQuantizeConfig
    arguments: tuple[Any, ...]
    owned: Tensor
    q: Tensor
    scale: Tensor | None
    expected_q: Tensor
    expected_scale: Tensor | None

    @property
    def out(self) -> tuple[Tensor, Tensor | None]:
        """Where the results go; a scale that the caller gives is none of them."""
        return self.q, None if self.kernel.scale_granularity == "tensor" else self.scale

    def reset(self) -> None:
        """Forget the results."""
        self.q.view(torch.uint8).fill_(GARBAGE)
        if self.scale is not None and self.kernel.scale_granularity != "tensor":
            self.scale.fill_(POISON)

    def wrong(self, *, is_exact: bool = False) -> str:
        """Return what is wrong with the results; empty if nothing is."""
        return _unowned(self) or _scales(self, is_exact) or _values(self, is_exact)


def make(
    kernel: ActivationQuantizeConfig,
    rows: Sequence[int],
    columns: int,
    *,
    is_exact: bool = False,
    seed: int = 0,
    device: str = "cpu",
) -> Case:
    """
    Return a problem of `rows` for each group, with padding rows, and I = `columns`.

    Args:
        kernel: Config of the kernel that computes it.
        rows: Rows of each group.
        columns: Columns I of the result.
        is_exact: Gates are open, shut or 0, so that y is the same however exp() is computed.
        seed: Seed of the random numbers.
        device: Device of the tensors.
    """
    chance = torch.Generator().manual_seed(seed)
    lead, name, groups = _groups(kernel.layout, rows)
    gate, up = torch.randn(2, *lead, columns, generator=chance)
    gate = gate * 4
    if is_exact:
        kinds = torch.randint(8, gate.shape, generator=chance)
        gate = gate.abs() * 8 + 20
        gate = gate.where(kinds != 0, 0.0).where(kinds != 1, -0.0).where(kinds != 2, -200.0)
        up = up * 2.0 ** torch.randint(-12, 3, (*lead, 1), generator=chance)
        gate, up = _exact(kernel, gate, up)
    up[..., 2:3, :128] = 0  # a block of zeros
    x = samples.joined(kernel, gate, up)
    return of_input(kernel, x.to(device), {name: groups.to(device)})


def _exact(kernel: ActivationQuantizeConfig, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Return gates and ups beyond what tanh() tells from 1, where there are soft caps."""
    return (gate * 4, up.sign() * 1000) if kernel.activation is Activation.SITU else (gate, up)


def of_input(kernel: ActivationQuantizeConfig, x: Tensor, groups: dict[str, Tensor]) -> Case:
    """Return the problem of an `x`, and of what says which rows count, by its name."""
    granularity = kernel.scale_granularity
    static = torch.tensor([0.0117], device=x.device) if granularity == "tensor" else None
    own = _own_numbers(kernel, groups)
    named = options_of(kernel) | dict(zip(("group_numbers",), own, strict=False))
    expected_q, expected_scale = reference.activation_quantize(
        x, **groups, global_scale=static, **named
    )
    q, scale = torch.empty_like(expected_q), static
    if expected_scale is not None and static is None:
        shape, strides = expected_scale.shape, expected_scale.stride()
        scale = torch.empty_strided(shape, strides, device=x.device)
    case = Case(
        kernel=kernel,
        arguments=(
            *(x, *groups.values(), q),
            *([] if scale is None else [scale]),
            *own,
            *numbers_of(kernel).values(),
        ),
        owned=owned_rows(x.shape[-2], *(groups.get(name) for name in ARGUMENT.values())),
        q=q,
        scale=scale,
        expected_q=expected_q,
        expected_scale=expected_scale,
    )
    case.reset()
    return case


def _own_numbers(kernel: ActivationQuantizeConfig, groups: dict[str, Tensor]) -> list[Tensor]:
    """Return the numbers of each group, where a kernel takes them."""
    if not kernel.per_group:
        return []
    ((name, counts),) = groups.items()
    count = max(1, int(counts.max()) + 1) if name == "m_indices" else len(counts)
    numbers = samples.numbers_of(kernel.activation)
    return [samples.of_every_group(numbers, count, str(counts.device))]


def _groups(layout: str, rows: Sequence[int]) -> tuple[tuple[int, ...], str, Tensor]:
    """Return the leading shape of x, and the argument that says which rows count."""
    counts = torch.tensor(rows, dtype=torch.int32)
    if layout == "masked":
        return (len(rows), max([*rows, 1]) + 3), "masked_m", counts
    if layout == "ragged":
        return (sum(rows) + 5,), "offs", counts.cumsum(0).to(torch.int32)
    indices: list[int] = []
    for group, count in enumerate(rows):
        indices += [group] * count + [-1] * (group % 3 + 1)
    return (len(indices),), "m_indices", torch.tensor(indices, dtype=torch.int32)


def _unowned(case: Case) -> str:
    """Return which values of a padding row were written, in words; empty if none were."""
    others = ~case.owned
    if not bool((case.q[others].view(torch.uint8) == GARBAGE).all()):
        return "q of rows that belong to no group was written"
    if case.scale is None or case.kernel.scale_granularity == "tensor":
        return ""
    is_kept = bool((case.scale[others] == POISON).all())
    return "" if is_kept else "scales of rows that belong to no group were written"


def _scales(case: Case, is_exact: bool) -> str:
    """
    Return how many scales are wrong, in words, or an empty text: scales may be as far off as y, and
    are equal where y is exact.
    """
    if case.scale is None or case.expected_scale is None:
        return ""
    found, expected = case.scale, case.expected_scale
    if case.kernel.scale_granularity != "tensor":
        found, expected = found[case.owned], expected[case.owned]
    is_equal = (found == expected) | (found.isnan() & expected.isnan())
    if not is_exact and not case.kernel.power_of_two:
        is_equal |= (found - expected).abs() <= 2.0**-20 * expected
    return "" if bool(is_equal.all()) else f"{int((~is_equal).sum())} scales are wrong"


def _values(case: Case, is_exact: bool) -> str:
    """
    Return how many values are wrong, in words, or an empty text: a few may be one step away where y
    is not exact.
    """
    found, expected = case.q[case.owned], case.expected_q[case.owned]
    steps = (_ordered(found) - _ordered(expected)).abs()
    steps = steps.where(~(found.float().isnan() & expected.float().isnan()), 0)
    if not is_exact:  # below the normal numbers of float32, which a GPU's exp() has alone
        sizes = torch.maximum(found.float().abs(), expected.float().abs())
        steps = steps.where(~(sizes < torch.finfo(torch.float32).tiny), 0)
    most = 0 if is_exact else 1
    if int(steps.max().item() if steps.numel() else 0) > most:
        return f"{int((steps > most).sum())} values are more than {most} steps away"
    different = int((steps > 0).sum())
    if different > 2 + MOST_DIFFERENT[found.itemsize] * steps.numel():
        return f"{different} of {steps.numel()} values are different"
    return ""


def _ordered(values: Tensor) -> Tensor:
    """Return e4m3 or bf16 values as integers in the order of the values; -0 comes before 0."""
    kind, sign = (torch.uint8, 0x80) if values.dtype.itemsize == 1 else (torch.int16, 0x8000)
    bits = values.view(kind).int() & (2 * sign - 1)
    return torch.where(bits >= sign, sign - 1 - bits, bits)


def special(kernel: ActivationQuantizeConfig) -> Case:
    """Return a problem with infinities, NaN and numbers that overflow, some in every row."""
    inf, nan = float("inf"), float("nan")
    pairs = [
        *[(inf, 1.0), (inf, 0.0), (-inf, 1.0), (nan, 1.0), (1.0, nan), (30.0, inf), (0.0, inf)],
        *[(3e38, 3.0), (-3e38, 3.0), (3e38, -3e38), (-0.0, 1.0), (40.0, -0.0), (-300.0, 1e30)],
    ]
    gate, up = torch.full((2, len(pairs) + 1, 256), 40.0)
    gate, up = _exact(kernel, gate, up)
    gate[1:, 5], up[1:, 5] = torch.tensor(pairs).T
    return of_input(kernel, *_all_rows(kernel, samples.joined(kernel, gate, up)))


def tiny(kernel: ActivationQuantizeConfig) -> Case:
    """Return a problem whose scales go down to the smallest float32."""
    chance = torch.Generator().manual_seed(0)
    exponents = torch.arange(-126, -60, dtype=torch.float64)
    up = torch.randn(len(exponents), 256, generator=chance) * torch.exp2(exponents)[:, None].float()
    gate = torch.full_like(up, 40.0)
    gate = gate + torch.randint(0, 24, gate.shape, generator=chance)
    return of_input(kernel, *_all_rows(kernel, samples.joined(kernel, gate, up)))


def ties(kernel: ActivationQuantizeConfig) -> Case:
    """Return a problem whose quotients lie in the middle between two values of e4m3."""
    scale = torch.arange(128, 256)[:, None] / 128
    halves = torch.arange(34, 64, 4).repeat_interleave(16).expand(len(scale), -1)
    up = scale * torch.exp2(-torch.arange(16.0)).repeat(8)
    gate = torch.cat((torch.full_like(scale, 56), halves), -1)[:, :128]
    up = torch.cat((8 * scale, up), -1)[:, :128]
    return of_input(kernel, *_all_rows(kernel, samples.joined(kernel, gate, up)))


TOLERANCE = {
    **dict.fromkeys((Activation.GEGLU, Activation.GELU), 2e-6),
    **dict.fromkeys((Activation.GEGLU_TANH, Activation.GELU_TANH), 3e-5),
    Activation.SWIGLU_BIAS: 6e-6,
}
"""
Largest allowed error of y, relative to y: of GELU's tail by its series, of the others by the
rounding of what exp() is taken of, which is up to 87.
"""


def accurate(activation: Activation, step: int = 1) -> tuple[Case, Tensor]:
    """
    Return a problem with one value per row, every `step`-th of a range, and these values as exact
    as float64 has them.
    """
    kernel = ActivationQuantizeConfig(layout="ragged", activation=activation)
    gate = torch.arange(-30, 30, 0.01).bfloat16().unique()[::step]
    up = torch.ones(()).double()
    ups = up if activation.is_gated else None
    y = reference.of_gate(activation, gate.double(), ups, *numbers_of(kernel).values())
    is_normal = y.abs() > 448 * 2.0**-126  # else the scale is none, and that of zeros is 1
    gate, y = gate[is_normal], y[is_normal]
    gates, ups = torch.zeros(2, len(gate), 128)
    gates[:, 9], ups[:, 9] = gate, 1.0
    x = samples.joined(kernel, gates, ups)
    return of_input(kernel, x, {"offs": torch.tensor([len(gate)], dtype=torch.int32)}), y.abs()


def _all_rows(kernel: ActivationQuantizeConfig, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return `x` for the layout of a kernel, and the argument that says that all its rows count."""
    count = torch.tensor([len(x)], dtype=torch.int32)
    if kernel.layout == "masked":
        return x.unsqueeze(0), {"masked_m": count}
    if kernel.layout == "ragged":
        return x, {"offs": count}
    return x, {"m_indices": torch.zeros(len(x), dtype=torch.int32)}
