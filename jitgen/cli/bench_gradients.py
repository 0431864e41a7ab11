# SPDX-License-Identifier: Apache-2.0
"""``jitgen bench gradients``: a grouped GEMM and its gradients beside torch's."""

from __future__ import annotations

import click

from jitgen.bench import OWN
from jitgen.bench.protocol import Row, conditions
from jitgen.cli.options import with_output
from jitgen.cli.output import ExitCode, Output

_NAME = "gradients"


@click.command(_NAME, help=OWN[_NAME])
@click.option(
    "--candidates",
    is_flag=True,
    help="Time every kernel that might be chosen, and others like it.",
)
@with_output
def command(output: Output, *, candidates: bool) -> int:
    """Measure, and show a table; a side that torch is faster at is over its budget."""
    from jitgen.bench.gradients import rows
    from jitgen.cli.bench import show_rows

    found: list[Row] = []
    for row in rows(candidates=candidates):
        output.note(f"{row.what}: {row.value:.4g} {row.unit}")
        found.append(row)
    where = conditions()

    def human() -> None:
        show_rows(output, found)
        output.note(", ".join(f"{name} {value}" for name, value in where.items()))

    is_good = all(row.ok for row in found)
    document = {
        "suite": _NAME,
        "ok": is_good,
        "conditions": where,
        "rows": [row.to_json() for row in found],
    }
    output.result(f"bench {_NAME}", document, human)
    return ExitCode.OK if is_good else ExitCode.FAILED
