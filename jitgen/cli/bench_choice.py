# SPDX-License-Identifier: Apache-2.0
"""``jitgen bench choice``: what the selector's choice loses to the best candidate."""

from __future__ import annotations

import hashlib
from pathlib import Path

import click

import jitgen
from jitgen.bench import OWN
from jitgen.bench.choice import NAME, recorded
from jitgen.bench.choice.cases import DRAWN, FAMILIES, Case, kernels_of, recorded_cases
from jitgen.bench.choice.report import ChoiceReport, Regret, regrets, summary
from jitgen.cli.options import ARCH, NumberType, with_output
from jitgen.cli.output import Column, ExitCode, Output
from jitgen.cli.paths import TO_READ, TO_WRITE, ToRead
from jitgen.config import Arch
from jitgen.errors import ConfigError
from jitgen.targets.devices import default_arch

_WORST = 10
_RULES = {"model": False, "table": True}
"""Ways to choose, and whether measurements count: those that jitgen ships, and this machine's."""

_HELP = f"""
{OWN[NAME]}

Every candidate is checked before all are timed in turn. The model alone is compared with the best,
and so is what a call gets, the shipped table included. What is saved are times: --from says what
today's selector would lose.
"""


@click.command(NAME, help=_HELP)
@click.option(
    "--of",
    "family",
    type=click.Choice(FAMILIES),
    default="random",
    show_default=True,
    help="Problems of all sizes, or layers whose groups have uneven rows: drawn, or as recorded.",
)
@click.option(
    "--routings",
    type=ToRead("jitgen.bench.choice.recorded.save writes one"),
    help="A file of routings for --of recorded; those that come with jitgen if left out.",
)
@click.option(
    "--count",
    type=click.IntRange(1),
    help="Cases; 150, 40 of skewed layers, and all that are recorded if left out.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Draws the cases."
)
@click.option(
    "--only", multiple=True, metavar="TEXT", help="Measure only cases whose name has every TEXT."
)
@click.option(
    "--minutes", type=NumberType("minutes", 0.05, 1440), help="Begin no case after so many."
)
@click.option("--save", "save_at", type=TO_WRITE, help="Write what was found after every case.")
@click.option("--resume", is_flag=True, help="Go on with what --save names: without its cases.")
@click.option("--from", "read_at", type=TO_READ, help="Show what was saved; needs no GPU.")
@click.option("--kernels", is_flag=True, help="List the kernels that the cases need, and end.")
@click.option("--arch", type=ARCH, help="Target of --kernels and --from; the GPU's if not given.")
@with_output
def command(  # noqa: PLR0913  # each is an option
    output: Output,
    *,
    family: str,
    routings: Path | None,
    count: int | None,
    seed: int,
    only: tuple[str, ...],
    minutes: float | None,
    save_at: Path | None,
    resume: bool,
    read_at: Path | None,
    kernels: bool,
    arch: Arch | None,
) -> int:
    """Measure or show the suite."""
    target = arch or default_arch()
    if resume and save_at is None:
        raise click.UsageError("--resume goes on with a report: name it with --save")
    if read_at is not None:
        if save_at or minutes is not None or kernels:
            raise click.UsageError("--from measures nothing: it goes with --arch and --json")
        return _tell(output, ChoiceReport.read(read_at), target)
    begun, every = _asked(family, routings, count, seed)
    cases = [case for case in every if all(text in str(case) for text in only)]
    if not cases:
        raise click.UsageError(f"no case has {' and '.join(map(repr, only))} in its name")
    if kernels:
        return _list(output, cases, target)
    from jitgen.bench.choice.run import run

    report = _begun(save_at if resume else None, begun)

    def save() -> None:
        if save_at is not None:
            report.save(save_at)

    seconds = None if minutes is None else minutes * 60
    with output.progress(len(cases), "measuring") as progress:
        for case in run(report, cases, seconds=seconds, save=save):
            progress.advance(str(case))
    return _tell(output, report, target)


def _asked(
    family: str, routings: Path | None, count: int | None, seed: int
) -> tuple[ChoiceReport, list[Case]]:
    """
    Return a report of nothing yet, and the cases of a family.

    Raises:
        ConfigError: The file of routings does not hold any.
    """
    report = ChoiceReport(family=family, seed=seed)
    if family in DRAWN:
        if routings is not None:
            raise click.UsageError(f"--routings goes with --of {recorded.Recorded.KIND}")
        draw, usual = DRAWN[family]
        return report, draw(count or usual, seed)
    if seed:
        raise click.UsageError(f"--seed draws cases, and --of {family} draws none")
    path = routings or recorded.SHIPPED
    records = recorded.load(path)
    content = hashlib.sha256(repr(records).encode()).hexdigest()
    report.conditions["routings"] = f"{path.name} {content[:12]}"
    return report, recorded_cases(records)[:count]


