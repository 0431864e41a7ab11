# SPDX-License-Identifier: Apache-2.0
"""
Kernels of a plan, compiled by the workers of a Ray cluster into a folder that all nodes see.

    python examples/ray/prewarm.py deepseek-v3 sm_90a --root /shared/jitgen --shards 8

No task needs a GPU. The driver ends with an error if a shard failed or a kernel is missing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import ray


def prewarm(root: str, plan: str, target: str, *options: str) -> None:
    """Run ``jitgen prewarm`` with the cache in `root`; an error has the end of what it said."""
    command = [sys.executable, "-m", "jitgen", "prewarm", plan, "--arch", target, *options]
    done = subprocess.run(
        command,
        env=os.environ | {"JITGEN_CACHE_DIR": root},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"jitgen ended with {done.returncode}: {done.stderr[-2000:]}")


def main() -> None:
    """Compile all shards, each in a task, then check that nothing is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan")
    parser.add_argument("target")
    parser.add_argument("--root", required=True)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--cpus", type=int, default=2, help="CPUs, and compiles, of a task")
    asked = parser.parse_args()

    ray.init()
    task = ray.remote(num_cpus=asked.cpus)(prewarm)
    jobs = ("--jobs", str(asked.cpus))
    shards = [
        task.remote(
            asked.root, asked.plan, asked.target, "--shard", f"{index}/{asked.shards}", *jobs
        )
        for index in range(asked.shards)
    ]
    ray.get(shards)
    prewarm(asked.root, asked.plan, asked.target, "--check")
    print(f"{asked.root} has every kernel of {asked.plan} for {asked.target}")


if __name__ == "__main__":
    main()
