# SPDX-License-Identifier: Apache-2.0
"""Scales in atoms: where each byte lies, and the same bytes in the order of others, and back."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from jitgen import quantize
from jitgen.errors import InputError
from jitgen.formats import atoms
from jitgen.formats.protocol import Rows

OFFS = torch.tensor([0, 5, 135, 135, 290], dtype=torch.int32)
STARTS = [0, 0, 5, 135, 135]
M, S = 293, 7
E4M3 = torch.float8_e4m3fn


def some(*shape: int) -> Tensor:
    """Return scales without zero bytes, so that padding is none of them."""
    chance = torch.Generator().manual_seed(len(shape))
    return torch.randint(1, 255, shape, generator=chance, dtype=torch.uint8)


def raw(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


def test_an_atom_by_hand() -> None:
    """
    Two atoms of 128 rows by 8 scales, written down from NVIDIA's figure (cuBLAS, "1D block scaling
    factors layout"; PTX ISA, scale vector 4X): 16 bytes hold rows r, r + 32, r + 64 and r + 96.
    """
    row, place = torch.arange(128)[:, None], torch.arange(8)
    scale = (row * 2 + (place >= 4)).to(torch.uint8)
    scale[:, 3], scale[:, 7] = 255, 254
    first, second = raw(quantize.to_atoms(scale))[0].tolist()

    assert first[:16] == [0, 0, 0, 255, 64, 64, 64, 255, 128, 128, 128, 255, 192, 192, 192, 255]
    assert first[16:20] == [2, 2, 2, 255]
    assert first[-4:] == [254, 254, 254, 255]
    assert second[:8] == [1, 1, 1, 254, 65, 65, 65, 254]
    assert second[-16:-8] == [63, 63, 63, 254, 127, 127, 127, 254]


def test_every_byte_is_where_the_formula_says() -> None:
    """And a group's rows begin with a block of their own, after those of the groups before."""
    scale = some(M, S)
    found = raw(quantize.to_atoms(scale, offs=OFFS))
    expected = torch.zeros((M + 127 * 5) // 128, 2, 512, dtype=torch.uint8)
    block = 0
    for start, end in pairwise([0, *OFFS.tolist()]):
        for r in range(end - start):
            for s in range(S):
                byte = (r % 32) * 16 + (r % 128 // 32) * 4 + s % 4
                expected[block + r // 128, s // 4, byte] = scale[start + r, s]
        block += -(-(end - start) // 128)

    assert block == 5
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e8m0fnu, E4M3])
@pytest.mark.parametrize(
    ("shape", "offs"),
    [((M, S), OFFS), ((M, S), None), ((3, 130, 4), None), ((1, 1), None), ((0, 3), OFFS * 0)],
)
def test_there_and_back(shape: tuple[int, ...], offs: Tensor | None, dtype: torch.dtype) -> None:
    scale = some(*shape)
    found = quantize.to_atoms(scale.view(dtype), offs=offs)
    back = quantize.from_atoms(found, *shape[-2:], offs=offs)
    owned = shape[-2] if offs is None else int(offs[-1])

    assert found.dtype is back.dtype is (E4M3 if dtype is E4M3 else torch.float8_e8m0fnu)
    assert found.shape[-3] == atoms.num_blocks(Rows(shape[:-1], 0 if offs is None else 5))
    assert torch.equal(raw(back)[..., :owned, :], scale[..., :owned, :])
    assert not raw(back)[..., owned:, :].any()


def test_what_lies_beyond_k_is_finite() -> None:
    """Zero bytes, whatever is in padding rows: 0 times a NaN would be one."""
    scale = atoms.swizzled(some(130, 5), fill=0xFF)
    plain = atoms.plain(scale, 8)

    assert not plain[:, 5:].any()
    assert (plain[130:, :5] == 0xFF).all()


def test_torch_has_the_same_bytes() -> None:
    found = quantize.to_atoms(some(M, S), offs=OFFS)
    blocked = quantize.to_torch(found)

    assert blocked.shape == (7 * 128, 8)
    assert blocked.data_ptr() == found.data_ptr()
    assert torch.equal(raw(quantize.from_torch(blocked)), raw(found))
    longer = torch.cat([raw(blocked), some(34, 8)])  # torchao allocates M + 128 * G rows
    assert torch.equal(raw(quantize.from_torch(longer)), raw(found))
    weights = quantize.to_atoms(some(3, 130, 4))
    assert quantize.to_torch(weights).shape == (3, 256, 4)


def test_trtllm_begins_groups_elsewhere() -> None:
    """
    Group g at row (start + 127 g) // 128 * 128: with ends 148, 348, 412, 592 and 688 at 0, 256,
    512, 768 and 1024 (FlashInfer's m_indptr_padded), where sums have 0, 256, 512, 640 and 896.
    """
    offs = torch.tensor([148, 348, 412, 592, 688], dtype=torch.int32)
    scale = some(688, 4)
    ours = quantize.to_atoms(scale, offs=offs)
    theirs = raw(quantize.to_trtllm(ours, offs))
    for group, (want, have) in enumerate(zip((0, 2, 4, 6, 8), (0, 2, 4, 5, 7), strict=True)):
        blocks = -(-(offs.tolist()[group] - [0, *offs.tolist()][group]) // 128)
        assert torch.equal(theirs[want : want + blocks], raw(ours)[have : have + blocks])
    assert not theirs[5].any()

    assert torch.equal(raw(quantize.from_trtllm(theirs, offs)), raw(ours))
    flat = quantize.to_torch(quantize.to_trtllm(ours, offs))
    assert torch.equal(raw(quantize.from_trtllm(flat, offs)), raw(ours))


def test_words_hold_four_of_a_row() -> None:
    """DeepGEMM's: little-endian along K, M contiguous, columns at multiples of 16 bytes."""
    scale = torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]], dtype=torch.uint8)
    found = quantize.to_words(quantize.to_atoms(scale), 2)

    assert found.tolist() == [[0x04030201, 0x0605], [0x0A090807, 0x0C0B]]
    assert found.stride() == (1, 4)
    assert found.dtype is torch.int32


