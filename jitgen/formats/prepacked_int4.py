# SPDX-License-Identifier: Apache-2.0
"""
INT4 weights prepacked for Hopper, and the orders in which checkpoints have them.

====================  ==========================================================================
who                   what they have
====================  ==========================================================================
compressed-tensors    (N, K / 8) words along K, scales (N, S): what `prepack_int4` takes
GPTQ                  (K / 8, N) words along K, scales (S, N): `int4_from_gptq`
AWQ                   (K, N / 8) words along N, values interleaved, scales (S, N):
                      `int4_from_awq`
====================  ==========================================================================

Every word has eight values, each plus 8. Weights with other zero points than 8 are not supported;
zero points are checked (GPTQ's files store them less 1).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from jitgen.config import BLayout
from jitgen.config.prepacked import PrepackedFormat
from jitgen.errors import InputError
from jitgen.formats import int4
from jitgen.formats import prepacked_blocks as blocks
from jitgen.formats.int4 import IN_A_WORD, MIDDLE
from jitgen.formats.prepacked_weights import PrepackedWeights, check_sizes, layout_of
from jitgen.support.text import shown

SCALES = (torch.bfloat16, torch.float16)
"""Types of scales; their stored form is exact."""

GROUPS = {32: PrepackedFormat.INT4_32, 128: PrepackedFormat.INT4_128}
"""Formats by the values that share a scale."""

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where the eight neighbours along N are in a word of AWQ."""


def prepack_int4(
    packed: Tensor, scale: Tensor, *, layout: str | BLayout = BLayout.EXACT1
) -> PrepackedWeights:
    """
    Prepack INT4 weights for the kernels of Hopper and of the CPU.

    Works group by group on the device of `packed`. Besides the result, it needs memory for the
    values of one group.

    Args:
        packed: (G, N, K / 8) int32: eight values along K, each plus 8, the first in the lowest
            bits, as compressed-tensors packs them (K2-Thinking). N is a multiple of 8.
        scale: (G, N, ceil(K / 32)) or (G, N, ceil(K / 128)) bfloat16 or float16, for groups of 32
            or 128 along K; K is a multiple of 16.
        layout: ``exact1`` for float8_e4m3fn activations, or bfloat16 activations that
            `jitgen.quantize.split_bf16` split; ``wide1`` for bfloat16 activations. See
            `jitgen.formats.int4`.

    Raises:
        InputError: An argument has a wrong type or shape, or is out of range.
    """
    form = _check(packed, scale)
    found = layout_of(layout, form)
    groups, n, words = packed.shape
    k, facts = words * IN_A_WORD, form.facts
    shape = blocks.shape_of(groups, n, k, form)
    values = torch.empty(shape, dtype=torch.int32, device=packed.device)
    factor = torch.empty(groups, dtype=torch.float32, device=packed.device)
    spare_n, spare_k = shape[1] * blocks.ROWS - n, shape[2] * blocks.DEPTH - k
    for group in range(groups):
        numbers = pad(int4.values_of(packed[group]), (0, spare_k, 0, spare_n))
        scales = pad(scale[group], (0, blocks.spare_scales(shape, scale, facts.values), 0, spare_n))
        kept = int4.kept(numbers, scales, found, form)
        joined = blocks.joined(kept.codes, found, facts.b_dtype)
        blocks.blocked(joined, kept.words, values[group])
        factor[group] = kept.factor
    return PrepackedWeights(values=values, factor=factor, n=n, k=k, layout=found, format=form)


