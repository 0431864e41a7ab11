# SPDX-License-Identifier: Apache-2.0
"""
Ranks in every format of weights, and for a long time: random tokens in graphs and eager calls, maps
of experts that move, ranks that stall, ranks that are late, masked and back again, and ranks whose
processes are killed.

    python -m tests.gpu.ranks_soak prewarm --ranks 2          # anywhere: compiles the kernels
    JITGEN_GPU_CACHE=... python -m tests.gpu.ranks_soak run --ranks 2 --parts soak --seconds 300
    python -m tests.gpu.ranks_soak run --device cpu --parts soak --seconds 20   # without GPUs
    python -m tests.gpu.ranks_soak run --device cpu --ranks 3 --parts kills --seconds 60
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import jitgen
from jitgen.config import Config
from tests.gpu import ranks_formats, ranks_kills, ranks_steps
from tests.gpu.expert_parallel import carried, log
from tests.gpu.ranks_formats import Place


def work(rank: int, asked: argparse.Namespace, meeting: str) -> None:
    """Do the work of one rank."""
    faulthandler.dump_traceback_later(asked.limit, exit=True)
    place = Place(rank, asked.ranks, asked.device)
    if place.is_gpu:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if place.is_gpu else "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=asked.ranks,
        timeout=timedelta(seconds=120),
        device_id=torch.device("cuda", rank) if place.is_gpu else None,
    )
    name = torch.cuda.get_device_name() if place.is_gpu else "CPU"
    log(rank, name, "x", asked.ranks, "torch", torch.__version__)
    wrong: list[str] = []
    try:
        with carried() if place.is_gpu else nullcontext(), torch.no_grad():
            if "formats" in asked.parts:
                wrong += ranks_formats.formats(place, asked.formats)
            if "soak" in asked.parts:
                wrong += ranks_steps.Soak(place).run(asked.seconds)
    except BaseException:
        print(f"rank {rank}:", traceback.format_exc(), flush=True)
        raise
    log(rank, "\n".join(["wrong:", *wrong] if wrong else ["all right"]))
    place.synchronize()
    dist.barrier()
    if not place.is_gpu:
        gc.collect()  # what keeps the group, whose threads must end here
        dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()
    if wrong:
        raise SystemExit(1)


def configs(ranks: int, arch: str, parts: list[str], forms: list[str]) -> Iterator[Config]:
    """Yield the configs of kernels that the parts need."""
    if "formats" in parts:
        yield from ranks_formats.configs(ranks, arch, forms)
    if "soak" in parts:
        yield from ranks_steps.configs(ranks, arch)
    if "kills" in parts:
        yield from ranks_kills.configs(ranks, arch)


def main() -> None:
    """Compile kernels, or run parts in a process for each rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["prewarm", "run"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--parts", default="formats,soak")
    parser.add_argument("--seconds", type=float, default=300, help="of the soak, or of the kills")
    parser.add_argument("--kill-every", type=float, default=10, help="most seconds until a kill")
    parser.add_argument("--formats", default="", help="some formats of weights; all by default")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--limit", type=float, help="seconds after which a run is ended")
    asked = parser.parse_args()
    asked.parts = asked.parts.split(",")
    asked.formats = [each for each in asked.formats.split(",") if each]
    if asked.limit is None:
        timed = {*asked.parts} & {"soak", "kills"}
        asked.limit = asked.seconds * len(timed) + 250
    if asked.action == "prewarm":
        arch = "sm_90a" if asked.device == "cuda" else "cpu"
        found = dict.fromkeys(configs(asked.ranks, arch, asked.parts, asked.formats))
        report = jitgen.prewarm(list(found), arch=arch)
        print(*(f"{row.state} {row.name} {row.error}" for row in report.rows), sep="\n")
        return
    faulthandler.dump_traceback_later(asked.limit + 20, exit=True)
    if {*asked.parts} & {"formats", "soak"}:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(work, (asked, f"{folder}/meeting"), nprocs=asked.ranks)
    wrong = ranks_kills.run(asked) if "kills" in asked.parts else []
    print(*wrong, sep="\n", end="\n" * bool(wrong))
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
