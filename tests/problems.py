# SPDX-License-Identifier: Apache-2.0
"""Problems with known answers, for every layout and scale, and what an answer must satisfy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import jitgen
from jitgen.config import DType, Layout, ScaleGranularity
from jitgen.layouts import GROUP_ALIGNMENT
from jitgen.ops.grouped_gemm.config import KernelConfig

POISON = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """
    One call of `grouped_gemm` and what it must give.

    Attributes:
        arguments: Keyword arguments, `out` among them, filled with NaN.
        expected: float32, the shape of out; what float32 arithmetic gives.
        magnitude: The same sums over absolute values: what rounding errors are relative to.
        is_written: bool, the shape of out; false for rows that no group owns.
    """

    arguments: dict[str, Any]
    expected: torch.Tensor
    magnitude: torch.Tensor
    is_written: torch.Tensor


def make(
    layout: Layout | str,
    scales: ScaleGranularity | str,
    rows: list[int],
    n: int,
    k: int,
    *,
    device: str = "cpu",
    dtype: DType = DType.E4M3,
    out_dtype: DType = DType.BF16,
    is_exact: bool = False,
    seed: int = 0,
) -> Case:
    """
    Return a problem of `rows` for each group.

    Args:
        layout: How rows belong to groups; every layout gets rows that nobody owns.
        scales: How many values share one scale.
        rows: Rows of each group.
        n: Columns of the output.
        k: Length of the sums.
        device: Where the tensors live.
        dtype: Type of a and b.
        out_dtype: Type of the output.
        is_exact: Small integers and power-of-two scales: every sum is exact in float32.
        seed: Of the random numbers.
    """
    layout, scales = Layout(layout), ScaleGranularity(scales)
    chance = torch.Generator().manual_seed(seed)
    groups, kb, nb = len(rows), -(-k // 128), -(-n // 128)

    def values(*shape: int) -> torch.Tensor:
        if is_exact:
            whole = torch.randint(-2, 3, shape, generator=chance).float()
        else:
            whole = torch.randn(shape, generator=chance)
        return whole.to(getattr(torch, dtype.torch_name)).to(device)

    def scale(*shape: int) -> torch.Tensor:
        if is_exact:
            return (2.0 ** torch.randint(-2, 3, shape, generator=chance)).to(device)
        return (torch.rand(shape, generator=chance) * 2 + 0.5).to(device)

    which, lead, groups_argument = _rows(layout, rows)
    a, b = values(*lead, k), values(groups, n, k)
    if scales is ScaleGranularity.BLOCK128:
        padded = -(-lead[-1] // 4) * 4
        a_scale = scale(*lead[:-1], kb, padded).transpose(-1, -2)[..., : lead[-1], :]
        b_scale = scale(groups, nb, kb)
    elif scales is ScaleGranularity.ROW:
        a_scale, b_scale = scale(*lead), scale(groups, n)
    else:
        a_scale, b_scale = scale(1), scale(groups)
    out = torch.full((*lead, n), POISON, dtype=getattr(torch, out_dtype.torch_name), device=device)
    arguments = {
        "a": a,
        "b": b,
        "a_scale": a_scale,
        "b_scale": b_scale,
        **{name: tensor.to(device) for name, tensor in groups_argument.items()},
        "out": out,
    }
    absolute = {
        **arguments,
        "a": a.float().abs().to(a.dtype),
        "b": b.float().abs().to(b.dtype),
        "out": None,
    }
    kinds = {"out_dtype": torch.float32}
    return Case(
        arguments=arguments,
        expected=jitgen.reference.grouped_gemm(**{**arguments, "out": None}, **kinds),
        magnitude=jitgen.reference.grouped_gemm(**absolute, **kinds),
        is_written=which.to(device).unsqueeze(-1).expand(*lead, n),
    )


def make_for(config: KernelConfig, rows: list[int], n: int, k: int, **options: Any) -> Case:
    """Return the problem that `make` returns for the layout, scales and types of `config`."""
    types = config.operands
    return make(
        config.layout,
        types.scale_granularity,
        rows,
        n,
        k,
        dtype=types.a_dtype,
        out_dtype=types.out_dtype,
        **options,
    )


def _rows(
    layout: Layout, rows: list[int]
) -> tuple[torch.Tensor, tuple[int, ...], dict[str, torch.Tensor]]:
    """Return which rows are owned, the leading shape of a, and the argument that says so."""
    counts = torch.tensor(rows, dtype=torch.int32)
    if layout is Layout.RAGGED:
        spare = 5
        total = sum(rows) + spare
        owned = torch.arange(total) < sum(rows)
        return owned, (total,), {"offs": counts.cumsum(0).to(torch.int32)}
    if layout is Layout.MASKED:
        most = max([*rows, 1]) + 3
        owned = torch.arange(most)[None, :] < counts[:, None]
        return owned, (len(rows), most), {"masked_m": counts}
    ids = []
    for group, count in enumerate(rows):
        ids += [group] * count + [-1] * (-count % GROUP_ALIGNMENT)
        if group % 3 == 1:
            ids += [-1] * GROUP_ALIGNMENT  # a whole tile of padding between two groups
    indices = torch.tensor(ids or [-1], dtype=torch.int32)
    return indices >= 0, (len(indices),), {"m_indices": indices}


def verify(case: Case, out: torch.Tensor, *, accumulator_bits: int = 22) -> None:
    """
    Assert that `out` answers `case`.

    The tolerance: half a unit in the last place of the output type, and the rounding of the sums,
    which is relative to the sum of absolute values. An accumulator that keeps b bits rounds each
    of the 4 steps of a 128-block by 2**-b of it, and promotions are float32.

    Args:
        case: The problem.
        out: What was computed.
        accumulator_bits: Bits that the accumulator keeps: 22 for float32 with its additions, 13
            for Hopper's FP8 tensor cores.
    """
    untouched = out[~case.is_written]
    assert untouched.isnan().all(), "a row that belongs to no group was written"
    have, want = out[case.is_written].float(), case.expected[case.is_written]
    assert not have.isnan().any(), "a row of a group was not written"
    half_ulp = torch.finfo(out.dtype).eps / 2
    tolerance = (
        want.abs() * half_ulp * 1.01 + case.magnitude[case.is_written] * 2.0**-accumulator_bits
    )
    worst = ((have - want).abs() - tolerance).max() if have.numel() else torch.tensor(-1.0)
    assert worst <= 0, f"beyond the tolerance by {worst.item():.3g}"


def verify_exact(case: Case, out: torch.Tensor) -> None:
    """Assert that `out` is the rounded exact result, bit for bit, and nothing else was written."""
    assert out[~case.is_written].isnan().all(), "a row that belongs to no group was written"
    assert torch.equal(out[case.is_written], case.expected[case.is_written].to(out.dtype))
