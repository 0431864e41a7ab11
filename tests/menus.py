# SPDX-License-Identifier: Apache-2.0
"""
What compiling everything that may be chosen on a target takes.

    python -m tests.menus --arch sm_120a [--layout ragged] [--compile] [--jobs 1]

It prints how many grouped GEMMs there are for each layout and type, and with ``--compile`` how
large their entries are and how long each took, in a cache of its own.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jitgen.cache import Store
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, Operands
from jitgen.plans.prewarm import PrewarmRow, prewarm
from jitgen.targets.gemm import operands_of
from jitgen.targets.legality import rules
from tests.candidates import candidates

MAX_BYTES = 120 * 1024
"""Most bytes of an entry: source, library and record."""


def kinds(arch: Arch) -> list[Operands]:
    """Return the types and scales that a target has kernels for, with results in bf16."""
    found = operands_of(rules(arch, "grouped_gemm").space)  # type: ignore[attr-defined]
    return [each for each in found if each.out_dtype == "bf16" and menu(arch, Layout.RAGGED, each)]


def menu(arch: Arch, layout: Layout, operands: Operands) -> tuple[GroupedGemmConfig, ...]:
    """Return what may be chosen, each once."""
    return tuple(dict.fromkeys(candidates(arch, layout, operands)))


def lines(arch: Arch, layouts: list[Layout], store: Store | None, jobs: int) -> Iterator[str]:
    """Yield a line for each layout and kind, and the sum."""
    every: list[PrewarmRow] = []
    count = 0
    for layout, kind in itertools.product(layouts, kinds(arch)):
        configs = menu(arch, layout, kind)
        count += len(configs)
        text = f"{layout} {kind.a_dtype} x {kind.b_dtype} {kind.scale_granularity}: {len(configs)}"
        if store is not None:
            rows = prewarm(configs, arch=arch, store=store, jobs=jobs).rows
            every += rows
            text += f", {_figures(rows)}"
        yield text
    yield f"{arch}: {count} kernels" + (f", {_figures(tuple(every))}" if every else "")


def _figures(rows: tuple[PrewarmRow, ...]) -> str:
    sizes, seconds = [row.bytes for row in rows], [row.seconds for row in rows]
    failed = sum(bool(row.error) for row in rows)
    return (
        f"{sum(sizes) / 1e6:.2f} MB, {min(sizes)} to {max(sizes)} bytes, {sum(seconds):.0f} s, "
        f"{sum(seconds) / len(rows):.1f} s each" + (f", {failed} FAILED" if failed else "")
    )


def main() -> None:
    """Compile the kernels that were asked for, and print the lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--arch", type=Arch.parse, required=True)
    parser.add_argument("--layout", action="append", type=Layout)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "cache") if given.compile else None
        for line in lines(given.arch, given.layout or list(Layout), store, given.jobs):
            print(line, flush=True)


if __name__ == "__main__":
    main()
