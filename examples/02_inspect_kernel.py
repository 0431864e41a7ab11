# SPDX-License-Identifier: Apache-2.0
"""
Inspect a kernel: why it was chosen, its source, and what it takes on a GPU that need not be here.

The same on the command line: ``jitgen select``, ``jitgen configs``, ``jitgen show``.
"""

from __future__ import annotations

import dataclasses

import jitgen
from jitgen import Arch, GroupedGemmProblem, Layout, Pipeline


def main() -> None:
    """Ask for a config, refuse another one, and show what was generated."""
    problem = GroupedGemmProblem(layout=Layout.RAGGED, groups=8, m=8 * 256, n=4096, k=7168)
    choice = jitgen.select(problem, "sm_90a")
    print(choice.config.name("sm_90a"))
    print(choice.why)

    # jitgen.check says what a target cannot run before anything is compiled, and what would do
    refused = dataclasses.replace(choice.config, pipeline=Pipeline(num_ab_stage=40))
    verdict = jitgen.check(refused, "sm_90a")
    print(f"\n40 stages: {verdict.code}: {verdict.reason}")

    # a kernel for this machine's processor: generated, compiled, cached and loaded
    local = jitgen.select(dataclasses.replace(problem, m=64, n=256, k=512), Arch.CPU)
    kernel = jitgen.get_kernel(local.config, Arch.CPU)
    print(f"\n{kernel.name} ({kernel.tier}, key {kernel.key[:12]})")
    print("\n".join(kernel.source.splitlines()[:40]))


if __name__ == "__main__":
    main()
