# SPDX-License-Identifier: Apache-2.0
"""``jitgen doctor``: what is installed, which settings hold, and what is wrong."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence

import click

from jitgen._version import __version__
from jitgen.cli.doctor_cache import cache_findings
from jitgen.cli.doctor_machine import (
    ability_findings,
    plugin_findings,
    toolchain_findings,
    version_findings,
)
from jitgen.cli.doctor_remote import remote_findings, setup_findings
from jitgen.cli.doctor_start import start_findings
from jitgen.cli.findings import Finding, Health, about
from jitgen.cli.options import with_output
from jitgen.cli.output import ExitCode, Output, counted
from jitgen.config import Arch
from jitgen.errors import JitgenError
from jitgen.settings import nearest, settings
from jitgen.support import vocabulary as v
from jitgen.support.frozen import frozen
from jitgen.support.variables import OTHERS, TABLE
from jitgen.targets.legality import target


@frozen
class _Diagnosis:
    ok: v.Ok
    jitgen: str
    findings: Sequence[Finding]


class _Warnings(logging.Handler):
    """Collects the library's warnings while findings are collected."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.findings: list[Finding] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.findings.append(about("heard", "warning", text, Health.WARN))


@click.command()
@click.option(
    "--remote", is_flag=True, help="Send requests to JITGEN_REMOTE and JITGEN_SERVICE, too."
)
@with_output
def doctor(output: Output, remote: bool) -> int:
    """
    Report on the installation, for yourself and for bug reports.

    The last section says what a serving program would do if it started now: where it looks for
    kernels, what happens at a miss, and which plans were prewarmed for its device.

    Exits 1 if something is broken. Anything that only limits what jitgen can do is a warning.
    """
    heard = _Warnings(level=logging.WARNING)
    log = logging.getLogger("jitgen")
    log.addHandler(heard)
    try:
        sections = (*_SECTIONS, remote_findings if remote else setup_findings, start_findings)
        findings = [finding for section in sections for finding in section()]
    finally:
        log.removeHandler(heard)
    findings += heard.findings
    is_broken = any(finding.health is Health.FAIL for finding in findings)

    def human() -> None:
        section = ""
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            if finding.section != section:
                section = finding.section
                output.line(section, style="bold")
            mark = "" if finding.health in (Health.OK, Health.NOTE) else f"  [{finding.health}]"
            output.line(
                f"  {finding.name:<{width}}  {finding.value}{mark}", style=_STYLES[finding.health]
            )
            if finding.advice:
                output.line(f"  {'':<{width}}  {finding.advice}", style=_STYLES[finding.health])
        warnings = sum(finding.health is Health.WARN for finding in findings)
        failures = sum(finding.health is Health.FAIL for finding in findings)
        output.note(
            f"{counted(failures, 'problem')}, {counted(warnings, 'warning')}"
            if failures or warnings
            else "everything is in order"
        )

    document = _Diagnosis(ok=not is_broken, jitgen=__version__, findings=findings)
    output.report("doctor", document, human)
    return ExitCode.FAILED if is_broken else ExitCode.OK


_ASKED = "please send a report: jitgen bench blackwell --peers --report FILE (docs/blackwell.md)"
_STYLES = {Health.OK: "", Health.NOTE: "", Health.WARN: "yellow", Health.FAIL: "bold red"}


def _devices() -> Iterator[Finding]:
    section = "target"
    from jitgen.selection.device import driver_version

    driver = driver_version()
    yield about(section, "driver", driver or "none")
    try:
        import torch
    except ImportError as error:
        yield about(
            section,
            "gpu",
            f"torch cannot be imported: {error}",
            Health.FAIL,
            "install it: pip install torch",
        )
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in range(count):
        major, minor = torch.cuda.get_device_capability(index)
        name = torch.cuda.get_device_name(index)
        value = f"{name} (compute capability {major}.{minor})"
        yield about(section, f"gpu {index}", value)
        yield from proof(section, f"proof {index}", name, Arch.of_capability(major, minor))
    if not count:
        is_blind = bool(driver) and torch.version.cuda is None
        yield about(
            section,
            "gpu",
            "none that torch can use",
            Health.WARN if is_blind else Health.NOTE,
            f"torch {torch.__version__} was built without CUDA" if is_blind else "",
        )
    try:
        from jitgen.targets.devices import default_arch

        yield about(section, "arch", str(default_arch()))
    except JitgenError as error:
        yield about(section, "arch", str(error), Health.FAIL)


def proof(section: str, name: str, device: str, arch: Arch | None) -> Iterator[Finding]:
    """Yield a finding that says how far jitgen is tested on the device called `device`."""
    if arch is None:
        yield about(section, name, "no target has kernels for it", Health.NOTE)
        return
    devices = target(arch).devices
    found = next((each for each in devices if each.name == device), None)
    value = f"not listed for {arch}: kernels are chosen as for the {devices[0].name}"
    if found is not None:
        value = found.proof or "what ran on it is not known"
    is_proven = found is not None and found.is_proven
    yield about(section, name, value, Health.NOTE, _ASKED, when=not is_proven)


def about_machine() -> list[Finding]:
    """
    Return the findings that a report of figures needs: versions, GPUs and what they can run; no
    paths.
    """
    return [
        finding
        for section in (version_findings, _devices, ability_findings)
        for finding in section()
    ]


def _settings() -> Iterator[Finding]:
    for row in TABLE:
        try:
            value, origin = settings.origin(row.name)
        except JitgenError as error:
            yield about("settings", row.variable, str(error), Health.FAIL)
            continue
        shown = row.shown_default.replace("`", "") if origin == "default" else _text(value)
        yield about("settings", row.variable, f"{shown} ({origin})")
    known = {*(row.variable for row in TABLE), *OTHERS}
    for name in sorted(name for name in os.environ if name.startswith("JITGEN_")):
        if name not in known:
            yield about(
                "settings",
                name,
                os.environ[name],
                Health.WARN,
                f"no setting has this name; it is ignored{nearest(name)}",
            )


def _text(value: object) -> str:
    return os.pathsep.join(map(str, value)) if isinstance(value, tuple) else str(value)


_SECTIONS: tuple[Callable[[], Iterator[Finding]], ...] = (
    version_findings,
    toolchain_findings,
    _devices,
    plugin_findings,
    ability_findings,
    _settings,
    cache_findings,
)
