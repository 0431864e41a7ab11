# SPDX-License-Identifier: Apache-2.0
"""
``jitgen configs``: the configs that a target can run; with ``--all`` also the others, with reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import click

from jitgen.cli.options import ARCH, SCALES, Word, refuse_twice, with_fields, with_output
from jitgen.cli.output import Output, counted
from jitgen.config import Arch, Config, DType, Layout, Numerics
from jitgen.errors import ConfigError
from jitgen.support import vocabulary as v
from jitgen.support.frozen import frozen
from jitgen.support.text import shown
from jitgen.targets.devices import default_arch
from jitgen.targets.legality import check, rules


@frozen
class _Listed:
    """A config, and whether it is legal."""

    name: v.Name
    ok: v.Ok
    code: Annotated[str, v.said("the code of the rule that refuses it")]
    reason: v.Reason
    invariant: v.Invariant
    proposal: v.Name | None
    config: v.ConfigValues
    derived: v.DerivedValues | None


@frozen
class _Configs:
    arch: v.ArchName
    configs: Sequence[_Listed]


@click.command()
@click.option("--arch", type=ARCH, help="Target; the GPU's, else cpu, if not given.")
@click.option("--layout", type=Word(Layout), help="Only this layout.")
@click.option("--scales", "scale_granularity", type=SCALES, help="Only these scales.")
@click.option("--dtype", "a_dtype", type=Word(DType), help="Only this type of a.")
@click.option("--out-dtype", type=Word(DType), help="Only this type of the output.")
@click.option(
    "--numerics",
    type=Word(Numerics),
    default="fast",
    show_default=True,
    help="With invariant, only configs that give a row the same bits.",
)
@click.option(
    "--all", "show_all", is_flag=True, help="Also list illegal configs, with code and reason."
)
@with_fields
@with_output
def configs(
    output: Output,
    /,
    arch: Arch | None,
    numerics: Numerics,
    show_all: bool,
    op: str,
    fields: dict[str, str],
    **words: object,
) -> None:
    """
    List the configs that a target can run, one name per line.

    `jitgen show` and `jitgen prewarm --config` take these names. For GEMMs the list has every
    split_k, but otherwise only the default schedule; other rasters and hints are legal for every
    listed tile. --set tile_m=64 lists only configs with this value of the parameter.
    """
    refuse_twice(fields)
    chosen = arch or default_arch()
    wanted = {name: str(value) for name, value in words.items() if value is not None} | fields
    rows, order = [], rules(chosen, op).sums
    for config in _matching(wanted, rules(chosen, op).configs(), set(fields)):
        if numerics is Numerics.INVARIANT and order.departure(config):
            continue
        verdict = check(config, chosen)
        if verdict or show_all:
            rows.append((config.name(chosen), config, verdict))

    def human() -> None:
        if show_all:
            table = [(name, v.code or "ok", v.reason) for name, _, v in rows]
            output.table(["CONFIG", "RULE", "~REASON"], table)
        else:
            for name, _, _ in rows:
                output.line(name)
        legal = sum(verdict.ok for _, _, verdict in rows)
        refused = f", {len(rows) - legal:,} refused" if show_all else ""
        output.note(f"{counted(legal, 'legal config')} of {chosen}{refused}")

    listed = [
        _Listed(
            name=name,
            ok=verdict.ok,
            code=verdict.code,
            reason=verdict.reason,
            invariant=not order.departure(config),
            proposal=verdict.proposal.name(chosen) if verdict.proposal else None,
            config=config.to_json(),
            derived=verdict.numbers if verdict else None,
        )
        for name, config, verdict in (rows if output.is_json else ())
    ]
    output.report("configs", _Configs(arch=chosen, configs=listed), human)


def _matching(
    wanted: dict[str, str], configs: Iterator[Config], typed: set[str]
) -> Iterator[Config]:
    """
    Yield the configs whose parameters have the `wanted` values.

    Raises:
        ConfigError: Configs of this operation have no such parameter, or none of them has the value
            of one that is `typed`, as a mistyped one.
    """
    values: dict[str, dict[str, None]] = {name: {} for name in sorted(typed)}
    if not wanted:
        yield from configs
        return
    for config in configs:
        have = config.parameters()
        if unknown := sorted(wanted.keys() - have.keys()):
            raise ConfigError(
                f"{config.op} has no parameter {shown(unknown[0])}; it has: {', '.join(have)}"
            )
        for name, seen in values.items():
            seen[str(have[name]).lower()] = None
        if all(str(have[name]).lower() == value.lower() for name, value in wanted.items()):
            yield config
    for name, seen in values.items():
        if wanted[name].lower() not in seen:
            listed = ", ".join(seen)
            raise ConfigError(f"no config has {name}={shown(wanted[name])}; there are: {listed}")
