# SPDX-License-Identifier: Apache-2.0
"""
Prewarm, freeze, serve: no request ever waits for the compiler.

Prewarming belongs into the image build, where no GPU is needed; the serving process freezes, so
that a kernel which the plan forgot is an error at once and not a stall of seconds.
"""

from __future__ import annotations

import torch

import jitgen
from jitgen import Arch, GroupedGemmProblem, Layout
from jitgen.errors import KernelMiss

GROUPS, N, K = 4, 256, 512


def prewarm(arch: Arch) -> None:
    """Compile every kernel that batches of 1 to 256 rows a group can choose."""
    problems = [
        GroupedGemmProblem(layout=Layout.RAGGED, groups=GROUPS, m=rows * GROUPS, n=N, k=K)
        for rows in range(1, 257)
    ]
    configs = {jitgen.select(problem, arch).config for problem in problems}
    report = jitgen.prewarm(configs, arch=arch)
    print(
        f"{len(problems)} problems, {len(configs)} kernels: "
        f"{report.count('compiled')} compiled, {report.count('cached')} in the cache"
    )
    assert report.ok


def serve(device: str) -> None:
    """Answer requests of many sizes with the kernels that are there."""
    weights, b_scale = jitgen.quantize.per_block(torch.randn(GROUPS, N, K, device=device))
    compiled: list[jitgen.Event] = []
    stop = jitgen.on_event(
        lambda event: compiled.append(event) if event.kind == "compile" else None
    )
    for rows in (1, 7, 64, 200):
        a, a_scale = jitgen.quantize.per_token_group(torch.randn(rows * GROUPS, K, device=device))
        offs = torch.arange(rows, rows * GROUPS + 1, rows, dtype=torch.int32, device=device)
        out = jitgen.grouped_gemm(a, weights, a_scale, b_scale, offs=offs)
        print(f"served {tuple(out.shape)}")
    stop()
    assert not compiled


def main() -> None:
    """Prewarm, freeze, serve, and meet a kernel that was not prewarmed."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    arch = Arch.SM_90A if device == "cuda" else Arch.CPU
    prewarm(arch)
    jitgen.freeze()
    try:
        serve(device)
        masked = GroupedGemmProblem(layout=Layout.MASKED, groups=GROUPS, m=64, n=N, k=K)
        jitgen.get_kernel(jitgen.select(masked, arch).config, arch)
    except KernelMiss as miss:
        print(f"refused: {miss}")
    finally:
        jitgen.freeze("off")


if __name__ == "__main__":
    main()