def _begun(path: Path | None, report: ChoiceReport) -> ChoiceReport:
    """
    Return the report in `path` to go on with; `report`, which has nothing yet, where there is none.

    Raises:
        ConfigError: It is of other cases.
    """
    if path is None or not path.exists():
        return report
    found = ChoiceReport.read(path)
    if (found.family, found.seed) != (report.family, report.seed):
        raise ConfigError(
            f"{path} is of --of {found.family} --seed {found.seed}; go on with those, or save "
            "elsewhere"
        )
    theirs, ours = (each.conditions.get("routings") for each in (found, report))
    if theirs != ours:
        raise ConfigError(f"{path} is of routings {theirs}, not {ours}; save elsewhere")
    return found


def _list(output: Output, cases: list[Case], arch: Arch) -> int:
    """Print the kernels that the cases need: what to prewarm for a machine without a compiler."""
    names = [config.name(arch) for config in kernels_of(cases, arch)]

    def human() -> None:
        for name in names:
            output.line(name)

    output.result(f"bench {NAME}", {"suite": NAME, "kernels": names}, human)
    return ExitCode.OK


def chosen(case: Case, arch: Arch, device: str | None, *, use_measured: bool) -> str:
    """Return the name of the kernel that the selector takes on `device`."""
    choice = jitgen.select(case.asked, arch, device=device, use_measured=use_measured)
    return str(choice.config.name(arch))


def _tell(output: Output, report: ChoiceReport, arch: Arch) -> int:
    """Print what is lost, the worst cases one by one; the exit code says if any failed."""
    device = report.conditions.get("gpu")
    lost: dict[str, list[Regret]] = {}
    for rule, use_measured in _RULES.items():

        def choose(case: Case, use_measured: bool = use_measured) -> str:
            return chosen(case, arch, device, use_measured=use_measured)

        found = regrets(report, choose)
        lost[rule] = sorted(found, key=lambda each: each.lost, reverse=True)
    saved = report.to_json()
    saved["report_schema"] = saved.pop("schema")  # a document's own is that of all documents
    document = {
        "ok": not report.failures,
        **saved,
        "rules": {rule: summary(found) for rule, found in lost.items()},
        "worst": {
            rule: [each.to_json() for each in found[:_WORST]] for rule, found in lost.items()
        },
    }
    output.result(f"bench {NAME}", document, lambda: _show(output, report, lost))
    for case, reason in report.failures.items():
        output.error("WrongResult", f"{case}: {reason}")
    return ExitCode.FAILED if report.failures else ExitCode.OK


def _show(output: Output, report: ChoiceReport, lost: dict[str, list[Regret]]) -> None:
    columns = ("CASES", "MEAN", "WORST", "BEYOND 2 %", "BEYOND 8 %")
    sums = {rule: summary(found) for rule, found in lost.items()}
    output.table(
        [Column("CHOSEN BY"), *(Column(title, is_number=True) for title in columns)],
        [
            (
                rule,
                f"{each['cases']:.0f}",
                f"{each['mean']:.2%}",
                f"{each['worst']:.1%}",
                f"{each['beyond_2']:.0f}",
                f"{each['beyond_8']:.0f}",
            )
            for rule, each in sums.items()
        ],
    )
    for rule, found in lost.items():
        output.line(f"the worst by {rule}", style="bold")
        output.table(
            [
                Column("LOST", is_number=True),
                Column("BEST (us)", is_number=True),
                Column("CASE"),
                Column("CHOSEN"),
                Column("BEST"),
            ],
            [_cells(each) for each in found[:_WORST]],
        )
    output.note(", ".join(f"{name} {value}" for name, value in report.conditions.items() if value))


def _cells(regret: Regret) -> tuple[str, ...]:
    timed = regret.timed
    return (
        f"{regret.lost:.1%}",
        f"{timed.times_us[timed.best]:.1f}",
        str(timed.case),
        _shape(regret.chosen),
        _shape(timed.best),
    )


def _shape(name: str) -> str:
    """Return what tells a kernel from the others of its problem."""
    from jitgen.config.grouped_gemm import KernelConfig

    config, _ = KernelConfig.parse(name)
    return config.short + f" split {config.schedule.split_k}" * (config.schedule.split_k > 1)
