# SPDX-License-Identifier: Apache-2.0
"""``jitgen configs``: what a target can run, and with ``--all`` what not and why."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from jitgen.cli.options import ARCH, OPERATION, Word, with_output
from jitgen.cli.output import Column, Output, counted
from jitgen.config import Arch, DType, Layout, ScaleGranularity
from jitgen.ops.protocol import Operation
from jitgen.targets.default import default_arch
from jitgen.targets.legality import check, rules


@click.command()
@click.option("--arch", type=ARCH, help="Target; the GPU's, else cpu, if not given.")
@click.option(
    "--op", type=OPERATION, default="grouped_gemm", show_default=True, help="The operation."
)
@click.option("--layout", type=Word(Layout), help="Only this layout.")
@click.option("--scales", type=Word(ScaleGranularity), help="Only these scales.")
@click.option("--dtype", type=Word(DType), help="Only this type of a and b.")
@click.option("--out-dtype", type=Word(DType), help="Only this type of the output.")
@click.option("--all", "show_all", is_flag=True, help="Refused configs too, with code and reason.")
@with_output
def configs(
    output: Output,
    arch: Arch | None,
    op: Operation,
    layout: Layout | None,
    scales: ScaleGranularity | None,
    dtype: DType | None,
    out_dtype: DType | None,
    show_all: bool,
) -> None:
    """
    List the configs that a target can run, one name a line.

    Every name is good for `jitgen show` and `jitgen prewarm --config`. The list has every
    split_k and else the default schedule; other rasters and hints are legal wherever the same tile
    is.
    """
    chosen = arch or default_arch()
    wanted = {"scale_granularity": scales, "a_dtype": dtype, "out_dtype": out_dtype}
    rows = []
    for config in rules(chosen, op.name).configs():
        fields = config.parameters()
        if layout not in (None, config.layout):
            continue
        if any(value and fields.get(name) != str(value) for name, value in wanted.items()):
            continue
        verdict = check(config, chosen)
        if verdict or show_all:
            rows.append((config.name(chosen), config, verdict))

    def human() -> None:
        if show_all:
            table = [(name, v.code or "ok", v.reason) for name, _, v in rows]
            output.table([Column("CONFIG"), Column("RULE"), Column("REASON", is_prose=True)], table)
        else:
            for name, _, _ in rows:
                output.line(name)
        legal = sum(verdict.ok for _, _, verdict in rows)
        refused = f", {len(rows) - legal:,} refused" if show_all else ""
        output.note(f"{counted(legal, 'legal config')} of {chosen}{refused}")

    document: dict[str, Any] = {
        "arch": str(chosen),
        "configs": [
            {
                "name": name,
                "ok": verdict.ok,
                "code": verdict.code,
                "reason": verdict.reason,
                "proposal": verdict.proposal.name(chosen) if verdict.proposal else None,
                "config": config.to_json(),
                "derived": dataclasses.asdict(verdict.derived) if verdict.derived else None,  # type: ignore[call-overload]
            }
            for name, config, verdict in rows
        ]
        if output.is_json
        else [],
    }
    output.result("configs", document, human)
