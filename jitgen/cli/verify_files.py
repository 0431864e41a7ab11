# SPDX-License-Identifier: Apache-2.0
"""``jitgen verify FILE``: files with kernels of other authors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jitgen.cli.options import stacked
from jitgen.errors import EmulationError

TASK = "jitgen.verify.files:verify_task"

LIMIT_S = 3600.0
"""
Time limit in seconds for all cases of a file, whose number is known only after the file has run.
"""

_SUFFIXES = (".py", ".so", ".json")

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
options = stacked(
    click.option("--ptx", type=_FILE, help="PTX of FILE.so, a kernel compiled by others."),
    click.option(
        "--symbol", metavar="NAME", help="Function of FILE.so: the library has __tvm_ffi_NAME."
    ),
    click.option("--cases", type=_FILE, help="File with verify_cases(), for FILE.so."),
    click.option(
        "--require-coverage",
        is_flag=True,
        help="Fail if the cases of FILE leave out an instruction that must be executed.",
    ),
)


def tasks(
    names: tuple[str, ...],
    arch: str,
    *,
    problem: str | None,
    ptx: Path | None,
    symbol: str | None,
    cases: Path | None,
    require_coverage: bool,
) -> list[dict[str, Any]]:
    """
    Return a task for each file among `names`; an empty list if all are kernels of jitgen.

    This loads no file.

    Raises:
        click.UsageError: A file does not exist, or the options do not fit the names.
    """
    files = [Path(name) for name in names if Path(name).suffix in _SUFFIXES]
    artifact = (ptx, symbol, cases)
    if not files:
        if any(artifact) or require_coverage:
            raise click.UsageError("--ptx, --symbol, --cases, --require-coverage are for files")
        return []
    if len(files) < len(names):
        raise click.UsageError("name either files or kernels of jitgen, not both at once")
    if problem is not None:
        raise click.UsageError("--problem is for kernels of jitgen; files bring their own cases")
    if missing := next((file for file in files if not file.is_file()), None):
        raise click.UsageError(f"there is no file {missing}")
    libraries = [file for file in files if file.suffix == ".so"]
    if bool(libraries) != all(artifact) or bool(libraries) != any(artifact) or len(libraries) > 1:
        raise click.UsageError(
            "a compiled kernel is one FILE.so with all of --ptx, --symbol and --cases; another "
            "FILE has none of them"
        )
    if any(file.suffix == ".py" for file in files):
        _check(arch)
    given = {"arch": arch, "must_reach_all": require_coverage}
    if libraries:
        paths = {"library": libraries[0], "ptx": ptx, "file": cases}
        resolved = {name: str(Path(path).resolve()) for name, path in paths.items() if path}
        return [{**given, **resolved, "symbol": symbol}]
    compiled = {"library": "", "ptx": "", "symbol": ""}
    return [{**given, **compiled, "file": str(file.resolve())} for file in dict.fromkeys(files)]


def _check(arch: str) -> None:
    """
    Refuse a target that the emulator does not support. The PTX of a library has its own target.
    """
    from jitgen.emulator import target_of

    try:
        target_of(arch)
    except EmulationError as error:
        raise click.UsageError(str(error)) from error


def name(task: dict[str, Any]) -> str:
    """Return the name of a task's file: that of its row if the task has no kernels."""
    return Path(task["library"] or task["file"]).name
