# SPDX-License-Identifier: Apache-2.0
"""
A Triton kernel like those of fused MoE layers, with the fastest of a few tile shapes and the same
numerics as jitgen.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from jitgen.autotune.measure.clock import Call, compete
from jitgen.autotune.measure.workload import Workload
from jitgen.bench.peers import Peer, imported, require
from jitgen.bench.runner import Ready
from jitgen.config.config import SCALE_BLOCK

_SHAPES: tuple[dict[str, int], ...] = (
    {"block_m": 16, "raster": 1, "num_warps": 4, "num_stages": 4},
    {"block_m": 32, "raster": 1, "num_warps": 4, "num_stages": 4},
    {"block_m": 64, "raster": 1, "num_warps": 4, "num_stages": 4},
    {"block_m": 64, "raster": 16, "num_warps": 4, "num_stages": 3},
    {"block_m": 128, "raster": 8, "num_warps": 8, "num_stages": 3},
    {"block_m": 128, "raster": 16, "num_warps": 8, "num_stages": 4},
)
_ROUNDS = 2


class Triton(Peer):
    """
    The kernel in triton_kernel.py.

    The table of the rows of each tile is made before timing, because a fused layer makes it once
    for its two products.
    """

    name = "triton"
    note = "own kernel, the best of a few shapes"
    function = "the Triton kernel"

    def __init__(self) -> None:
        self._kernel = imported("jitgen.bench.peers.triton_kernel", "triton")
        self._best: dict[tuple[object, ...], dict[str, int]] = {}

    def take(self, workload: Workload, expected_m: int) -> Ready:
        """
        Return the kernel with the fastest of the shapes that suit `expected_m`, measured with the
        first workload of each problem and row counts.
        """
        problem = workload.problem
        has_blocks = not problem.k % SCALE_BLOCK
        require(has_blocks, "the Triton kernel wants K of a multiple of 128")
        key = (problem, workload.row_counts)
        if key not in self._best:
            shapes = suited(expected_m)
            calls = [self._call(workload, shape) for shape in shapes]
            times = compete(calls, rounds=_ROUNDS, repetitions=2)
            medians = [each.median for each in times]
            self._best[key] = shapes[medians.index(min(medians))]
        call = self._call(workload, self._best[key])
        return Ready(calls=(call,), check=partial(workload.check, self.name))

    def _call(self, workload: Workload, shape: dict[str, int]) -> Call:
        tiles = tile_table(workload, shape["block_m"]).to(workload.a.device)
        operands = (workload.a, workload.b, workload.a_scale, workload.b_scale, workload.out)
        return partial(self._kernel.launch, operands, tiles, workload.a_scale.stride(-1), **shape)


def suited(expected_m: int) -> list[dict[str, int]]:
    """
    Return the tile shapes worth trying: those with the fewest rows that hold `expected_m`, or else
    128, and those with half as many.
    """
    enough = min(
        (shape["block_m"] for shape in _SHAPES if shape["block_m"] >= expected_m), default=128
    )
    return [shape for shape in _SHAPES if enough // 2 <= shape["block_m"] <= enough]


def tile_table(workload: Workload, block_m: int) -> Tensor:
    """Return group, first row, rows and offset of the first scale, of each tile: (T, 4) int32."""
    tiles: list[Sequence[int]] = []
    for group, where in workload.valid_rows():
        if isinstance(where, slice):
            start = scale = where.start
        else:  # the masked layout
            start, scale = group * workload.a.shape[1], group * workload.a_scale.stride(0)
        count = workload.row_counts[group]
        tiles += [
            (group, start + row, min(block_m, count - row), scale + row)
            for row in range(0, count, block_m)
        ]
    return torch.tensor(tiles, dtype=torch.int32)
