# SPDX-License-Identifier: Apache-2.0
"""
Verifies one config: compiles it, emulates it in several modes, compares it with float64 sums.

A kernel for the CPU is not emulated: it runs on this machine, and only its results are checked.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jitgen.codegen.render import render, source_of
from jitgen.config import Arch, Config
from jitgen.config.operation import Excuse, operation
from jitgen.emulator import (
    TIME_LIMIT_S,
    Artifact,
    Coverage,
    Finding,
    Mode,
    Report,
    merge_coverage,
    parse_modes,
)
from jitgen.errors import ConfigError, Deadlock, JitgenError, MachineFault
from jitgen.runtime.kernel import load
from jitgen.runtime.session import current
from jitgen.support.frozen import frozen
from jitgen.support.text import shown
from jitgen.targets.legality import require
from jitgen.verify import places
from jitgen.verify.artifacts import compiled, of_entry
from jitgen.verify.emulation import emulate

if TYPE_CHECKING:
    from jitgen.cache import Entry

_MOST_DIGITS = 7
"""Most digits of a size on a command line: each group becomes an item of a list."""


@frozen
class Trial:
    """
    The result of one problem.

    Attributes:
        sizes: The sizes of the problem.
        values: ``integers``, whose sums are exact, or ``random``; for a file, the name of the case.
        wrong: Number of values of the result that are wrong.
        places: Lines that say where these values are, and what they have in common.
        frobenius: Error relative to the right result, in the Frobenius norm.
        largest: Largest error over the largest value.
        report: The findings, mode by mode; None if the kernel did not finish, or ran on this CPU.
        fault: The fault that ended the kernel; None if there was none.
        is_native: Whether it ran on this CPU.
    """

    sizes: Any
    values: str
    wrong: int = 0
    places: tuple[str, ...] = ()
    frobenius: float = 0.0
    largest: float = 0.0
    report: Report | None = None
    fault: Finding | None = None
    is_native: bool = False

    @property
    def is_right(self) -> bool:
        """Whether every value is right and no error was found."""
        is_clean = self.is_native if self.report is None else self.report.is_clean
        return self.wrong == 0 and is_clean

    @property
    def findings(self) -> list[tuple[str, Finding]]:
        """Pairs of a mode's name and a finding in it; of a fault the name is empty."""
        if self.fault is not None:
            return [("", self.fault)]
        return [] if self.report is None else list(self.report.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the trial as JSON values."""
        return {
            "problem": str(self.sizes),
            "sizes": asdict(self.sizes),
            "values": self.values,
            "right": self.is_right,
            "wrong": self.wrong,
            "places": list(self.places),
            "frobenius": self.frobenius,
            "largest": self.largest,
            "fault": None if self.fault is None else self.fault.to_json(),
            "runs": [] if self.report is None else self.report.to_json()["runs"],
            **({} if self.report is None else {"schedules": self.report.schedules()}),
        }


@frozen
class Verification:
    """
    The result of verifying one kernel.

    Attributes:
        name: Its name.
        arch: Its target.
        trials: First each problem with small integers; then the second (or only) problem with
            random numbers; then problems at the edges of a kernel's tiles, every third with random
            numbers, of which a GPU kernel runs none after a wrong trial. For a file, its cases.
        coverage: What the trials executed together, of each kernel of the PTX.
        gaps: Instructions that must be executed and never were; empty if the caller chose the
            problem, or a trial did not finish.
    """

    name: str
    arch: str
    trials: tuple[Trial, ...]
    coverage: tuple[Coverage, ...] = ()
    gaps: tuple[Finding, ...] = ()

    @property
    def is_right(self) -> bool:
        """Whether every trial is right, and no instruction that must be executed was left out."""
        return not self.gaps and all(trial.is_right for trial in self.trials)

    def to_json(self) -> dict[str, Any]:
        """Return the verification as JSON values."""
        return {
            "name": self.name,
            "arch": self.arch,
            "right": self.is_right,
            "trials": [trial.to_json() for trial in self.trials],
            "gaps": [gap.to_json() for gap in self.gaps],
            "coverage": [each.to_json() for each in self.coverage],
        }


def verify(
    config: Config,
    arch: Arch | str,
    problem: Any = None,
    *,
    modes: str | Mode | Sequence[str | Mode] = "quick",
    artifact: Artifact | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> Verification:
    """
    Run `config` in the emulator and compare its results with float64 sums.

    A kernel for ``cpu`` runs on this machine, once with each problem; its accesses are not checked,
    and `modes` and `time_limit_s` do not apply. A wrong access may end the process.

    A kernel for a GPU runs problems with small integers in every mode. Random modes are slow: they
    run only with the first problem, and not if the previous modes prove it for every schedule; in
    ``quick`` the further problems then run only in the first mode. Problems with random numbers run
    in the first mode, because the values do not decide whether a schedule is right; so do the sizes
    around constants with which the kernel compares numbers. All problems together must execute
    every synchronisation, copy, matrix and store instruction of the kernel, unless there is a
    reason why it is unreachable.

    Args:
        config: Config of the kernel to verify.
        arch: The target.
        problem: Sizes, or ``G:M:N:K`` for M rows in G groups (``G:M:I`` for `activation_quantize`);
            then unreached instructions are no error. None: sizes that wrap around every pipeline,
            have every kind of edge and reach every instruction.
        modes: See `jitgen.emulate`.
        artifact: The compiled kernel for a GPU; None: it is compiled, or taken from the cache of
            `jitgen.verify.cached`. A kernel for the CPU is that of the session: from its cache, or
            compiled into it.
        time_limit_s: Seconds that one mode of one problem may take.

    Raises:
        UnsupportedConfig: `arch` cannot run `config`.
        EmulationError: The kernel cannot be run. A fault of the kernel is part of the result.
        ToolchainError: A compiler is missing.
        CompileError: The kernel does not compile.
    """
    target = Arch.parse(arch)
    require(config, target)
    if not target.is_gpu:
        from jitgen.verify.native import verified

        function = current.get().loader.get(config, target).function
        return verified(config, target, function, problem)
    samples = samples_of(config)
    given = sizes_of(problem, config) if isinstance(problem, str) else problem
    all_sizes, chosen = (given,) if given else samples.Sizes.of(config, target), parse_modes(modes)
    kernel = artifact or compiled(render(config, target))
    quick = parse_modes("quick")
    steady = tuple(mode for mode in chosen if mode.seed is None) or chosen[:1]
    plans = [
        (all_sizes[0], True, chosen, 0),
        *((sizes, True, steady, 0) for sizes in all_sizes[1:]),
        (all_sizes[min(1, len(all_sizes) - 1)], False, chosen[:1], 0),
    ]
    edges = () if given else samples.Sizes.edges(config, target)
    further = [(sizes, bool(seed % 3), chosen[:1], seed) for seed, sizes in enumerate(edges, 1)]
    trials: list[Trial] = []
    for number, (sizes, is_exact, some, seed) in enumerate([*plans, *further]):
        if number >= len(plans) and not all(trial.is_right for trial in trials):
            break  # a kernel that is wrong already is not asked the rest, which may all hang
        first = trials[0].report if trials else None
        # What observes no schedule is the same in every mode.
        is_same = chosen == quick and first is not None and first.is_proved
        drawn = {"seed": seed} if seed else {}
        trials.append(
            _trial(
                kernel,
                samples.make(config, sizes, is_exact=is_exact, **drawn),
                sizes,
                samples.tile(config),
                some[:1] if is_same else some,
                time_limit_s,
                config=config,
                explores=sizes is all_sizes[0] and is_exact,
            )
        )
    coverage = coverage_of(trials, samples.unreachable(config))
    came_to_end = all(trial.report is not None for trial in trials)
    return Verification(
        name=config.name(target),
        arch=str(target),
        trials=tuple(trials),
        coverage=coverage,
        gaps=tuple(gaps_of(coverage)) if given is None and came_to_end else (),
    )


def coverage_of(trials: Sequence[Trial], excuses: tuple[Excuse, ...] = ()) -> tuple[Coverage, ...]:
    """Return the joint coverage of several trials."""
    found = merge_coverage(trial.report.coverage for trial in trials if trial.report is not None)
    return tuple(each.excused(excuses) for each in found.values())


def gaps_of(coverage: Sequence[Coverage]) -> Iterator[Finding]:
    """Yield a finding for each instruction that some problem should have executed."""
    for each in coverage:
        for missed in each.lacking:
            message = f"no problem reaches this {missed.purpose} instruction"
            yield Finding(kind="never executed", message=message, place=missed.place)


def samples_of(config: Config) -> Any:
    """
    Return the module that makes sample calls for kernels of `config`.

    Raises:
        ConfigError: Its operation has no samples.
    """
    name = operation(config.op).samples
    if not name:
        raise ConfigError(f"kernels of {config.op} cannot be verified: it brings no samples")
    return importlib.import_module(name)


def sizes_of(text: str, config: Config) -> Any:
    """
    Return the sizes that `text` describes, for the operation of `config`.

    Raises:
        ConfigError: They are no sizes of the operation, it has no samples, or a size is too large
            to make operands for.
    """
    samples = samples_of(config)
    huge = [number for number in re.findall(r"\d+", text) if len(number.lstrip("0")) > _MOST_DIGITS]
    if huge:
        raise ConfigError(f"problem {shown(text)}: a size has at most {_MOST_DIGITS} digits")
    return samples.Sizes.parse(text, config)


def _trial(
    kernel: Artifact,
    case: Any,
    sizes: Any,
    tile: tuple[int, int],
    modes: tuple[Mode, ...],
    time_limit_s: float,
    *,
    config: Config,
    explores: bool,
) -> Trial:
    results = operation(config.op).results
    named = zip(kernel.names, case.tensors, strict=False)
    unknown = [name for name, tensor in named if name in results and tensor is not None]
    values = "integers" if case.is_exact else "random"
    try:
        report = emulate(
            kernel,
            *case.tensors,
            sizes.num_sms,
            modes=modes,
            num_sms=sizes.num_sms,
            time_limit_s=time_limit_s,
            unknown=unknown,
            settled=config.settled,
            explores=explores,
        )
    except MachineFault as error:
        kind = "deadlock" if isinstance(error, Deadlock) else "fault"
        return Trial(sizes=sizes, values=values, fault=Finding(kind=kind, message=str(error)))
    frobenius, largest = case.errors()
    wrong = case.wrong()
    return Trial(
        sizes=sizes,
        values=values,
        wrong=wrong,
        places=tuple(places.of_case(case, tile)) if wrong else (),
        frobenius=frobenius,
        largest=largest,
        report=report,
    )


def verify_task(task: dict[str, Any]) -> dict[str, Any]:
    """
    Verify one kernel in a worker process.

    Args:
        task: ``config``, ``arch``, ``problem``, ``modes``, ``time_limit_s``; ``root`` and ``key``
            of an entry of the cache, the key empty without one; perhaps ``text``, an edited source.

    Returns:
        The verification as JSON values, or ``{"error": ...}`` with the message of an error that
        jitgen raised on purpose.
    """
    config, arch = Config.from_json(task["config"]), Arch.parse(task["arch"])
    try:
        artifact = None
        if task["key"] and not arch.is_gpu:
            from jitgen.verify.native import verified

            function = load(_entry(task["root"], task["key"]))
            return verified(config, arch, function, task["problem"]).to_json()
        if task["key"]:
            artifact = _of_key(config, arch, task["root"], task["key"])
        elif text := task.get("text", ""):
            artifact = compiled(source_of(config, arch, text))
        return verify(
            config,
            arch,
            task["problem"],
            modes=task["modes"],
            time_limit_s=task["time_limit_s"],
            artifact=artifact,
        ).to_json()
    except JitgenError as error:
        return {"error": str(error)}


def _of_key(config: Config, arch: Arch, root: str, key: str) -> Artifact:
    """Return the artifact of entry `key`: its own host part, and the PTX of its own source."""
    entry = _entry(root, key)
    return of_entry(entry, source_of(config, arch, entry.source))


def _entry(root: str, key: str) -> Entry:
    from jitgen.cache import Store

    entry = Store.open(Path(root), mode="ro").read(key)
    if entry is None:
        raise ConfigError(f"entry {key[:12]} is not in {root} any more")
    return entry
