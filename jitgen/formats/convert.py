# SPDX-License-Identifier: Apache-2.0
"""
Converts scales of other libraries to atoms and back. The bytes are the same; only their order
changes.

====================================================  ============================================
who                                                   what they have
====================================================  ============================================
gpt-oss's MXFP4, ModelOpt's NVFP4, torchao's MXFP8    rows of bytes: `to_atoms`
torch's and torchao's grouped GEMMs, vLLM, SGLang     atoms, as here: `from_torch` is a view
TRT-LLM, FlashInfer's ``group_gemm_mxfp4``            atoms, groups elsewhere: `from_trtllm`
DeepGEMM, FlashInfer's SM120 kernels                  words of four, rows contiguous: `from_words`
====================================================  ============================================

Values need no conversion: all libraries pack the first of two consecutive e2m1 values in the low
half of a byte. gpt-oss's ``blocks`` (E, N, K / 32, 16) become ``b = blocks.flatten(-2)``. NVFP4's
alpha is the product of the factors of dequantised values of a and b: ModelOpt's ``input_scale``
times ``weight_scale_2``, or the reciprocal of the product of TRT-LLM's or compressed-tensors'
global scales.

Everything runs on the device of its input and does not wait for it.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from jitgen.errors import InputError
from jitgen.formats.atoms import (
    BYTES,
    PLACES,
    ROWS,
    blocks_of,
    by_row,
    first_blocks,
    groups_of,
    laid_out,
    moved,
    num_blocks,
)
from jitgen.formats.protocol import Rows, ceil_div

_WORD = 4
"""
FlashInfer's groups, and DeepGEMM's columns, start at multiples of this number of rows, which is 16
bytes.
"""

Starts = Literal["rows", "fours"]


def to_atoms(scale: Tensor, *, offs: Tensor | None = None) -> Tensor:
    """
    Put rows of scales into atoms.

    Args:
        scale: (M, S) of activations, (G, M, S) of masked ones, or (G, N, S) of weights:
            float8_e8m0fnu, float8_e4m3fn, or uint8, which is taken as float8_e8m0fnu.
        offs: (G,) int32, for ragged rows: as `grouped_gemm` takes it.

    Returns:
        (blocks, ceil(S / 4), 512), with a leading G if `scale` has one, as `grouped_gemm` takes it.

    Raises:
        InputError: `scale` is not of this kind.
    """
    scale = _typed(scale)
    rows = _rows(tuple(scale.shape[:-1]), offs)
    return laid_out(scale, rows)


def from_atoms(
    atoms: Tensor, num_rows: int, num_scales: int, *, offs: Tensor | None = None
) -> Tensor:
    """
    Return scales row by row; the inverse of `to_atoms`.

    Args:
        atoms: Scales in atoms, as `to_atoms` returns them.
        num_rows: Number of rows, M, or N of weights.
        num_scales: Number of scales S of a row.
        offs: As for `to_atoms`.

    Returns:
        (M, S), with a leading G if `atoms` has one, in the type of `atoms`. Ragged rows of no group
        are zero bytes.

    Raises:
        InputError: `atoms` are not of this kind or have fewer rows or scales, or a number is
            negative.
    """
    for name, number in (("num_rows", num_rows), ("num_scales", num_scales)):
        if number < 0:
            raise InputError(name, f"must be at least 0 (got {number})")
    atoms = _atoms(atoms)
    rows = _rows((*atoms.shape[:-3], num_rows), offs)
    least = (num_blocks(rows), ceil_div(num_scales, PLACES))
    if atoms.shape[-3] < least[0] or atoms.shape[-2] < least[1]:
        raise InputError(
            "atoms",
            f"must have at least {least[0]} blocks of {least[1]} atoms for {num_rows} rows of "
            f"{num_scales} scales (got shape {tuple(atoms.shape)})",
        )
    return by_row(atoms, rows, num_scales)


def from_torch(scale: Tensor) -> Tensor:
    """
    Return a view as atoms of the scales that torch and torchao call blocked or swizzled.

    Args:
        scale: (R, C) or (G, R, C), C a multiple of 4, contiguous, as torch's ``scaled_grouped_mm``
            takes it. Ragged groups begin at multiples of 128 rows, as in jitgen.

    Returns:
        (R // 128, C / 4, 512), with a leading G if `scale` has one. Rows after the last multiple of
        128, which torchao allocates, are left out.

    Raises:
        InputError: `scale` is not of this kind.
    """
    scale = _typed(scale)
    *front, size_r, size_c = scale.shape
    if size_c % PLACES or not scale.is_contiguous():
        raise InputError(
            "scale",
            f"must be contiguous with a multiple of {PLACES} columns (got {_kind(scale)}, strides "
            f"{scale.stride()})",
        )
    blocks = size_r // ROWS
    return scale[..., : blocks * ROWS, :].reshape(*front, blocks, size_c // PLACES, BYTES)


def to_torch(atoms: Tensor) -> Tensor:
    """
    Return a view of atoms in the shape that torch's functions take; the inverse of `from_torch`.
    """
    *front, blocks, columns, _ = _atoms(atoms).shape
    return atoms.reshape(*front, blocks * ROWS, columns * PLACES)


def from_trtllm(scale: Tensor, offs: Tensor) -> Tensor:
    """
    Return atoms of ragged rows from those of TRT-LLM and FlashInfer's ``group_gemm_mxfp4``.

    There, group g begins at row ``(start + 127 * g) // 128 * 128``, which needs no sum over the
    groups before it (TRT-LLM, ``getOffsetActivationSF`` in ``moe_kernels.cu``).

    Args:
        scale: (blocks, columns, 512), or (128 * blocks, 4 * columns): float8 or uint8.
        offs: (G,) int32, the row behind the last of each group.

    Returns:
        (blocks, columns, 512); blocks that no group has are zero bytes.
    """
    atoms = _typed(scale, ranks=(2, 3))
    atoms = from_torch(atoms) if atoms.dim() == 2 else _atoms(atoms)
    starts, sizes = groups_of(offs)
    ours, theirs = first_blocks(sizes), _trtllm(starts)
    return moved(atoms, theirs, ours, blocks_of(sizes), len(atoms))


def to_trtllm(atoms: Tensor, offs: Tensor) -> Tensor:
    """Return the atoms of ragged rows in the places of TRT-LLM; the inverse of `from_trtllm`."""
    starts, sizes = groups_of(offs)
    ours, theirs = first_blocks(sizes), _trtllm(starts)
    return moved(_atoms(atoms), ours, theirs, blocks_of(sizes), len(atoms))


def _trtllm(starts: Tensor) -> Tensor:
    groups = torch.arange(len(starts), device=starts.device)
    return (starts + (ROWS - 1) * groups) // ROWS


def from_words(
    words: Tensor, *, offs: Tensor | None = None, starts: Starts = "rows", repeats: int = 1
) -> Tensor:
    """
    Return atoms from words of four scales, which DeepGEMM and FlashInfer's SM120 kernels read.

    Args:
        words: (M, W) or (G, M, W) int32, any strides (these libraries have M contiguous): four
            UE8M0 bytes that are consecutive along K, the first in the lowest byte.
        offs: (G,) int32, for ragged rows.
        starts: ``rows``: words are in the order of the rows of a (DeepGEMM). ``fours``: the words
            of group g begin at ``(start + 3 * g) // 4 * 4`` (FlashInfer on SM120); needs `offs`.
        repeats: How often each scale is repeated in the result: 4 for those of DeepGEMM, which are
            for 1x128.

    Returns:
        float8_e8m0fnu (blocks, W * repeats, 512), with G in front where `words` has it.

    Raises:
        InputError: `words` is not of this kind, or `offs` is missing with ``fours``.
    """
    if words.dtype is not torch.int32 or words.dim() not in {2, 3}:
        raise InputError("words", f"must be (M, W) or (G, M, W) int32 (got {_kind(words)})")
    scale = words.contiguous().view(torch.uint8).repeat_interleave(repeats, -1)
    if starts == "rows":
        return to_atoms(scale, offs=offs)
    firsts, sizes = groups_of(_required(offs))
    num_rows = len(words)  # no group ends behind them
    plain = moved(_typed(scale), _fours(firsts), firsts, sizes, num_rows)
    return laid_out(plain, _rows((num_rows,), offs))


def to_words(
    atoms: Tensor, num_rows: int, *, offs: Tensor | None = None, starts: Starts = "rows"
) -> Tensor:
    """
    Return words of four scales, M contiguous; the inverse of `from_words`.

    Args:
        atoms: float8_e8m0fnu (blocks, W, 512), or with G in front.
        num_rows: Number of rows M.
        offs: (G,) int32, for ragged rows.
        starts: As for `from_words`.

    Returns:
        (M, W) or (G, M, W) int32, the stride of W a multiple of 4; with ``fours``
        ((M + 3 * G) // 4 * 4, W).
    """
    plain = from_atoms(atoms, num_rows, atoms.shape[-2] * PLACES, offs=offs)
    if starts == "fours":
        firsts, sizes = groups_of(_required(offs))
        length = (num_rows + (_WORD - 1) * len(firsts)) // _WORD * _WORD
        plain = moved(plain, firsts, _fours(firsts), sizes, length)
    words = plain.view(torch.uint8).view(torch.int32)
    rows = words.shape[-2]
    columns = pad(words.mT, (0, -rows % _WORD)).contiguous()
    return columns.mT[..., :rows, :]


def _fours(starts: Tensor) -> Tensor:
    groups = torch.arange(len(starts), device=starts.device)
    return (starts + (_WORD - 1) * groups) // _WORD * _WORD


def _required(offs: Tensor | None) -> Tensor:
    if offs is None:
        raise InputError("offs", 'is required with starts="fours" (got None)')
    return offs


def _rows(shape: tuple[int, ...], offs: Tensor | None) -> Rows:
    if offs is not None and len(shape) != 1:
        raise InputError("offs", f"makes rows ragged, which have no G in front (got {shape})")
    return Rows(shape, 0 if offs is None else len(offs), offs)


_BYTES = (torch.uint8, torch.float8_e8m0fnu, torch.float8_e4m3fn)


def _typed(scale: Tensor, ranks: tuple[int, ...] = (2, 3)) -> Tensor:
    if not isinstance(scale, Tensor) or scale.dtype not in _BYTES or scale.dim() not in ranks:
        wanted = " or ".join(map(str, ranks))
        raise InputError(
            "scale",
            f"must be float8_e8m0fnu, float8_e4m3fn or uint8 with {wanted} dimensions (got "
            f"{_kind(scale)})",
        )
    return scale.view(torch.float8_e8m0fnu) if scale.dtype is torch.uint8 else scale


def _atoms(atoms: Tensor) -> Tensor:
    if not isinstance(atoms, Tensor) or atoms.dim() not in {3, 4} or atoms.shape[-1] != BYTES:
        raise InputError(
            "atoms", f"must have shape (..., blocks, columns, {BYTES}) (got {_kind(atoms)})"
        )
    return _typed(atoms, ranks=(3, 4))


def _kind(x: object) -> str:
    return f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
