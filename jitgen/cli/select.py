# SPDX-License-Identifier: Apache-2.0
"""``jitgen select``: which config serves a problem, and why."""

from __future__ import annotations

import dataclasses
from typing import Any

import click
from click.core import ParameterSource

from jitgen.cli.options import ARCH, OPERATION, Word, with_output, with_sizes
from jitgen.cli.output import Column, Output
from jitgen.config import Arch, ScaleGranularity
from jitgen.ops.protocol import Operation
from jitgen.ops.silu_mul_quantize.config import Activation, Scales
from jitgen.runtime.session import select as choose
from jitgen.targets.default import default_arch
from jitgen.tuning.choice import Choice


@click.command()
@click.option(
    "--op", type=OPERATION, default="grouped_gemm", show_default=True, help="The operation."
)
@with_sizes(is_required=False, scales=(*ScaleGranularity, Scales.NONE))
@click.option("--activation", type=Word(Activation), help="What silu_mul_quantize computes.")
@click.option("--interleaved", is_flag=True, help="Gates and ups take turns.")
@click.option("--power-of-two", is_flag=True, help="Its scales are powers of two.")
@click.option("--arch", type=ARCH, help="Target; the GPU's, else cpu, if not given.")
@with_output
def select(output: Output, /, op: Operation, arch: Arch | None, **sizes: Any) -> None:
    """
    Say which config serves a problem, why, and what else was considered.

    COST is what the model predicts, TIME what `jitgen tune` measured, here or before jitgen was
    shipped; where there are times, they decide. What failed when it was measured is EXCLUDED.
    """
    choice = choose(_problem(op, sizes), arch or default_arch())
    document = {
        "arch": str(choice.arch),
        "name": choice.config.name(choice.arch),
        "config": choice.config.to_json(),
        "source": str(choice.source),
        "why": choice.why,
        "candidates": [
            {
                "name": candidate.config.name(choice.arch),
                "cost_us": candidate.cost,
                "time_us": choice.times_us.get(candidate.config),
                "waste": candidate.waste,
                "waves": candidate.waves,
                "traffic_bytes": candidate.traffic_bytes,
                "bound": candidate.bound,
            }
            for candidate in choice.candidates
        ],
        "excluded": {config.name(choice.arch): why for config, why in choice.excluded.items()},
    }
    output.result("select", document, lambda: _print(output, choice))


def _problem(op: Operation, sizes: dict[str, Any]) -> Any:
    """Return the problem of `op` that the command line describes."""
    source = click.get_current_context().get_parameter_source
    given = {name for name in sizes if source(name) is ParameterSource.COMMANDLINE}
    fields = {spec.name: spec for spec in dataclasses.fields(op.problem_type)}
    if foreign := sorted(given - set(fields)):
        raise click.UsageError(f"{op.name} has no {foreign[0]}; it has {', '.join(fields)}")
    for name, spec in fields.items():
        if spec.default is dataclasses.MISSING and sizes[name] is None:
            raise click.UsageError(f"a problem of {op.name} needs --{name}")
    values = {name: sizes[name] for name in fields if sizes[name] is not None}
    return op.problem_type(**values)


def _print(output: Output, choice: Choice) -> None:
    output.line(choice.config.name(choice.arch), style="bold")
    output.line(choice.why)
    output.line()
    times = {config: f"{time:.1f}" for config, time in choice.times_us.items()}
    columns = [
        Column("COST (us)", is_number=True),
        *([Column("TIME (us)", is_number=True)] if times else []),
        Column("WASTE", is_number=True),
        Column("WAVES", is_number=True),
        Column("BOUND"),
        Column("CONFIG"),
    ]
    rows = [
        (
            f"{candidate.cost:.1f}",
            *([times.get(candidate.config, "")] if times else []),
            f"{candidate.waste:.2f}x",
            str(candidate.waves),
            candidate.bound,
            candidate.config.name(choice.arch),
        )
        for candidate in choice.candidates
    ]
    output.table(columns, rows)
    if choice.excluded:
        output.line()
        output.table(
            [Column("EXCLUDED"), Column("REASON", is_prose=True)],
            [(config.name(choice.arch), why) for config, why in choice.excluded.items()],
        )
