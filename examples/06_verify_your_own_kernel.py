# SPDX-License-Identifier: Apache-2.0
"""
Verify a kernel of your own, one that jitgen has nothing to do with: ``y = factor * x``.

A TMA copy brings a tile into shared memory, everybody waits for it, and stores it scaled. On the
command line: ``jitgen verify examples/06_verify_your_own_kernel.py --arch sm_90a``. What it needs
beside the kernel is `verify_cases`, and ``pip install 'jitgen[emulator]'``.
"""

from collections.abc import Iterator

import cutlass
import torch
from cutlass import Float32, Int64, cute
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import make_fake_tensor
from cutlass.memory import SmemAllocator

from jitgen.verify import Case, verify_file

ROWS, COLUMNS, THREADS = 16, 64, 128


@cute.struct
class Shared:
    """A barrier for the copy, and a tile, row by row."""

    full: cute.struct.MemRange[Int64, 1]
    tile: cute.struct.Align[cute.struct.MemRange[Float32, ROWS * COLUMNS], 128]


@cute.kernel
def scale_kernel(tma: cute.CopyAtom, x: cute.Tensor, y: cute.Tensor, factor: Float32):
    """Scale one tile."""
    thread, _, _ = cute.arch.thread_idx()
    place = cute.arch.block_idx()[:2]
    shared = SmemAllocator().allocate(Shared)
    full = shared.full.data_ptr()
    tile = shared.tile.get_tensor(cute.make_ordered_layout((ROWS, COLUMNS), order=(1, 0)))

    if thread == 0:
        cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()

    whole, tiles = cute.group_modes(tile, 0, 2), cute.local_tile(x, (ROWS, COLUMNS), (None, None))
    to, source = cpasync.tma_partition(
        tma, 0, cute.make_layout(1), whole, cute.group_modes(tiles, 0, 2)
    )
    if thread < 32:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full, ROWS * COLUMNS * Float32.width // 8)
        cute.copy(tma, source[None, place[0], place[1]], to, tma_bar_ptr=full)
    cute.arch.mbarrier_wait(full, 0)

    for i in cutlass.range_constexpr(ROWS * COLUMNS // THREADS):
        at = i * THREADS + thread
        row, column = at // COLUMNS, at % COLUMNS
        m, n = place[0] * ROWS + row, place[1] * COLUMNS + column
        if m < y.shape[0] and n < y.shape[1]:
            y[m, n] = tile[row, column] * factor


@cute.jit
def scale(x: cute.Tensor, y: cute.Tensor, factor: Float32, stream):
    """Launch a CTA for each tile; x and y are float32, (M, N), and N is a multiple of 4."""
    layout = cute.make_ordered_layout((ROWS, COLUMNS), order=(1, 0))
    load = cpasync.CopyBulkTensorTileG2SOp()
    tma, boxes = cpasync.make_tiled_tma_atom(load, x, layout, (ROWS, COLUMNS))
    scale_kernel(tma, boxes, y, factor).launch(
        grid=[cute.ceil_div(y.shape[0], ROWS), cute.ceil_div(y.shape[1], COLUMNS), 1],
        block=[THREADS, 1, 1],
        stream=stream,
    )


def verify_cases() -> Iterator[Case]:
    """Yield what jitgen is to call: whole tiles, and tails of both sides, with one kernel."""
    sides = cute.sym_int(), cute.sym_int(divisibility=4)
    matrix = make_fake_tensor(Float32, sides, (sides[1], 1), assumed_align=16)
    for name, m, n in (("whole", 16, 64), ("tails", 17, 68)):
        x = torch.arange(m * n, dtype=torch.float32).reshape(m, n)
        yield Case(
            name=name,
            entry=scale,
            arguments={"x": x, "y": torch.empty_like(x), "factor": 2.0},
            samples={"x": matrix, "y": matrix},  # without these a kernel for each size
            expected={"y": 2 * x},
            unknown=["y"],
            tile=(ROWS, COLUMNS),
        )


def main() -> None:
    """Verify this file, as ``jitgen verify`` does."""
    for found in verify_file(__file__, "sm_90a"):
        executed = [counts for each in found.coverage for counts in each.purposes.values()]
        print(f"{found.name}: {'right' if found.is_right else 'WRONG'}")
        print(f"  {sum(n for n, _ in executed)} of {sum(n for _, n in executed)} instructions")
        assert found.is_right, found.to_json()


if __name__ == "__main__":
    main()
