# SPDX-License-Identifier: Apache-2.0
"""What each rank does before its first call: share the compiles with the others, then freeze."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

import jitgen


def main() -> None:
    """Warm up, freeze, and say what this rank has."""
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if has_gpu else "gloo")
    report = jitgen.warm_up(os.environ["PLAN"])
    jitgen.freeze()
    compiled = report.count("compiled")
    print(f"rank {dist.get_rank()}: {len(report.rows)} kernels, {compiled} of them compiled here")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
