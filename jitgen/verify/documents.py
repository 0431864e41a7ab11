# SPDX-License-Identifier: Apache-2.0
"""
Verifies a program of several devices that a JSON document describes: `jitgen verify FILE.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jitgen.emulator import TIME_LIMIT_S, Mode, read_document
from jitgen.errors import ConfigError, InputError
from jitgen.support.frozen import frozen
from jitgen.verify.verification import Trial, Verification, coverage_of, gaps_of


@frozen
class Document:
    """
    The sizes of a document, which are the problem of its trial.

    Attributes:
        devices: Number of devices.
        calls: Number of calls in a replay.
        replays: Number of replays.
    """

    devices: int
    calls: int
    replays: int

    def __str__(self) -> str:
        """Return the three numbers as text."""
        return f"{self.devices} devices, {self.calls} calls, {self.replays} replays"


def verify_document(
    path: Path | str,
    *,
    modes: str | Mode | Sequence[str | Mode] = "quick",
    time_limit_s: float = TIME_LIMIT_S,
    must_reach_all: bool = False,
) -> Verification:
    """
    Run the calls of a document in the emulator, in every mode, and compare with expected values.

    Args:
        path: The document; see docs/emulator-devices.md.
        modes: See `jitgen.emulator.emulate_devices`.
        time_limit_s: Seconds that one mode may take.
        must_reach_all: Whether a synchronisation, copy, matrix or store instruction that no call
            executes makes the result wrong.

    Raises:
        ConfigError: The document is not understood, or cannot be read.
        EmulationError: A kernel cannot be run. A fault of it is part of the result.
    """
    path = Path(path)
    try:
        document = read_document(path)
        verdict = document.run(modes, time_limit_s)
    except (InputError, OSError, ValueError) as error:
        said = str(error).removeprefix(f"{path.name}: ")
        raise ConfigError(f"{path.name}: {said}") from error
    trial = Trial(
        sizes=Document(devices=document.count, calls=len(document.calls), replays=document.replays),
        values="the document's",
        wrong=sum(verdict.wrong.values()),
        places=tuple(f"{name}: {count} wrong" for name, count in verdict.wrong.items() if count),
        report=verdict.report,
        fault=verdict.fault,
    )
    coverage = coverage_of([trial])
    is_over = must_reach_all and trial.report is not None
    return Verification(
        name=path.name,
        arch="" if verdict.report is None else verdict.report.arch,
        trials=(trial,),
        coverage=coverage,
        gaps=tuple(gaps_of(coverage)) if is_over else (),
    )
