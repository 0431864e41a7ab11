# SPDX-License-Identifier: Apache-2.0
"""``jitgen run``: compile an edited kernel, check it, and time it beside the original."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from jitgen.cache.entry import SOURCE
from jitgen.cli.options import TIME_LIMIT, with_output
from jitgen.cli.output import ExitCode, Output, human_time
from jitgen.cli.paths import ToRead
from jitgen.cli.verified import VerifiedParts
from jitgen.errors import CompileError
from jitgen.runtime.override import Override, override
from jitgen.settings import settings
from jitgen.support import vocabulary as v
from jitgen.support.codec import Rule, one_of
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.bench.kernel import Tried
    from jitgen.cache import Store
    from jitgen.cli.verify import Row

ORIGINAL = "the original"
_MOST_PLACES = 4  # lines about wrong values of one problem


@frozen
class _Step:
    """
    One row of the results.

    Attributes:
        name: ``compile``, ``emulate``, ``check`` or ``time``.
        state: ``ok``, ``right``, ``WRONG``, ``failed`` or ``skipped``.
        detail: The time that it took, or the reason of the state.
    """

    name: Annotated[str, one_of("compile", "emulate", "check", "time")]
    state: Annotated[
        str, Rule(write=str.lower, type=None, enum=["ok", "right", "wrong", "failed", "skipped"])
    ]
    detail: str

    @property
    def is_bad(self) -> bool:
        """Whether this step makes the command fail."""
        return self.state in ("WRONG", "failed")


@frozen
class _CheckRow:
    """A problem with which a kernel ran, and whether the result was right."""

    problem: str
    values: Annotated[str, one_of("integers", "random")]
    right: bool
    wrong: v.Count
    places: Sequence[str]
    frobenius: float
    largest: float


@frozen
class Check:
    """JSON form of the check of one kernel on its device."""

    title: str
    right: bool
    rows: Sequence[_CheckRow]
    error: v.Reason


@frozen
class _KernelTime:
    """JSON form of the time of one kernel."""

    title: str
    time_us: v.Microseconds
    spread: float
    detail: str


@frozen
class Times:
    """Times of kernels for one problem, measured in turn."""

    problem: str
    bytes: v.Bytes
    flop: v.Count
    kernels: Sequence[_KernelTime]


@frozen
class _Emulated(VerifiedParts):
    """A kernel that was run in the emulator."""

    error: v.Reason


@frozen
class _Ran:
    ok: v.Ok
    name: v.Name
    arch: v.ArchName
    key: v.Key
    file: v.File
    steps: Sequence[_Step]
    emulated: Sequence[Annotated[v.Values, _Emulated]]
    checks: Sequence[Annotated[v.Values, Check]]
    times: Annotated[v.Values, Times] | None


@click.command()
@click.argument("file", metavar="FILE", type=ToRead("jitgen show NAME --source -o FILE makes one"))
@click.option(
    "--problem",
    metavar="G:M:N:K",
    help="Problem to check and time: groups, total rows, N, K (G:M:I for SwiGLU).",
)
@click.option(
    "--modes", default="quick", show_default=True, help="Modes of the emulator; see verify."
)
@TIME_LIMIT
@with_output
def run(output: Output, file: Path, problem: str | None, modes: str, time_limit: float) -> int:
    """
    Compile an edited kernel, check it, and time it beside the original.

    FILE is a source that `jitgen show NAME --source -o FILE` wrote, edited below its first lines.
    It is compiled into the cache, under its own key. A kernel for a GPU is verified in the
    emulator, as by `jitgen verify`. If this machine has the device, the kernel also runs on it with
    sizes that cover every edge and with the --problem; its results are checked, and it is timed in
    turn with the original kernel. Without the GPU, a --problem runs in the emulator, too.

    The exit code is 1 if the kernel does not compile or is wrong, and 3 if it is not compiled and
    compiling is off. This runs the code in FILE.
    """
    edited = override(file)
    from jitgen.bench import kernel as trying  # which imports torch
    from jitgen.cache import Store
    from jitgen.emulator import parse_modes
    from jitgen.verify import require_numpy

    require_numpy()
    chosen = [mode.name for mode in parse_modes(modes)]
    spec = edited.spec
    if problem is not None:
        trying.parse_problem(problem, spec)
    store = Store.open()
    if settings.on_miss == "error" and store.read(spec.key) is None:
        step = _Step(name="compile", state="skipped", detail="compiling is off (JITGEN_ON_MISS)")
        return _tell(output, edited, [step], {}, code=ExitCode.WOULD_COMPILE)
    steps = [_compiled(output, store, edited)]
    found: dict[str, Any] = {}
    if steps[0].is_bad:
        return _tell(output, edited, steps, found, code=ExitCode.FAILED)
    obstacle = trying.obstacle(spec.arch)
    emulated = _emulated(output, edited, problem if obstacle else None, chosen, time_limit)
    if emulated is not None:
        steps.append(_of_emulator(emulated))
        found["emulated"] = [{**row.document, "error": row.error} for row in emulated]
    else:
        steps.append(_Step(name="emulate", state="skipped", detail="it runs here as it is"))
    if obstacle or steps[-1].is_bad:
        reason = obstacle or "it is wrong"
        steps += [_Step(name=name, state="skipped", detail=reason) for name in ("check", "time")]
    else:
        tried = _tried(output, edited, problem, time_limit)
        steps += _of_device(tried)
        found["checks"] = [each.to_json() for each in tried.checks]
        found["times"] = tried.times or None
    code = ExitCode.FAILED if any(step.is_bad for step in steps) else ExitCode.OK
    return _tell(output, edited, steps, found, emulated or [], code=code)


def _compiled(output: Output, store: Store, edited: Override) -> _Step:
    """Compile the file, unless the cache has it, such that compiler errors name the user's file."""
    from jitgen.codegen.render import render
    from jitgen.runtime.tiers import Tiers, build

    if edited.text == render(edited.config, edited.arch).text:
        output.note(f"nothing is edited in {edited.path}: its text is the original's")
    output.note(f"compiling {edited.path}")
    start = time.perf_counter()
    try:
        entry, tier = build(Tiers(store), edited.spec)
    except CompileError as error:
        # it was compiled as a copy of this name
        reason = re.sub(rf"[^\s'\"]*/{re.escape(SOURCE)}\b", str(edited.path), error.reason)
        return _Step(name="compile", state="failed", detail=reason)
    seconds = time.perf_counter() - start
    where = f"in {human_time(seconds)}" if tier == "compiled" else f"was in the cache ({tier})"
    kept = f"; not kept: {entry.why_private}" if entry.why_private else ""
    return _Step(name="compile", state="ok", detail=f"{where}{kept}")


