# SPDX-License-Identifier: Apache-2.0
"""
Capture a grouped GEMM in a CUDA graph and replay it with other data and other group sizes.

Kernels must be loaded before the capture: jitgen refuses to load one during it, with a clear error.
"""

from __future__ import annotations

import torch

import jitgen

GROUPS, ROWS, N, K = 8, 512, 1024, 2048


def operands(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return quantised rows and their scales."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return jitgen.quantize.per_token_group(torch.randn(ROWS, K, generator=generator, device="cuda"))


def main() -> None:
    """Capture once, replay with new rows and new group sizes."""
    if not torch.cuda.is_available():
        print("no GPU here: a CUDA graph needs one")
        return
    b, b_scale = jitgen.quantize.per_block(torch.randn(GROUPS, N, K, device="cuda"))
    a, a_scale = operands(seed=1)
    offs = torch.arange(1, GROUPS + 1, dtype=torch.int32, device="cuda") * (ROWS // GROUPS)
    out = torch.empty(ROWS, N, dtype=torch.bfloat16, device="cuda")

    def layer() -> None:
        jitgen.grouped_gemm(a, b, a_scale, b_scale, offs=offs, out=out)

    layer()  # loads the kernel
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer()

    # the graph reads the same addresses: fill them with another batch, whose groups end elsewhere
    new_a, new_scale = operands(seed=2)
    a.copy_(new_a)
    a_scale.copy_(new_scale)
    offs.copy_(torch.tensor([0, 100, 100, 228, 300, 301, 400, ROWS], dtype=torch.int32))
    graph.replay()

    expected = jitgen.reference.grouped_gemm(a, b, a_scale, b_scale, offs=offs)
    error = (out.float() - expected.float()).abs().max() / expected.float().abs().max()
    print(f"replayed with new rows and groups: largest error {error:.1e} of the largest value")
    assert error < 2**-7


if __name__ == "__main__":
    main()
