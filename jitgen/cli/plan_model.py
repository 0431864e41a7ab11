# SPDX-License-Identifier: Apache-2.0
"""``jitgen plan from-config``: make the plan of a model from its config.json."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from jitgen.cli.options import ARCH, Parsed, with_output
from jitgen.cli.output import Output, counted
from jitgen.cli.paths import TO_WRITE, write_text
from jitgen.config import Arch
from jitgen.plans.write import text as plan_text
from jitgen.support import vocabulary as v
from jitgen.support.frozen import frozen
from jitgen.support.text import printable
from jitgen.targets.devices import default_arch

PLAN_FILE = click.option(
    "-o",
    "--output",
    "to",
    metavar="PLAN.toml",
    type=TO_WRITE,
    help="Write the plan to a file; to standard output if not given.",
)


@frozen
class _ModelPlan:
    config: v.File
    description: str
    arch: v.ArchName
    problems: v.Count
    plan: str | None
    file: v.File | None


def _counts(text: str) -> tuple[int, ...]:
    """
    Return the numbers in a text, separated by commas, without duplicates.

    Raises:
        ValueError: One is not a whole number of at least 1.
    """
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise ValueError(f"{text!r} is no list of numbers of at least 1, such as 1,8")
    return found


@click.command("from-config")
@click.argument("config", type=click.Path(path_type=Path))
@PLAN_FILE
@click.option("--arch", type=ARCH, help="Target; the GPU's, else cpu, if not given.")
@click.option(
    "--expert-ranks",
    metavar="1,8",
    type=Parsed("n,...", _counts),
    default="1",
    show_default=True,
    help="Numbers of ranks among which experts are divided.",
)
@click.option(
    "--ranks",
    metavar="1,2",
    type=Parsed("n,...", _counts),
    default="1",
    show_default=True,
    help="Numbers of ranks among which each expert is divided.",
)
@click.option("--max-tokens", type=click.IntRange(1), help="Most tokens of a call.")
@click.option("--masked", type=click.IntRange(1), help="Most rows of an expert's matrix (masked).")
@click.option(
    "--activation-format",
    type=click.Choice(["none", "block128", "row"]),
    help="Format of quantised tokens, if the weights allow several.",
)
@click.option(
    "--dequantize", is_flag=True, help="Plan for bfloat16 weights instead of the model's."
)
@click.option(
    "--group",
    "has_group",
    is_flag=True,
    help="Ranks of experts share layers by a group (docs/expert-parallel.md), each with "
    "--max-tokens.",
)
@click.option(
    "--quantise/--no-quantise",
    default=None,
    help="With --group: whether ranks quantise tokens before they send them, where the first "
    "product reads FP8; both if not given.",
)
@click.option(
    "--flags-from",
    type=click.IntRange(0),
    metavar="N",
    help="With --group: tokens of a rank from which on flags replace numbers (0: never); kernels "
    "without flags, and those with them from 128 on, if not given.",
)
@click.option("--no-router", is_flag=True, help="Leave the router out of the plan.")
@with_output
def from_config(  # noqa: PLR0913  # each is one option
    output: Output,
    *,
    config: Path,
    to: Path | None,
    arch: Arch | None,
    expert_ranks: Sequence[int],
    ranks: Sequence[int],
    max_tokens: int | None,
    masked: int | None,
    activation_format: str | None,
    dequantize: bool,
    has_group: bool,
    quantise: bool | None,
    flags_from: int | None,
    no_router: bool,
) -> None:
    """
    Make the plan of a model from its config.json.

    CONFIG is the file, which states sizes, formats, activation and router, or its folder. If the
    model needs something that no layer computes, the command fails and names it.
    """
    if has_group and max_tokens is None:
        raise click.UsageError("--group needs --max-tokens: the most tokens of each rank")
    if has_group and max(expert_ranks) == 1:
        raise click.UsageError("--group needs --expert-ranks: how many ranks share a layer")
    for option, given in (("--quantise", quantise), ("--flags-from", flags_from)):
        if given is not None and not has_group:
            raise click.UsageError(f"{option} needs --group: it says how ranks send tokens")
    if to is not None and to.suffix != ".toml":
        raise click.UsageError(f"{printable(str(to))}: the name of a plan file ends in .toml")
    file = config / "config.json" if config.is_dir() else config
    if not os.path.lexists(file):  # importing torch takes seconds
        raise click.UsageError(f"{printable(str(file))} cannot be read: No such file or directory")
    from jitgen.layer.model_plan import of_model

    try:
        made = of_model(
            config,
            arch,
            name=to.stem if to else "model",
            expert_ranks=expert_ranks,
            ranks=ranks,
            max_tokens=max_tokens,
            masked=masked,
            activation_format=activation_format,
            dequantize=dequantize,
            has_router=not no_router,
            has_group=has_group,
            quantise=quantise,
            flags_from=flags_from,
        )
    except OSError as error:
        where = printable(str(error.filename or config))
        raise click.UsageError(f"{where} cannot be read: {error.strerror}") from error
    text = plan_text(made)
    if to is not None:
        write_text(to, text)
    document = _ModelPlan(
        config=config,
        description=made.description,
        arch=default_arch() if arch is None else arch,
        problems=len(made.sweeps),
        plan=text if to is None else None,
        file=to,
    )
    output.report("plan from-config", document, lambda: output.text(text) if to is None else None)
    output.note(
        f"{made.description}: {counted(len(made.sweeps), 'problem')}"
        + ("" if to is None else f": wrote {printable(str(to))}")
    )
