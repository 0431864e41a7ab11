# SPDX-License-Identifier: Apache-2.0
"""
Verify a GPU kernel without a GPU: run it in the emulator, on tensors of your own.

The same on the command line, with problems made for the kernel: ``jitgen verify NAME``. Both need
``pip install 'jitgen[emulator]'``.
"""

from __future__ import annotations

import torch

import jitgen
from jitgen import Cluster, GroupedGemmConfig, Layout, Tile


def main() -> None:
    """Run an sm_90a kernel in three modes, look at what was found, and check the result."""
    torch.manual_seed(0)
    config = GroupedGemmConfig(
        layout=Layout.MASKED, tile=Tile(m=64, n=64, k=128), cluster=Cluster(m=1, n=2)
    )
    kernel = jitgen.get_kernel(config, "sm_90a")  # compiled here; nothing of it is changed

    a, a_scale = jitgen.quantize.per_token_group(torch.randn(2, 70, 512))
    b, b_scale = jitgen.quantize.per_block(torch.randn(2, 136, 512))
    rows = torch.tensor([70, 3], dtype=torch.int32)
    out = torch.zeros(2, 70, 136, dtype=torch.bfloat16)
    report = jitgen.emulate(kernel, a, b, a_scale, b_scale, rows, out, num_sms=2)
    print(report)
    for function, count in report.runs[0].warp_instructions.items():
        print(f"{count:8,} warp instructions in {function}")

    assert report.is_clean  # no race, no missing fence, nothing left undone
    expected = jitgen.reference.grouped_gemm(a, b, a_scale, b_scale, masked_m=rows)
    for group, count in enumerate(rows.tolist()):
        torch.testing.assert_close(out[group, :count], expected[group, :count])


if __name__ == "__main__":
    main()
