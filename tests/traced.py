# SPDX-License-Identifier: Apache-2.0
"""One small call of every operation that torch's tracers see, for as many rows as asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

import jitgen
from jitgen import quantize
from jitgen.config import BLayout
from jitgen.formats.prepacked import PrepackedWeights

GROUPS, N, K = 3, 40, 160
WHOLE_K = 256  # whole blocks of scales
ROWS = 25
"""No multiple of 4, which pads it: a stride that equals a size would share its symbol."""
OTHER_ROWS = (33, 45)


class Traced(NamedTuple):
    """
    One call.

    Attributes:
        name: What to call it in a test's id.
        targets: Operations that a graph of it must hold.
        call: Takes the tensors, and returns a tensor or several.
        tensors: Returns them for a number of rows.
        rows_of: The dimension of each tensor that is the rows; None: none is.
        batched: Place of the tensor that vmap is tried with, and its name.
    """

    name: str
    targets: tuple[str, ...]
    call: Callable[..., Tensor | tuple[Tensor, ...]]
    tensors: Callable[[int], tuple[Tensor, ...]]
    rows_of: tuple[int | None, ...]
    batched: tuple[int, str] = (0, "a")

    def __str__(self) -> str:
        return self.name


def chance(rows: int) -> torch.Generator:
    return torch.Generator().manual_seed(rows)


def normal(rows: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=chance(rows)).bfloat16()


def ends(rows: int) -> Tensor:
    return torch.tensor([rows // 3, rows // 3, rows], dtype=torch.int32)


def _gemm(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    return jitgen.grouped_gemm(a * 2, b, offs=offs) + 1


def _gemm_into(a: Tensor, b: Tensor, offs: Tensor, out: Tensor) -> Tensor:
    return jitgen.grouped_gemm(a * 2, b, offs=offs, out=out) + 1


def _gemm_tensors(rows: int) -> tuple[Tensor, ...]:
    return normal(rows, rows, K), normal(0, GROUPS, N, K), ends(rows)


def _gemm_out_tensors(rows: int) -> tuple[Tensor, ...]:
    return *_gemm_tensors(rows), torch.zeros(rows, N, dtype=torch.bfloat16)


_LAYOUT = BLayout.EXACT1


@cache
def _weights() -> PrepackedWeights:
    return quantize.prepack_mxfp4_from(normal(0, GROUPS, 64, K).float())


def _prepacked(a: Tensor, a_scale: Tensor, offs: Tensor, values: Tensor, factor: Tensor) -> Tensor:
    b = PrepackedWeights(values=values, factor=factor, n=64, k=K, layout=_LAYOUT)
    return jitgen.grouped_gemm(a, b, a_scale, offs=offs) + 1


def _prepacked_into(
    a: Tensor, a_scale: Tensor, offs: Tensor, values: Tensor, factor: Tensor, out: Tensor
) -> Tensor:
    b = PrepackedWeights(values=values, factor=factor, n=64, k=K, layout=_LAYOUT)
    return jitgen.grouped_gemm(a, b, a_scale, offs=offs, out=out) + 1


def _prepacked_tensors(rows: int) -> tuple[Tensor, ...]:
    b = _weights()
    return *quantize.split_bf16(normal(rows, rows, K)), ends(rows), b.values, b.factor


def _prepacked_out_tensors(rows: int) -> tuple[Tensor, ...]:
    return *_prepacked_tensors(rows), torch.zeros(rows, 64, dtype=torch.bfloat16)


def _silu(x: Tensor, offs: Tensor) -> tuple[Tensor, Tensor]:
    q, scale = jitgen.activation_quantize(x * 2, offs=offs)
    assert scale is not None
    return q.float() + 1, scale


def _silu_into(x: Tensor, offs: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    q, scale = jitgen.activation_quantize(x * 2, offs=offs, out=(out, None))
    assert scale is not None
    return q.float() + 1, scale


def _silu_into_both(x: Tensor, offs: Tensor, out: Tensor, of_out: Tensor) -> tuple[Tensor, Tensor]:
    q, scale = jitgen.activation_quantize(x * 2, offs=offs, format="row", out=(out, of_out))
    assert scale is not None
    return q.float() + 1, scale + 1


def _silu_tensors(rows: int) -> tuple[Tensor, ...]:
    return normal(rows, rows, 2 * 136), ends(rows)


def _silu_out_tensors(rows: int) -> tuple[Tensor, ...]:
    return *_silu_tensors(rows), torch.zeros(rows, 136).to(torch.float8_e4m3fn)


def _silu_both_tensors(rows: int) -> tuple[Tensor, ...]:
    return *_silu_out_tensors(rows), torch.zeros(rows)


def _fc2(x: Tensor, b: Tensor, b_scale: Tensor, alpha: Tensor) -> Tensor:
    a, a_scale = quantize.per_token_group(x)
    return jitgen.moe_fc2_dense(a.transpose(0, 1), b, a_scale, b_scale, alpha) + 1


def _fc2_into(x: Tensor, b: Tensor, b_scale: Tensor, alpha: Tensor, out: Tensor) -> Tensor:
    a, a_scale = quantize.per_token_group(x)
    return jitgen.moe_fc2_dense(a.transpose(0, 1), b, a_scale, b_scale, alpha, out=out) + 1


def _fc2_tensors(rows: int) -> tuple[Tensor, ...]:
    b, b_scale = quantize.per_block(normal(0, GROUPS, N, WHOLE_K))
    alpha = torch.rand(rows, GROUPS, generator=chance(rows))
    return normal(rows, GROUPS, rows, WHOLE_K), b, b_scale, alpha


def _fc2_out_tensors(rows: int) -> tuple[Tensor, ...]:
    return *_fc2_tensors(rows), torch.zeros(rows, N, dtype=torch.bfloat16)


def _wgrad(dy: Tensor, a: Tensor, offs: Tensor) -> Tensor:
    return jitgen.grouped_gemm_wgrad(dy * 2, a, offs=offs) + 1


def _wgrad_tensors(rows: int) -> tuple[Tensor, ...]:
    return normal(rows, rows, N), normal(rows + 1, rows, K), ends(rows)


def _bytes(*results: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.view(torch.uint8) if x.element_size() == 1 else x for x in results)


def _mxfp8(x: Tensor, offs: Tensor) -> tuple[Tensor, ...]:
    return _bytes(*quantize.mxfp8(x * 2, offs=offs))


def _mxfp4(x: Tensor, offs: Tensor) -> tuple[Tensor, ...]:
    return _bytes(*quantize.mxfp4(x * 2, offs=offs))


def _nvfp4(x: Tensor, offs: Tensor) -> tuple[Tensor, ...]:
    return _bytes(*quantize.nvfp4(x * 2, offs=offs))


def _nvfp4_into(x: Tensor, offs: Tensor, out: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    return _bytes(*quantize.nvfp4(x * 2, offs=offs, out=(out, scale)))


def _nvfp4_out_tensors(rows: int) -> tuple[Tensor, ...]:
    """
    Return the operands of `nvfp4` with its results; there is none for mxfp8, as torch 2.13's
    inductor cannot write float8_e8m0fnu.
    """
    x, offs = _x_tensors(rows)
    q, scale, _ = quantize.nvfp4(torch.zeros_like(x), offs=offs)
    return x, offs, q, scale


def _quantised(name: str, x: Tensor, _offs: Tensor) -> tuple[Tensor, ...]:
    return _bytes(*getattr(quantize, name)(x * 2))


def _x_tensors(rows: int) -> tuple[Tensor, ...]:
    return normal(rows, rows, K), ends(rows)


_GEMM, _PREPACKED = "jitgen.grouped_gemm", "jitgen.grouped_gemm_prepacked"
_SILU, _FC2 = "jitgen.activation_quantize", "jitgen.moe_fc2_dense"
_NONE = (None, None, None)
OPERATIONS = [
    Traced("gemm", (f"{_GEMM}.default",), _gemm, _gemm_tensors, (0, None, None)),
    Traced("gemm_out", (f"{_GEMM}.out",), _gemm_into, _gemm_out_tensors, (0, None, None, 0)),
    Traced("prepacked", (f"{_PREPACKED}.default",), _prepacked, _prepacked_tensors, (0, 0, *_NONE)),
    Traced(
        "prepacked_out",
        (f"{_PREPACKED}.out",),
        _prepacked_into,
        _prepacked_out_tensors,
        (0, 0, *_NONE, 0),
    ),
    Traced("wgrad", (f"{_GEMM}_wgrad.default",), _wgrad, _wgrad_tensors, (0, 0, None), (0, "dy")),
    Traced("silu", (f"{_SILU}.default",), _silu, _silu_tensors, (0, None), (0, "x")),
    Traced("silu_out", (f"{_SILU}.out",), _silu_into, _silu_out_tensors, (0, None, 0), (0, "x")),
    Traced(
        "silu_both",
        (f"{_SILU}.out_scale",),
        _silu_into_both,
        _silu_both_tensors,
        (0, None, 0, 0),
        (0, "x"),
    ),
    Traced("fc2", (f"{_FC2}.default",), _fc2, _fc2_tensors, (1, None, None, 0)),
    Traced("fc2_out", (f"{_FC2}.out",), _fc2_into, _fc2_out_tensors, (1, None, None, 0, 0)),
]
_QUANTIZE = ("jitgen.quantize.default",)
OPERATIONS += [
    Traced("mxfp8", _QUANTIZE, _mxfp8, _x_tensors, (0, None), (0, "x")),
    Traced(
        "nvfp4_out",
        ("jitgen.quantize.out",),
        _nvfp4_into,
        _nvfp4_out_tensors,
        (None, None, None, None),  # no dimension of the scales is a multiple of the rows
        (0, "x"),
    ),
    Traced("mxfp4", _QUANTIZE, _mxfp4, _x_tensors, (0, None), (0, "x")),
    Traced("nvfp4", _QUANTIZE, _nvfp4, _x_tensors, (0, None), (0, "x")),
]
QUANTISERS = [
    Traced(name, (), partial(_quantised, name), _x_tensors, (rows, None), (0, "x"))
    for name, rows in (
        *(("per_token_group", 0), ("per_row", 0), ("per_tensor", 0), ("split_bf16", 0)),
        ("per_block", None),  # of weights, once
    )
]
"""What is made of torch's own operations, which each tracer sees."""

EVERY = OPERATIONS + QUANTISERS
