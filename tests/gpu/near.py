# SPDX-License-Identifier: Apache-2.0
"""
FP8 kernels of sm_90a with tall tiles, those of the menus and others near them, timed in turn.

    python -m tests.gpu.near prewarm                                # anywhere: compiles the kernels
    JITGEN_ON_MISS=error python -m tests.gpu.near run --of knee --save near.json --seconds 120
    python -m tests.gpu.near show near.json                         # anywhere: what each loses

They say how much better menus and choices could be from 160 rows a group to prefill; all results
are checked first. The file is one that `jitgen bench choice` writes, with kernels that are in no
menu beside those that are. `--of knee` has even and uneven rows of 8, 16 and 32 groups; `held` has
other sizes, by which a choice is judged that was made with the first; `prefill` has cases in which
DeepGEMM was faster; `contiguous` has long calls of served layers.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from statistics import fmean

import jitgen
from jitgen.bench import gpu
from jitgen.bench.choice.cases import Case, Kind, Routing, kernels_of, skewed_cases
from jitgen.bench.choice.report import ChoiceReport
from jitgen.bench.choice.run import measure
from jitgen.bench.protocol import conditions
from jitgen.bench.runner import attempt
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import (
    Cluster,
    GroupedGemmConfig,
    GroupedGemmProblem,
    Operands,
    Schedule,
    Tile,
)
from jitgen.targets.legality import require
from tests.candidates import candidates

RAGGED, MASKED, CONTIGUOUS = Layout.RAGGED, Layout.MASKED, Layout.CONTIGUOUS
DEFAULT, STRIPS = Schedule(), Schedule(raster=4)
ACROSS, ALONG = Cluster(n=2), Cluster(m=2)

OF_ALL = (
    (128, 192, ALONG, DEFAULT),
    (128, 192, ACROSS, DEFAULT),
    (256, 128, ACROSS, Schedule(raster=8)),
)
OF_OWN_TILES = (*OF_ALL, (256, 128, ALONG, STRIPS))
NEAR = {
    RAGGED: (
        *OF_OWN_TILES,
        (128, 160, ACROSS, DEFAULT),
        (192, 128, ALONG, DEFAULT),
        (192, 128, Cluster(), DEFAULT),
        (192, 128, Cluster(), Schedule(swap_tail=True, extra_rows=True)),
        (256, 128, Cluster(), STRIPS),
        (256, 112, ACROSS, STRIPS),
        (128, 128, ALONG, Schedule(swap_tail=True)),
    ),
    MASKED: OF_OWN_TILES,
    CONTIGUOUS: (
        *OF_ALL,
        *((128, 192, ALONG, Schedule(raster=raster)) for raster in (4, 6, 12, 16, 24)),
        (128, 192, ACROSS, Schedule(raster=16)),
        *((256, 128, ACROSS, Schedule(raster=raster)) for raster in (2, 6, 12)),
        (128, 160, ALONG, DEFAULT),
    ),
}
"""Rows and columns of tiles, clusters and schedules of kernels that are in no menu, or were not."""

MATRICES = ((4096, 7168), (7168, 2048))
EVEN, NEARLY, MORE = (Kind.EVEN, 0.0), (Kind.SPREAD, 0.3), (Kind.SPREAD, 0.5)
ROUTED, POWER = (Kind.ROUTED, 0.5), (Kind.ZIPF, 0.6)


def kernels(case: Case, *, is_near: bool) -> list[GroupedGemmConfig]:
    """Return the tall tiles with all of K that may be chosen for a case, and those near them."""
    menu = [each for each in kernels_of([case], Arch.SM_90A) if each.schedule.split_k == 1]
    tall = [each for each in menu if each.tile.m > 64]
    return list(dict.fromkeys([*tall, *(near(case.problem.layout) if is_near else ())]))


def near(layout: Layout) -> list[GroupedGemmConfig]:
    """Return the configs of `NEAR` for a layout, which must be legal."""
    found = [
        GroupedGemmConfig(
            layout=layout,
            operands=Operands(),
            tile=Tile(m=rows, n=columns, k=128),
            cluster=cluster,
            schedule=schedule,
        )
        for rows, columns, cluster, schedule in NEAR[layout]
    ]
    for each in found:
        require(each, Arch.SM_90A)
    return found


def case(
    layout: Layout, groups: int, rows: int, n: int, k: int, kind: tuple[Kind, float], seed: int = 0
) -> Case:
    """Return the case of so many rows of each group on average."""
    problem = GroupedGemmProblem(layout=layout, groups=groups, m=groups * rows, n=n, k=k)
    return Case(problem=problem, routing=Routing(kind=kind[0], amount=kind[1], seed=seed + rows))


def knee() -> list[Case]:
    """Return the means between tiles of 192 and 256 rows with more kinds of rows, then others."""
    sizes = [(groups, n, k) for groups in (32, 16, 8) for n, k in MATRICES]
    most = ((EVEN, 0), (NEARLY, 0), (NEARLY, 1000), (MORE, 0), (ROUTED, 0), (POWER, 0))
    found = [
        case(RAGGED, groups, rows, n, k, kind, seed)
        for rows in (224, 256, 240)
        for kind, seed in most
        for groups, n, k in sizes
    ]
    found += [
        case(RAGGED, groups, rows, n, k, kind)
        for kind in (EVEN, NEARLY, POWER)
        for rows in (257, 200, 288, 192, 320, 384, 160, 512)
        for groups, n, k in sizes
    ]
    masked = (EVEN, NEARLY, MORE, POWER)
    return [
        case(MASKED, 32, rows, n, k, kind)
        for rows in (224, 256)
        for n, k in MATRICES
        for kind in masked
    ] + found


def held() -> list[Case]:
    """Return layers that were not tuned for."""
    return [
        case(layout, groups, rows, n, k, kind, 77)
        for rows in (224, 256, 288, 200, 240)
        for kind in (EVEN, NEARLY, MORE, ROUTED, POWER)
        for layout, groups, n, k in (
            (RAGGED, 24, 6144, 4096),
            (RAGGED, 16, 5760, 2880),
            (MASKED, 12, 5120, 6144),
            (RAGGED, 64, 2816, 2048),
        )
    ]


def prefill() -> list[Case]:
    """Return cases in which DeepGEMM was faster, and others that changed menus must not harm."""
    return [
        case(CONTIGUOUS, 8, 700, 6144, 16_384, EVEN),
        case(MASKED, 6, 1024, 6144, 7168, EVEN),
        case(CONTIGUOUS, 4, 8192, 4096, 7168, EVEN),
        case(CONTIGUOUS, 16, 256, 16_384, 7168, EVEN),
        case(CONTIGUOUS, 2, 16_384, 4096, 7168, EVEN),
        *(case(MASKED, 32, 192, n, k, NEARLY, seed) for n, k in MATRICES for seed in (0, 1000)),
        *(case(RAGGED, 8, 300, n, k, MORE, seed) for n, k in MATRICES for seed in (0, 1000)),
        case(RAGGED, 48, 171, 4096, 7168, NEARLY),
        case(MASKED, 6, 1024, 6144, 7168, NEARLY),
        case(CONTIGUOUS, 8, 700, 6144, 16_384, NEARLY),
        case(CONTIGUOUS, 8, 700, 4096, 7168, NEARLY),
        case(CONTIGUOUS, 32, 512, 4096, 7168, NEARLY),
    ]


LONG = (
    *((8, 700, 6144, 16_384), (16, 256, 16_384, 7168), (4, 8192, 4096, 7168), (8, 512, 4096, 7168)),
    *(
        (8, 1024, 32_768, 6144),
        (32, 512, 4096, 7168),
        (16, 1024, 5760, 2880),
        (24, 768, 6144, 4096),
    ),
    *((8, 4096, 7168, 2048), (4, 2048, 16_384, 6144), (32, 512, 7168, 2048), (64, 512, 2816, 2048)),
    *((8, 1024, 6144, 16_384), (32, 256, 4096, 7168), (16, 300, 6144, 7168), (12, 640, 9216, 5120)),
    *((8, 2048, 3072, 4096), (16, 512, 4096, 1536), (128, 256, 3072, 4096), (32, 1024, 7168, 2048)),
    *((8, 384, 6144, 4096), (4, 1024, 7168, 7168), (1, 4096, 7168, 7168), (1, 2048, 16_384, 6144)),
)
"""Groups, rows of each, N and K of contiguous calls."""


def contiguous() -> list[Case]:
    """
    Return calls whose strips of tiles along M decide what L2 holds: uneven ones of a layer, then
    long ones.
    """
    uneven = [each for each in skewed_cases(80, 2000) if each.problem.layout is CONTIGUOUS]
    return uneven + [
        case(CONTIGUOUS, groups, rows, n, k, kind)
        for groups, rows, n, k in LONG
        for kind in ((EVEN, MORE) if groups > 1 else (EVEN,))
    ]


FAMILIES = {"knee": knee, "held": held, "prefill": prefill, "contiguous": contiguous}


def run(cases: list[Case], path: Path, seconds: float, *, is_near: bool) -> int:
    """Time cases until so many seconds have passed; return 1 if a kernel was wrong or failed."""
    report = ChoiceReport(family="layers", seed=0)
    report.conditions.update({**conditions(), **gpu.conditions()})
    begin = time.perf_counter()

    def add(each: Case) -> None:
        report.found.append(measure(each, Arch.SM_90A, kernels(each, is_near=is_near)))

    for number, each in enumerate(cases, start=1):
        if time.perf_counter() - begin > seconds:
            break
        attempt(str(each), partial(add, each), report.failed)
        if number % 10 == 0 or len(cases) < 30:
            report.save(path)
            print(number, "of", len(cases), f"{time.perf_counter() - begin:.0f} s", flush=True)
    report.save(path)
    print(len(report.found), "cases;", report.failed)
    return int(bool(report.failed))


def show(path: Path) -> int:
    """Print, for each problem, what kernels lose with even and with uneven rows."""
    report = ChoiceReport.read(path)
    found: dict[str, list[dict[str, dict[str, float]]]] = defaultdict(lambda: [{}, {}])
    for each in report.found:
        best = min(each.times_us.values())
        of = found[each.case.problem.slug][str(each.case.routing) != str(Kind.EVEN)]
        of[str(each.case.routing)] = {
            GroupedGemmConfig.parse(name)[0].short: us / best - 1
            for name, us in each.times_us.items()
        }
    for slug, (even, uneven) in found.items():
        print(slug)
        names = list(next(iter({**even, **uneven}.values())))
        lost = {
            name: [
                100 * fmean(of[name] for of in some.values()) if some else 0.0
                for some in (even, uneven)
            ]
            for name in names
        }
        for name in sorted(names, key=lambda name: sum(lost[name]))[:6]:
            even_lost, uneven_lost = lost[name]
            print(f"   even {even_lost:5.1f} %  uneven {uneven_lost:5.1f} %  {name}")
    return 0


def main() -> int:
    """Run the command of the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("command", choices=("prewarm", "run", "show"))
    parser.add_argument("file", type=Path, nargs="?", help="what to show")
    parser.add_argument("--of", choices=FAMILIES, default="knee", help="the cases")
    parser.add_argument("--save", type=Path, help="file for the times")
    parser.add_argument("--seconds", type=float, default=120, help="no case begins after these")
    parser.add_argument("--menu", action="store_true", help="only kernels that may be chosen")
    given = parser.parse_args()
    if given.command == "show":
        return show(given.file)
    if given.command == "run":
        return run(FAMILIES[given.of](), given.save, given.seconds, is_near=not given.menu)
    for layout in Layout:
        menu = [each for each in candidates(Arch.SM_90A, layout, Operands()) if each.tile.m > 64]
        for config in dict.fromkeys([*menu, *near(layout)]):
            print(jitgen.get_kernel(config, Arch.SM_90A).name, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
