# SPDX-License-Identifier: Apache-2.0
"""``jitgen select``: which config serves a problem, and why."""

from __future__ import annotations

from typing import Any

import click

from jitgen.cli.options import ARCH, Word, with_output
from jitgen.cli.output import Column, Output
from jitgen.model import Arch, DType, Layout, Problem, ScaleGranularity
from jitgen.select import default_arch
from jitgen.select import select as choose


@click.command()
@click.option("--groups", "-g", type=int, required=True, help="Number of groups (experts).")
@click.option("--m", "-m", type=int, required=True, help="Rows of a, over all groups.")
@click.option("--n", "-n", type=int, required=True, help="Columns of the output.")
@click.option("--k", "-k", type=int, required=True, help="Length of the sums.")
@click.option("--layout", type=Word(Layout), default="ragged", show_default=True)
@click.option(
    "--scales",
    "scale_granularity",
    type=Word(ScaleGranularity),
    default="block128",
    show_default=True,
)
@click.option("--dtype", "a_dtype", type=Word(DType), default="e4m3", show_default=True)
@click.option("--out-dtype", type=Word(DType), default="bf16", show_default=True)
@click.option("--arch", type=ARCH, help="Target; the GPU's, else cpu, if not given.")
@with_output
def select(output: Output, /, arch: Arch | None, **sizes: Any) -> None:
    """Say which config serves a problem, why, and what else was considered."""
    problem = Problem(**sizes)
    choice = choose(problem, arch or default_arch())

    def human() -> None:
        output.line(choice.config.name(choice.arch), style="bold")
        output.line(choice.why)
        output.line()
        output.table(
            [
                Column("COST (us)", is_number=True),
                Column("WASTE", is_number=True),
                Column("WAVES", is_number=True),
                Column("BOUND"),
                Column("CONFIG"),
            ],
            [
                (
                    f"{candidate.cost:.1f}",
                    f"{candidate.waste:.2f}x",
                    str(candidate.waves),
                    candidate.bound,
                    candidate.config.name(choice.arch),
                )
                for candidate in choice.candidates
            ],
        )

    document = {
        "arch": str(choice.arch),
        "name": choice.config.name(choice.arch),
        "config": choice.config.to_json(),
        "why": choice.why,
        "candidates": [
            {
                "name": candidate.config.name(choice.arch),
                "cost_us": candidate.cost,
                "waste": candidate.waste,
                "waves": candidate.waves,
                "traffic_bytes": candidate.traffic_bytes,
                "bound": candidate.bound,
            }
            for candidate in choice.candidates
        ],
    }
    output.result("select", document, human)
