# SPDX-License-Identifier: Apache-2.0
"""
Small calls of every kernel, for the memory and race checkers:
``compute-sanitizer --tool memcheck python -m tests.gpu.small_calls [every N-th kernel]``.
"""

from __future__ import annotations

import os
import sys

import torch

import jitgen
from jitgen.settings import settings
from tests.gpu.configs import ACCUMULATOR_BITS, ARCH, CONFIGS, depth
from tests.problems import make_for, verify


def main() -> None:
    """Run every kernel once, on edge rows; the results are checked as well."""
    if cache := os.environ.get("JITGEN_GPU_CACHE"):
        settings.cache_dir, settings.on_miss = cache, "error"
    every = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    for config in CONFIGS[::every]:
        tile = config.tile.m
        case = make_for(config, [0, 1, tile + 1, 0, tile], 72, depth(config, 400), device="cuda")
        out = jitgen.grouped_gemm(**case.arguments, config=config)
        torch.cuda.synchronize()
        verify(case, out, accumulator_bits=ACCUMULATOR_BITS[config.operands.a_dtype])
        print("right:", config.name(ARCH), flush=True)


if __name__ == "__main__":
    main()
