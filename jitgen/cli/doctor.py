# SPDX-License-Identifier: Apache-2.0
"""``jitgen doctor``: what is installed, what is set, and what is wrong with it."""

from __future__ import annotations

import os
import platform
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

import click

from jitgen._version import __version__
from jitgen.cli.options import with_output
from jitgen.cli.output import ExitCode, Output, counted, human_size
from jitgen.compile import toolchain
from jitgen.compile.linker import driver
from jitgen.errors import JitgenError
from jitgen.settings import TABLE, settings


class Health(StrEnum):
    """How good a finding is."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """
    One line of the report.

    Attributes:
        section: What it belongs to.
        name: What was looked at.
        value: What was found.
        health: Whether that is good.
        advice: What to do about it; empty where nothing is to be done.
    """

    section: str
    name: str
    value: str
    health: Health = Health.OK
    advice: str = ""


@click.command()
@with_output
def doctor(output: Output) -> int:
    """
    Report on the installation, for you and for bug reports.

    Exits 1 if something is broken; what only limits what jitgen can do is a warning.
    """
    findings = [finding for section in _SECTIONS for finding in section()]
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

    document = {
        "ok": not is_broken,
        "jitgen": __version__,
        "findings": [asdict(finding) for finding in findings],
    }
    output.result("doctor", document, human)
    return ExitCode.FAILED if is_broken else ExitCode.OK


_STYLES = {Health.OK: "", Health.NOTE: "", Health.WARN: "yellow", Health.FAIL: "bold red"}


def _versions() -> Iterator[Finding]:
    section = "versions"
    yield Finding(section=section, name="jitgen", value=__version__)
    yield Finding(section=section, name="python", value=platform.python_version())
    yield Finding(section=section, name="system", value=platform.platform())
    for name in ("torch", "apache-tvm-ffi", "diskcache", "filelock", "jinja2"):
        yield _installed(section, name, "install it: pip install jitgen")
    yield _installed(
        section,
        "nvidia-cutlass-dsl",
        "kernels cannot be compiled here: pip install 'nvidia-cutlass-dsl>=4.8,<4.9'",
    )


def _installed(section: str, name: str, advice: str) -> Finding:
    try:
        return Finding(section=section, name=name, value=metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(
            section=section,
            name=name,
            value="not installed",
            health=Health.FAIL,
            advice=advice,
        )


def _toolchain() -> Iterator[Finding]:
    section = "toolchain"
    yield _runtime_library(section)
    linker = driver()
    yield Finding(
        section=section,
        name="linker",
        value=linker or "not found",
        health=Health.OK if linker else Health.WARN,
        advice="" if linker else "kernels compiled here are not kept: install gcc",
    )
    yield Finding(section=section, name="processor", value=toolchain.cpu_level())
    for package, what in (
        ("nvidia-cuda-cuobjdump", "cuobjdump"),
        ("nvidia-cuda-nvdisasm", "nvdisasm"),
    ):
        try:
            value, advice = metadata.version(package), ""
        except metadata.PackageNotFoundError:
            value = shutil.which(what) or "not installed"
            advice = (
                ""
                if shutil.which(what)
                else "for SASS and registers: pip install 'jitgen[inspect]'"
            )
        health = Health.NOTE if advice else Health.OK
        yield Finding(section=section, name=what, value=value, health=health, advice=advice)


def _runtime_library(section: str) -> Finding:
    from jitgen.runtime.loader import runtime_libraries

    found = runtime_libraries()
    return Finding(
        section=section,
        name="runtime library",
        value=str(found[-1]) if found else "not found",
        health=Health.OK if found else Health.FAIL,
        advice="" if found else "no kernel can be loaded: reinstall nvidia-cutlass-dsl",
    )


def _devices() -> Iterator[Finding]:
    section = "target"
    from jitgen.tuning.device import driver_version

    driver = driver_version()
    yield Finding(section=section, name="driver", value=driver or "none")
    try:
        import torch
    except ImportError as error:
        yield Finding(
            section=section,
            name="gpu",
            value=f"torch cannot be imported: {error}",
            health=Health.FAIL,
            advice="install it: pip install torch",
        )
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in range(count):
        major, minor = torch.cuda.get_device_capability(index)
        name = f"{torch.cuda.get_device_name(index)} (compute capability {major}.{minor})"
        yield Finding(section=section, name=f"gpu {index}", value=name)
    if not count:
        is_blind = bool(driver) and torch.version.cuda is None
        yield Finding(
            section=section,
            name="gpu",
            value="none that torch can use",
            health=Health.WARN if is_blind else Health.NOTE,
            advice=f"torch {torch.__version__} was built without CUDA" if is_blind else "",
        )
    try:
        from jitgen.targets.default import default_arch

        yield Finding(section=section, name="arch", value=str(default_arch()))
    except JitgenError as error:
        yield Finding(section=section, name="arch", value=str(error), health=Health.FAIL)


def _settings() -> Iterator[Finding]:
    for row in TABLE:
        try:
            value, origin = settings.origin(row.name)
        except JitgenError as error:
            yield Finding(
                section="settings", name=row.variable, value=str(error), health=Health.FAIL
            )
            continue
        shown = row.shown_default.replace("`", "") if origin == "default" else _text(value)
        yield Finding(section="settings", name=row.variable, value=f"{shown} ({origin})")
    known = {row.variable for row in TABLE}
    for name in sorted(name for name in os.environ if name.startswith("JITGEN_")):
        if name not in known:
            yield Finding(
                section="settings",
                name=name,
                value=os.environ[name],
                health=Health.WARN,
                advice="no setting has this name; it is ignored",
            )


def _text(value: object) -> str:
    return os.pathsep.join(map(str, value)) if isinstance(value, tuple) else str(value)


def _cache() -> Iterator[Finding]:
    section = "cache"
    try:
        from jitgen.cache import Store
        from jitgen.cache.mounts import filesystem_type

        store = Store.open()
        yield Finding(section=section, name="root", value=f"{store.root}{_access(store.root)}")
        yield from (_base(section, path) for path in store.bases)
        kind = filesystem_type(store.root)
        yield Finding(section=section, name="file system", value=kind or "unknown")
        reason = store.index.reason
        yield Finding(
            section=section,
            name="index",
            value=f"none: {reason}" if reason else "in use",
            health=Health.NOTE if reason else Health.OK,
        )
        totals = store.stats()
    except (JitgenError, OSError) as error:
        yield Finding(section=section, name="root", value=str(error), health=Health.FAIL)
        return
    entries = f"{counted(totals.entries, 'entry', 'entries')}, {human_size(totals.disk_bytes)}"
    yield Finding(section=section, name="entries", value=entries)
    yield Finding(section=section, name="tuned", value=_tuned(totals.tuned))
    yield Finding(
        section=section,
        name="failures",
        value=str(totals.failures),
        health=Health.WARN if totals.failures else Health.OK,
        advice="see: jitgen cache ls --failures" if totals.failures else "",
    )
    yield Finding(
        section=section,
        name="quarantined",
        value=str(totals.quarantined),
        health=Health.WARN if totals.quarantined else Health.OK,
        advice="damaged entries were moved aside; a failing disk?" if totals.quarantined else "",
    )
    yield _writable(section, store.root)


def _base(section: str, path: Path) -> Finding:
    """Say whether a root that is only read can be."""
    from jitgen.cache import Store

    try:
        count = sum(1 for _ in Store(path, "ro").entries())
    except JitgenError as error:
        return Finding(section=section, name="base", value=str(error), health=Health.FAIL)
    is_there = path.is_dir()
    value = f"{path}: {counted(count, 'entry', 'entries')}" if is_there else f"{path}: not there"
    return Finding(
        section=section, name="base", value=value, health=Health.OK if is_there else Health.WARN
    )


def _tuned(count: int) -> str:
    """Return how many problems were measured, here and for the shipped table."""
    from jitgen.targets.default import default_arch
    from jitgen.tuning import known as tuned

    text = f"{counted(count, 'problem')} measured here"
    try:
        arch = default_arch()
        table = tuned.shipped_table(arch, tuned.shipped_device(arch))
    except JitgenError:
        return text  # the target's own line says what is wrong with it
    if table is None:
        return text
    return f"{text}, {len(table.records)} in the shipped table of {table.device}"


def _access(root: Path) -> str:
    """Return mode and owner of the root, as text behind its path."""
    try:
        found = root.stat()
    except OSError:
        return " (does not exist yet)"
    return f" (mode {stat.S_IMODE(found.st_mode):04o}, user {found.st_uid})"


def _writable(section: str, root: Path) -> Finding:
    existing = next((path for path in (root, *root.parents) if path.exists()), Path("/"))
    is_writable = os.access(existing, os.W_OK | os.X_OK)
    if settings.cache != "rw":
        return Finding(section=section, name="writable", value=f"not wanted ({settings.cache})")
    return Finding(
        section=section,
        name="writable",
        value="yes" if is_writable else f"no: {existing}",
        health=Health.OK if is_writable else Health.WARN,
        advice="" if is_writable else "kernels compiled here are lost when their process ends",
    )


_SECTIONS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _versions,
    _toolchain,
    _devices,
    _settings,
    _cache,
)
