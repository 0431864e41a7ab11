# SPDX-License-Identifier: Apache-2.0
"""
Triton kernels for the steps between DeepGEMM's products: one launch for each step.

Rows of an expert begin at a multiple of 128 (contiguous) or in a matrix of their own (masked). A
pair is a token with one of its slots; `place` says in which row it is.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 128
"""Values that share a scale, and rows at whose multiples experts begin."""

_PART = 8
"""Blocks of 128 columns that a program takes."""

_SCAN = 1024
"""Pairs that a program reads at once."""


@triton.jit
def _count(ids, counts, pairs, SCAN: tl.constexpr):
    """Count the pairs of one expert."""
    expert = tl.program_id(0)
    found = tl.zeros((SCAN,), dtype=tl.int32)
    for first in range(0, pairs, SCAN):
        at = first + tl.arange(0, SCAN)
        each = tl.load(ids + at, mask=at < pairs, other=-1)
        found += (each == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(found, 0))


@triton.jit
def _place(
    ids,
    counts,
    place,
    owners,
    pairs,
    height,
    SCAN: tl.constexpr,
    EXPERTS: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """
    Assign rows to the pairs of one expert, in ascending order. Unless the layout is masked, also
    write the owner of the expert's rows; one additional program writes -1 for the rows after the
    last expert's.
    """
    expert = tl.program_id(0)
    numbers = tl.arange(0, EXPERTS)
    if IS_MASKED:
        start = expert * height
    else:
        padded = (tl.load(counts + numbers) + 127) // 128 * 128
        start = tl.sum(tl.where(numbers < expert, padded, 0), 0)
        end = start + tl.sum(tl.where(numbers == expert, padded, 0), 0)
        if expert == tl.num_programs(0) - 1:
            end = height
        for first in range(start, end, 128):
            owner = tl.where(expert == tl.num_programs(0) - 1, -1, expert)
            tl.store(owners + first + tl.arange(0, 128), tl.zeros((128,), tl.int32) + owner)
    before = 0
    for first in range(0, pairs, SCAN):
        at = first + tl.arange(0, SCAN)
        is_own = tl.load(ids + at, mask=at < pairs, other=-1) == expert
        own = is_own.to(tl.int32)
        tl.store(place + at, start + before + tl.cumsum(own, 0) - own, mask=is_own)
        before += tl.sum(own, 0)
    if IS_MASKED:
        tl.store(counts + expert, before)


@triton.jit
def _scales_of(values):
    return tl.maximum(tl.max(tl.abs(values), 1), 1e-10) / 448.0


@triton.jit
def _gather(
    x,
    place,
    q,
    scale,
    height,
    scale_matrix,
    scale_step,
    H: tl.constexpr,
    TOP_K: tl.constexpr,
    PART: tl.constexpr,
):
    """Quantise eight blocks of a pair's token into its row."""
    pair, part = tl.program_id(0), tl.program_id(1)
    row = tl.load(place + pair).to(tl.int64)
    block = part * PART + tl.arange(0, PART)
    at = block[:, None] * 128 + tl.arange(0, 128)[None, :]
    token = (pair // TOP_K).to(tl.int64)
    values = tl.load(x + token * H + at, mask=at < H, other=0.0).to(tl.float32)
    found = _scales_of(values)
    tl.store(q + row * H + at, (values / found[:, None]).to(tl.float8e4nv), mask=at < H)
    scale_row = row // height * scale_matrix + row % height
    tl.store(scale + scale_row + block * scale_step, found, mask=block * 128 < H)


@triton.jit
def _swiglu(
    h,
    place,
    q,
    scale,
    height,
    scale_matrix,
    scale_step,
    I: tl.constexpr,
    PART: tl.constexpr,
):
    """Gate and quantise eight blocks of a pair's row."""
    pair, part = tl.program_id(0), tl.program_id(1)
    row = tl.load(place + pair).to(tl.int64)
    block = part * PART + tl.arange(0, PART)
    at = block[:, None] * 128 + tl.arange(0, 128)[None, :]
    gate = tl.load(h + row * 2 * I + at, mask=at < I, other=0.0).to(tl.float32)
    up = tl.load(h + row * 2 * I + I + at, mask=at < I, other=0.0).to(tl.float32)
    values = gate / (1 + tl.exp(-gate)) * up
    found = _scales_of(values)
    tl.store(q + row * I + at, (values / found[:, None]).to(tl.float8e4nv), mask=at < I)
    scale_row = row // height * scale_matrix + row % height
    tl.store(scale + scale_row + block * scale_step, found, mask=block * 128 < I)


@triton.jit
def _combine(
    y,
    place,
    weights,
    out,
    H: tl.constexpr,
    TOP_K: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Add up the weighted rows of one token, in COLUMNS columns."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for slot in range(TOP_K):
        row = tl.load(place + token * TOP_K + slot).to(tl.int64)
        weight = tl.load(weights + token * TOP_K + slot)
        total += weight * tl.load(y + row * H + at, mask=at < H, other=0.0).to(tl.float32)
    tl.store(out + token * H + at, total.to(tl.bfloat16), mask=at < H)


def place_masked(ids: Tensor, counts: Tensor, place: Tensor, *, height: int) -> None:
    """
    Assign a row to every pair, from row ``e * height`` for expert e, and count the pairs of each
    expert.

    Args:
        ids: (T, k) int32.
        counts: (G,) int32, written.
        place: (T * k,) int32, written.
        height: Rows of each expert's matrix.
    """
    grid = (len(counts),)
    _place[grid](
        *(ids, counts, place, counts, ids.numel(), height),
        SCAN=_SCAN,
        EXPERTS=triton.next_power_of_2(len(counts)),
        IS_MASKED=True,
    )


def place_contiguous(ids: Tensor, counts: Tensor, place: Tensor, *, owners: Tensor) -> None:
    """
    Assign a row to every pair, where the rows of each expert begin at a multiple of 128, and write
    the expert of every row.

    Args:
        ids: (T, k) int32.
        counts: (2 * G,) int32 of `new_counts`, G a power of two: the first G values are written,
            the others are zero.
        place: (T * k,) int32, written.
        owners: (rows,) int32, written: the expert of each row, -1 after the last one.
    """
    experts = counts.numel() // 2
    grid = (experts,)
    _count[grid](ids, counts, ids.numel(), SCAN=_SCAN)
    grid = (experts + 1,)
    _place[grid](
        *(ids, counts, place, owners, ids.numel(), len(owners)),
        SCAN=_SCAN,
        EXPERTS=counts.numel(),
        IS_MASKED=False,
    )


def gather(x: Tensor, place: Tensor, q: Tensor, scale: Tensor, top_k: int) -> None:
    """Quantise the token of every pair into its row of `q`, (rows, H) or (G, rows, H)."""
    hidden = x.shape[1]
    grid = (len(place), triton.cdiv(hidden, _PART * BLOCK))
    _gather[grid](
        *(x, place, q, scale, q.shape[-2], *_steps(scale)), H=hidden, TOP_K=top_k, PART=_PART
    )


def swiglu(h: Tensor, place: Tensor, q: Tensor, scale: Tensor) -> None:
    """Gate the row of every pair in `h`, and quantise the result into its row of `q`."""
    columns = q.shape[-1]
    grid = (len(place), triton.cdiv(columns, _PART * BLOCK))
    _swiglu[grid](*(h, place, q, scale, q.shape[-2], *_steps(scale)), I=columns, PART=_PART)


def combine(y: Tensor, place: Tensor, weights: Tensor, out: Tensor) -> None:
    """Add up the rows of every token, weighted, into `out`."""
    (tokens, hidden), top_k = out.shape, weights.shape[1]
    grid = (tokens, triton.cdiv(hidden, 1024))
    _combine[grid](y, place, weights, out, H=hidden, TOP_K=top_k, COLUMNS=1024)


def _steps(scale: Tensor) -> tuple[int, int]:
    """
    Return the strides of scales between matrices, 0 for one matrix, and between blocks of columns;
    the stride of rows must be 1.
    """
    if scale.shape[-2] > 1 and scale.stride(-2) != 1:
        raise ValueError("scales must have neighbours along the rows")
    return (scale.stride(0) if scale.dim() == 3 else 0), scale.stride(-1)


def new_counts(experts: int, device: torch.device) -> Tensor:
    """Return the buffer in which `place_contiguous` counts: zeros, (2 * experts,) int32."""
    return torch.zeros(2 * experts, dtype=torch.int32, device=device)
