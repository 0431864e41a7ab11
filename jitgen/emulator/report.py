# SPDX-License-Identifier: Apache-2.0
"""The report of an emulated call: for each mode its findings, counts and time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field

from jitgen.emulator.findings import Severity, severity_of
from jitgen.emulator.modes import MOST_EXPLORED
from jitgen.emulator.program.coverage import Coverage
from jitgen.errors import Deadlock, MachineFault

PROVED = "proved for every schedule of this problem"

RESULT = "result"
"""Kind of the finding that modes disagree about the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """
    One mistake of the kernel.

    Attributes:
        kind: One of `jitgen.emulator.findings.KINDS`, which says what is an error.
        message: Description of the mistake as it happened the first time.
        place: The instruction: line of the generated source, PTX line, text; empty if there is
            none.
        who: CTA and threads of the first time; may be empty.
        count: Number of times that it happened.
    """

    kind: str
    message: str
    place: str = ""
    who: str = ""
    count: int = 1

    @property
    def severity(self) -> Severity:
        """Whether the finding is an error or a warning."""
        return severity_of(self.kind)

    @property
    def is_error(self) -> bool:
        """Whether the finding makes the kernel wrong."""
        return self.severity is Severity.ERROR

    def to_json(self) -> dict[str, object]:
        """Return the finding as JSON values."""
        return {**asdict(self), "severity": str(self.severity)}

    def __str__(self) -> str:
        """Return the finding as one paragraph."""
        times = f" ({self.count} times)" if self.count > 1 else ""
        where = f"\n  at {self.place}" if self.place else ""
        whose = f"\n  by {self.who}" if self.who else ""
        weight = "" if self.is_error else f"{self.severity}: "
        return f"{weight}{self.kind}: {self.message}{times}{where}{whose}"


def of_fault(fault: MachineFault) -> Finding:
    """Return a fault or a deadlock as a finding."""
    kind = "deadlock" if isinstance(fault, Deadlock) else "fault"
    return Finding(kind=kind, message=str(fault))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """
    An instruction that observes the schedule: another order may give it another value.

    Attributes:
        what: The observation, in words.
        place: The instruction, as of a `Finding`.
        count: Number of times that it did.
    """

    what: str
    place: str
    count: int = 1

    def __str__(self) -> str:
        """Return two lines: the observation, and the place of its instruction."""
        return f"observes the schedule: {self.what}\n  at {self.place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """
    The run of a call in one mode.

    Attributes:
        mode: Name of the mode; `jitgen.emulator.modes.parse_modes` takes it.
        seconds: Seconds of the machine, without translation.
        cpu_seconds: CPU seconds of the process in this time, which other work of the computer does
            not change.
        findings: Mistakes that the run found.
        counts: Numbers of executed operations and of their bytes: bulk copies, matrix instructions,
            ...
        warp_instructions: Instructions times warps that executed them, for each function of the
            generated source.
        coverage: What was executed of each kernel, by its name in the PTX.
        observed: Observations of its schedule.
        firsts: Clusters of its launches, by number, that were first where that was observed.
        devices: Number of devices that ran together. Observations of words of memory are only
            recorded for one device.
    """

    mode: str
    seconds: float
    cpu_seconds: float = 0.0
    findings: tuple[Finding, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    warp_instructions: Mapping[str, int] = field(default_factory=dict)
    coverage: Mapping[str, Coverage] = field(default_factory=dict, repr=False, compare=False)
    observed: tuple[Observation, ...] = ()
    firsts: tuple[int, ...] = ()
    devices: int = 1

    @property
    def is_clean(self) -> bool:
        """Whether no error was found; there may be warnings."""
        return not any(finding.is_error for finding in self.findings)

    @property
    def is_proof(self) -> bool:
        """
        Whether the run proves its result for every schedule: it is clean, has one device, and
        observes nothing of its schedule.
        """
        return self.is_clean and not self.observed and self.devices == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """
    One call of a kernel, or the calls of several devices, in every mode that was asked for.

    Attributes:
        name: Name of the kernel.
        arch: Target, for example ``sm_90a``.
        runs: One run for each mode, in the order in which they ran.
        explored: Modes among them that were added because results depend on the schedule.
    """

    name: str
    arch: str
    runs: tuple[Run, ...]
    explored: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether no error was found in any mode; there may be warnings."""
        return all(run.is_clean for run in self.runs)

    @property
    def is_proved(self) -> bool:
        """Whether what the modes show holds for every schedule of this call."""
        return bool(self.runs) and all(run.is_proof for run in self.runs)

    @property
    def observed(self) -> tuple[Observation, ...]:
        """The instructions that observe the schedule in some mode, each once."""
        found = {(one.what, one.place): one for run in reversed(self.runs) for one in run.observed}
        return tuple(found[key] for key in sorted(found, key=lambda key: key[1]))

    @property
    def findings(self) -> Iterator[tuple[str, Finding]]:
        """Pairs of a mode's name and a finding in that mode."""
        for run in self.runs:
            for finding in run.findings:
                yield run.mode, finding

    @property
    def coverage(self) -> dict[str, Coverage]:
        """What all modes together executed of each kernel, by its name in the PTX."""
        return merge_coverage(run.coverage for run in self.runs)

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON values."""
        return {
            "name": self.name,
            "arch": self.arch,
            "clean": self.is_clean,
            "runs": [
                {
                    "mode": run.mode,
                    "seconds": round(run.seconds, 4),
                    "cpu_seconds": round(run.cpu_seconds, 4),
                    "findings": [finding.to_json() for finding in run.findings],
                    "counts": dict(run.counts),
                    "warp_instructions": dict(run.warp_instructions),
                }
                for run in self.runs
            ],
            "schedules": self.schedules(),
            "coverage": [each.to_json() for each in self.coverage.values()],
        }

    def schedules(self) -> dict[str, object]:
        """Return what the runs say of other schedules, as JSON values."""
        return {
            "proved": self.is_proved,
            "observed": [asdict(one) for one in self.observed],
            "explored": list(self.explored),
            "most_explored": MOST_EXPLORED,
        }

    def __str__(self) -> str:
        """
        Return a line for the kernel, one for each mode, every finding below its mode, then the
        observations and whether the kernel is proved.
        """
        lines = [f"{self.name} ({self.arch}): {'clean' if self.is_clean else 'NOT CLEAN'}"]
        for run in self.runs:
            counts = ", ".join(f"{count:,} {name}" for name, count in run.counts.items())
            lines.append(f"{run.mode}: {run.seconds:.2f} s; {counts}".replace("_", " "))
            lines += [f"{finding}".replace("\n", "\n  ") for finding in run.findings]
        lines += [f"{one}".replace("\n", "\n  ") for one in self.observed]
        lines += [PROVED] if self.is_proved else []
        return "\n  ".join(lines)


def merge_coverage(parts: Iterable[Mapping[str, Coverage]]) -> dict[str, Coverage]:
    """Return the joint coverage of several runs for each kernel, by its name in the PTX."""
    found: dict[str, Coverage] = {}
    for part in parts:
        for name, each in part.items():
            found[name] = found[name] | each if name in found else each
    return found