def int4_from_gptq(
    qweight: Tensor, scales: Tensor, qzeros: Tensor | None = None, *, is_v2: bool = False
) -> tuple[Tensor, Tensor]:
    """
    Convert weights in the order of GPTQ to the arguments of `prepack_int4`. Rows along K must not
    be reordered (``desc_act`` false).

    Args:
        qweight: (G, K / 8, N) int32: eight values along K, each plus 8.
        scales: (G, S, N).
        qzeros: (G, S, N / 8) int32: zero points, all 8; None: there are none.
        is_v2: Whether zero points are stored unchanged, instead of less 1.

    Raises:
        InputError: An argument is not of this kind, or a zero point is another.
    """
    _require_words(qweight, "qweight", "(G, K / 8, N)")
    _check_zeros(qzeros, MIDDLE if is_v2 else MIDDLE - 1)
    return qweight.mT.contiguous(), scales.mT.contiguous()


def int4_from_awq(
    qweight: Tensor, scales: Tensor, qzeros: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """
    Convert weights in the order of AWQ to the arguments of `prepack_int4`.

    Args:
        qweight: (G, K, N / 8) int32: eight values along N, each plus 8.
        scales: (G, S, N).
        qzeros: (G, S, N / 8) int32: zero points, all 8; None: there are none.

    Raises:
        InputError: An argument is not of this kind, or a zero point is another.
    """
    _require_words(qweight, "qweight", "(G, K, N / 8)")
    if qweight.shape[1] % IN_A_WORD:
        raise InputError("qweight", f"must have K a multiple of 8 (got {qweight.shape[1]})")
    _check_zeros(qzeros, MIDDLE)
    return int4.packed_of(awq_values(qweight).mT), scales.mT.contiguous()


def awq_values(qweight: Tensor) -> Tensor:
    """Return the values of AWQ's words, (..., K, N / 8) int32 to (..., K, N) int8."""
    parts: Tensor = int4.values_of(qweight).unflatten(-1, (-1, IN_A_WORD))
    return parts[..., list(_AWQ_ORDER)].flatten(-2)


def _check(packed: Tensor, scale: Tensor) -> PrepackedFormat:
    """Check the arguments of `prepack_int4`, and return the format that its scales imply."""
    _require_words(packed, "packed", "(G, N, K / 8)")
    groups, n, words = packed.shape
    k = words * IN_A_WORD
    if not groups or not words:
        raise InputError("packed", f"must have groups and values (got {tuple(packed.shape)})")
    if not isinstance(scale, Tensor) or scale.dtype not in SCALES or scale.dim() != 3:
        raise InputError(
            "scale",
            f"must be bfloat16 or float16, (G, N, K / 32) or (G, N, K / 128) (got {_kind(scale)})",
        )
    allowed: dict[tuple[int, ...], PrepackedFormat] = {
        (groups, n, form.facts.scales_of(k)): form for form in reversed(GROUPS.values())
    }
    form = allowed.get(tuple(scale.shape))
    if form is None:
        wanted = " or ".join(map(str, allowed))
        raise InputError(
            "scale",
            f"must have shape {wanted}, for packed of {tuple(packed.shape)} (got "
            f"{tuple(scale.shape)})",
        )
    check_sizes(n, k)
    if scale.device != packed.device:
        raise InputError("scale", f"must be on {packed.device}, as packed is (got {scale.device})")
    return form


def _require_words(words: object, name: str, shape: str) -> None:
    if not isinstance(words, Tensor) or words.dtype is not torch.int32 or words.dim() != 3:
        raise InputError(name, f"must be int32, {shape} (got {_kind(words)})")


def _check_zeros(zeros: Tensor | None, wanted: int) -> None:
    """Require that all zero points are `wanted`."""
    if zeros is None:
        return
    _require_words(zeros, "qzeros", "(G, S, N / 8)")
    found = int4.values_of(zeros) + MIDDLE
    if (found != wanted).any():
        other = int(found[found != wanted][0])
        raise InputError(
            "qzeros",
            f"must be {wanted} in every place, as symmetric weights have it: zero points are not "
            f"read (got {other})",
        )


def _kind(x: object) -> str:
    return f"{x.dtype} of {tuple(x.shape)}" if isinstance(x, Tensor) else shown(x)
