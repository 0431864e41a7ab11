# SPDX-License-Identifier: Apache-2.0
"""
Mistakes drawn from the source of a kernel by chance, for `jitgen verify`.

    python -m tests.mutants combine --arch sm_90a --count 20 --seed 1
    python -m tests.mutants grouped_gemm --of synchronisation --kernel 6 --count 20 --seed 1

Those whose PTX is that of the kernel are no mistakes; what else is called right is printed, to be
read: it is equivalent, or `verify` asks too little.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from multiprocessing import get_context

from jitgen.codegen.render import render
from jitgen.config import Arch
from jitgen.config.plugins import OPERATIONS
from tests.mutants import synchronisation, values
from tests.mutants.judge import judged, kernels

KINDS = {"values": values.mutants, "synchronisation": synchronisation.mutants}


def _worker() -> ProcessPoolExecutor:
    """Return a process for compilers, which may end it."""
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def main() -> int:
    """Draw mistakes, judge each, print those that survive, and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("op")
    parser.add_argument("--of", default="values", choices=KINDS)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--kernel", type=int, default=0, help="which of the covering kernels")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.op not in OPERATIONS.names():
        parser.error(f"{given.op!r} is not one of {', '.join(OPERATIONS.names())}")
    config = kernels(given.op, given.arch)[given.kernel].config
    name, text = config.name(given.arch), render(config, Arch.parse(given.arch)).text
    all_of_them = sorted(set(KINDS[given.of](text)))
    drawn = random.Random(given.seed).sample(all_of_them, min(given.count, len(all_of_them)))
    counts: Counter[str] = Counter()
    print(f"{name}: {len(drawn)} of {len(all_of_them)} mistakes of {given.of}", flush=True)
    worker = _worker()
    for mutant in drawn:
        try:
            word, reason = worker.submit(judged, name, given.op, given.arch, mutant).result()
        except BrokenExecutor:  # the compiler ended the process
            word, reason = "refused", ""
            worker = _worker()
        counts[word] += 1
        if word == "survived":
            print(f"  survived: {mutant.shown(text)} {reason}", flush=True)
    worker.shutdown()
    print(f"{name}: " + ", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