@pytest.mark.parametrize(("shape", "offs"), [((M, S), None), ((M, S), OFFS), ((2, 130, 9), None)])
def test_words_there_and_back(shape: tuple[int, ...], offs: Tensor | None) -> None:
    found = quantize.to_atoms(some(*shape), offs=offs)
    words = quantize.to_words(found, shape[-2], offs=offs)

    assert words.stride(-2) == 1
    assert words.stride(-1) % 4 == 0
    assert torch.equal(raw(quantize.from_words(words, offs=offs)), raw(found))


def test_flashinfer_begins_groups_at_fours() -> None:
    """On SM120 at row (start + 3 g) // 4 * 4."""
    scale = some(M, 4)
    found = quantize.to_atoms(scale, offs=OFFS)
    words = quantize.to_words(found, M, offs=OFFS, starts="fours")
    for group, (start, end) in enumerate(zip(STARTS, OFFS.tolist(), strict=True)):
        first = (start + 3 * group) // 4 * 4
        part = words[first : first + end - start]
        assert torch.equal(raw(part).view(-1, 4), scale[start:end])
    back = raw(quantize.from_words(words, offs=OFFS, starts="fours"))

    assert torch.equal(back[: len(found)], raw(found))
    assert not back[len(found) :].any()


def test_scales_of_128_are_four_of_32() -> None:
    """DeepGEMM's FP8 with UE8M0 scales of 1x128 is MXFP8 whose scales come in fours."""
    scale = some(20, 4)
    words = quantize.to_words(quantize.to_atoms(scale), 20)
    found = quantize.from_words(words, repeats=4)

    assert torch.equal(raw(quantize.from_atoms(found, 20, 16)), scale.repeat_interleave(4, -1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quantize.to_atoms(torch.ones(3, 4)), r"scale: must be float8_e8m0fnu, .*float32"),
        (lambda: quantize.to_atoms(some(4)), r"scale: must .* 2 or 3 dimensions"),
        (lambda: quantize.to_atoms(some(2, 3, 4), offs=OFFS), r"offs: makes rows ragged"),
        (lambda: quantize.from_atoms(some(2, 1, 500), 3, 4), r"atoms: must have shape \(..., bl"),
        (lambda: quantize.from_atoms(some(1, 1, 512), 129, 4), r"atoms: must have at least 2 bl"),
        (lambda: quantize.from_atoms(some(1, 1, 512), 1, 5), r"blocks of 2 atoms for 1 rows of 5"),
        (lambda: quantize.from_torch(some(128, 3)), r"scale: must be contiguous with a multiple"),
        (
            lambda: quantize.from_words(some(4, 4)),
            r"words: must be \(M, W\) .* int32 \(got torch.u",
        ),
        (
            lambda: quantize.from_words(some(4, 4).view(torch.int32), starts="fours"),
            r"offs: is required with starts=.fours.",
        ),
    ],
)
def test_mistakes(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()  # type: ignore[operator]
