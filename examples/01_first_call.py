# SPDX-License-Identifier: Apache-2.0
"""
First call: quantise activations and weights, multiply each expert's rows, compare with float32.

Run it twice: the first run compiles one kernel, the second one loads it from disk.
"""

from __future__ import annotations

import time

import torch

import jitgen


def main() -> None:
    """Multiply rows of 4 experts, of which one has none."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows_of_expert = torch.tensor([37, 0, 91, 128])
    k, n = 512, 256

    x = torch.randn(int(rows_of_expert.sum()), k, device=device)
    weights = torch.randn(4, n, k, device=device)
    offs = rows_of_expert.cumsum(0).to(torch.int32).to(device)  # the row behind each expert's last

    a, a_scale = jitgen.quantize.per_token_group(x)  # one scale for 1 x 128 values
    b, b_scale = jitgen.quantize.per_block(weights)  # one scale for 128 x 128 values

    for attempt in ("first call", "second call"):
        start = time.perf_counter()
        out = jitgen.grouped_gemm(a, b, a_scale, b_scale, offs=offs)
        if device == "cuda":
            torch.cuda.synchronize()
        print(f"{attempt}: {(time.perf_counter() - start) * 1e3:.2f} ms")

    expected = jitgen.reference.grouped_gemm(a, b, a_scale, b_scale, offs=offs)
    error = (out.float() - expected.float()).abs().max() / expected.float().abs().max()
    print(f"{tuple(out.shape)} {out.dtype}, largest error {error:.1e} of the largest value")
    assert error < 2**-7


if __name__ == "__main__":
    main()
