# SPDX-License-Identifier: Apache-2.0
"""``jitgen bench transformers``: models with jitgen's experts beside transformers' own."""

from __future__ import annotations

import click

from jitgen.bench import OWN
from jitgen.bench.peers import versions
from jitgen.bench.protocol import conditions
from jitgen.bench.transformers import NAME
from jitgen.bench.transformers.models import MODELS
from jitgen.bench.transformers.report import OURS, SIDES, WORKS, Found, targets
from jitgen.cli.bench import show_rows
from jitgen.cli.options import with_output
from jitgen.cli.output import Column, ExitCode, Output

_HELP = f"""
{OWN[NAME]}

Two layers of real width with random weights: prefill, and generate with a cache, as transformers
does both. Logits are compared with those of float32 experts before anything is timed; tokens a
second are of whole calls on the host's clock, all sides of one piece of work in turn. In FP8 are
the experts alone. Exits 1 if a target is missed or jitgen is left out. Sides: {", ".join(SIDES)}.
"""


@click.command(NAME, help=_HELP)
@click.option(
    "--model", "names", multiple=True, type=click.Choice(list(MODELS)), help="Only these."
)
@click.option("--side", "sides", multiple=True, type=click.Choice(SIDES), help="Only these.")
@click.option("--rounds", type=click.IntRange(1), default=5, help="Rounds of each piece of work.")
@click.option("--kernels", is_flag=True, help="List the kernels that this needs, and end.")
@with_output
def command(
    output: Output,
    *,
    names: tuple[str, ...],
    sides: tuple[str, ...],
    rounds: int,
    kernels: bool,
) -> int:
    """Measure, and show a table for each model."""
    from jitgen.bench.layer.ours import ARCH
    from jitgen.bench.sides import of_every_device
    from jitgen.bench.transformers.run import kernel_names, run

    models = [MODELS[name] for name in dict.fromkeys(names or MODELS)]
    if kernels:
        wanted = of_every_device(
            ARCH,
            lambda: (name for model in models for name in kernel_names(model, WORKS)),
        )

        def listed() -> None:
            for name in wanted:
                output.line(name)

        output.result(f"bench {NAME}", {"kernels": wanted}, listed)
        return ExitCode.OK
    found: list[Found] = []
    for each in run(models, WORKS, sides=sides or SIDES, rounds=rounds):
        output.note(f"{each.model}, {each.work}: done")
        found.append(each)
    rows = list(targets(found))
    where = {**conditions(), **versions(("transformers", "triton"))}
    failures = [
        f"{each.model}, {each.work}: {each.missing[OURS]}" for each in found if OURS in each.missing
    ]
    is_good = not failures and all(row.ok for row in rows)

    def human() -> None:
        _show(output, found)
        show_rows(output, rows)
        output.note(", ".join(f"{name} {value}" for name, value in where.items()))

    document = {
        "suite": NAME,
        "ok": is_good,
        "conditions": where,
        "cases": [each.to_json() for each in found],
        "targets": [row.to_json() for row in rows],
    }
    output.result(f"bench {NAME}", document, human)
    for failure in failures:
        output.error("WrongResult", failure)
    return ExitCode.OK if is_good else ExitCode.FAILED


def _show(output: Output, found: list[Found]) -> None:
    """Print tokens a second with errors behind them, and who was left out."""
    columns = [
        Column("MODEL"),
        Column("WORK"),
        *(Column(side.upper(), is_number=True) for side in SIDES),
    ]
    output.table(
        columns,
        [(each.model, str(each.work), *(_cell(each, side) for side in SIDES)) for each in found],
    )
    output.line("tokens a second, and how far logits are from those of float32 experts")
    for each in found:
        for side, why in each.missing.items():
            output.note(f"{each.model}, {each.work}: {side} is left out: {why}")


def _cell(found: Found, side: str) -> str:
    if side not in found.rates:
        return "-"
    return f"{found.rates[side]:,.0f} ({found.errors[side]:.1e})"
