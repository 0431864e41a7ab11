# SPDX-License-Identifier: Apache-2.0
"""Quantising to scales in atoms on a GPU: the bytes that a CPU makes, and nothing waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from jitgen import quantize
from jitgen.formats import mx32

OFFS = torch.tensor([0, 5, 135, 135, 290], dtype=torch.int32)


def ragged(of: Callable[..., Any]) -> Callable[[Tensor, Tensor], tuple[Tensor, ...]]:
    return lambda x, offs: of(x, offs=offs)


def converted(x: Tensor, offs: Tensor) -> tuple[Tensor, ...]:
    """Go through every order that others have."""
    _, scale = mx32.mxfp8(x, offs=offs)
    words = quantize.to_words(scale, len(x), offs=offs, starts="fours")
    moved = quantize.to_trtllm(scale, offs)
    return (
        words,
        moved,
        quantize.from_words(words, offs=offs, starts="fours"),
        quantize.from_trtllm(moved, offs),
        quantize.from_atoms(scale, len(x), 8, offs=offs),
    )


WAYS = {
    "mxfp8": ragged(quantize.mxfp8),
    "mxfp4": ragged(quantize.mxfp4),
    "nvfp4": ragged(quantize.nvfp4),
    "weights": lambda x, _: quantize.nvfp4(x[:292].view(4, 73, -1)),
    "converted": converted,
}


def raw(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8).cpu()


def owned(found: tuple[Tensor, ...], way: str) -> tuple[Tensor, ...]:
    """Return the values and scales that belong to rows; kernels write nothing else."""
    if way == "converted":
        return found
    q, scale, *rest = found
    size = 256 // (16 if rest else 32)
    if way == "weights":
        return (q, quantize.from_atoms(scale, 73, size), *rest)
    by_row = quantize.from_atoms(scale, 293, size, offs=OFFS.to(scale.device))
    return (q[:290], by_row[:290], *rest)


@pytest.mark.parametrize("way", WAYS)
def test_a_graph_captures_it_and_gives_the_bytes_of_a_cpu(way: str) -> None:
    """What waited for the device could not be captured."""
    of = WAYS[way]
    x = torch.randn(293, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
    on_gpu, offs = x.cuda(), OFFS.cuda()
    of(on_gpu, offs)  # constants are made once
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = of(on_gpu, offs)
    graph.replay()
    torch.cuda.synchronize()
    for have, want in zip(owned(found, way), owned(of(x, OFFS), way), strict=True):
        assert torch.equal(raw(have), raw(want))


@pytest.mark.parametrize("shape", [(293, 8), (256, 56), (3, 130, 12)])
def test_words_are_what_deep_gemm_makes(shape: tuple[int, ...]) -> None:
    """Its own function packs float32 powers of two: the same words, and the same strides."""
    deep_gemm = pytest.importorskip("deep_gemm")
    scale = torch.randint(1, 255, shape, dtype=torch.uint8, generator=torch.Generator())
    powers = torch.exp2(scale.double() - 127).float().cuda()
    theirs = deep_gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor(powers)
    ours = quantize.to_words(quantize.to_atoms(scale.cuda()), shape[-2])

    assert torch.equal(ours, theirs)
    assert ours.stride() == theirs.stride()
    assert torch.equal(raw(quantize.from_words(theirs)), raw(quantize.to_atoms(scale)))