def _emulated(
    output: Output, edited: Override, problem: str | None, modes: list[str], time_limit_s: float
) -> list[Row] | None:
    """Verify a GPU kernel in worker processes; return None for kernels of the CPU."""
    if not edited.arch.is_gpu:
        return None
    from jitgen.cli.verify import PRELOAD, TASK, rows_of
    from jitgen.compile import workers

    output.note("emulating it")
    task = {
        "config": edited.config.to_json(),
        "arch": str(edited.arch),
        "root": "",
        "key": "",
        "text": edited.text,
        "modes": modes,
        "time_limit_s": time_limit_s,
    }
    problems = [None] if problem is None else [None, problem]
    outcomes = workers.run(
        TASK,
        [{**task, "problem": each} for each in problems],
        jobs=len(problems),
        timeout_s=time_limit_s * (len(modes) + 1) + settings.compile_timeout,
        preload=(*workers.PRELOAD, *PRELOAD),
        without=(),
    )
    by_index = {outcome.index: list(rows_of(outcome)) for outcome in outcomes}
    return [row for index in sorted(by_index) for row in by_index[index]]


def _of_emulator(rows: list[Row]) -> _Step:
    state = next((row.state for row in rows if not row.is_right), "right")
    done, total = rows[0].executed
    seconds = human_time(sum(row.seconds for row in rows))
    return _Step(
        name="emulate",
        state=state,
        detail=f"in {seconds}; executed {done} of {total} instructions that matter",
    )


def _tried(output: Output, edited: Override, problem: str | None, time_limit_s: float) -> Tried:
    """Run the edited kernel and the original on their device."""
    from jitgen.bench.kernel import Contender, attempt, missing, usual_problem
    from jitgen.runtime.spec import spec_of

    output.note("running it beside the original")
    spec = edited.spec
    original = spec_of(edited.config, edited.arch)
    contenders = [
        Contender(title=str(edited.path), spec=spec),
        Contender(title=ORIGINAL, spec=original),
    ]
    if missing(contenders) is not None:
        del contenders[1]
    sizes = problem or usual_problem(spec)
    return attempt(contenders, sizes, time_limit_s=time_limit_s, has_edges=True)


def _of_device(tried: Tried) -> list[_Step]:
    rows = [row for check in tried.checks for row in check.rows]
    wrong = next((check for check in tried.checks if not check.is_right), None)
    if wrong is None:
        checked = _Step(name="check", state="right", detail=f"{len(rows)} results")
    else:
        text = wrong.error or f"{sum(row['wrong'] for row in wrong.rows):,} wrong values"
        state = "failed" if wrong.error else "WRONG"
        checked = _Step(name="check", state=state, detail=f"{wrong.title}: {text}")
    if not tried.times:
        state = "failed" if tried.error else "skipped"
        return [checked, _Step(name="time", state=state, detail=tried.error or "it is wrong")]
    mine, *others = (each["time_us"] for each in tried.times["kernels"])
    detail = f"{human_time(mine * 1e-6)}; {ORIGINAL} is not compiled, and compiling is off"
    for original in others:
        text = f"{human_time(mine * 1e-6)}, {ORIGINAL} {human_time(original * 1e-6)}"
        detail = f"{text}: {original / mine:.3f}x as fast"
    return [checked, _Step(name="time", state="ok", detail=detail)]


def _tell(
    output: Output,
    edited: Override,
    steps: list[_Step],
    found: dict[str, Any],
    emulated: list[Row] | None = None,
    *,
    code: ExitCode,
) -> int:
    document = _Ran(
        ok=code is ExitCode.OK,
        name=edited.name,
        arch=edited.arch,
        key=edited.spec.key,
        file=edited.path,
        steps=steps,
        emulated=found.get("emulated", []),
        checks=found.get("checks", []),
        times=found.get("times"),
    )
    output.report("run", document, lambda: _print(output, edited, steps, found, emulated or []))
    return code


def _print(
    output: Output,
    edited: Override,
    steps: list[_Step],
    found: dict[str, Any],
    emulated: list[Row],
) -> None:
    from jitgen.cli.verify import print_trouble

    output.fields([("name", edited.name), ("file", str(edited.path)), ("key", edited.spec.key)])
    output.line()
    columns = ["STEP", "STATE", "~DETAIL"]
    output.table(columns, [(step.name, step.state, step.detail) for step in steps])
    for row in emulated:
        if not row.is_right:
            print_trouble(output, row)
    for check in found.get("checks", []):
        for row in check["rows"]:
            if not row["right"]:
                output.line()
                output.line(f"{check['title']}: {row['values']}, {row['problem']}", style="bold")
                for place in row["places"][:_MOST_PLACES]:
                    output.line(f"  {place}")
    if times := found.get("times"):
        output.note(f"timed with {times['problem']}")
