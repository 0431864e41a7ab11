# SPDX-License-Identifier: Apache-2.0
"""
Types of path arguments, which are checked before a command starts its work.

A command may run for minutes before it writes its file. So a folder that does not exist is an error
of the command line, in all commands, and is never created silently.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

_STREAM = "-"


class ToWrite(click.Path):
    """
    A file that a command will write: its folder must exist and be writable.

    Args:
        allow_dash: Whether ``-`` is standard output.
    """

    def __init__(self, *, allow_dash: bool = False) -> None:
        super().__init__(dir_okay=False, allow_dash=allow_dash, path_type=Path)

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Path:
        """Return the path, or fail with the reason and a remedy."""
        if not os.fspath(value):
            self.fail("'' names no file", param, ctx)
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if self.allow_dash and str(path) == _STREAM:
            return path
        folder = path.parent
        if not folder.is_dir():
            advice = "it is a file" if folder.exists() else f"make it first: mkdir -p {folder}"
            self.fail(f"there is no folder {folder} to write {path.name} to; {advice}", param, ctx)
        if not os.access(folder, os.W_OK | os.X_OK):
            self.fail(f"the folder {folder} may not be written to by you", param, ctx)
        return path


class ToRead(click.Path):
    """
    A file that a command will read.

    Args:
        advice: Command that writes such a file.
    """

    def __init__(self, advice: str = "") -> None:
        super().__init__(dir_okay=False, path_type=Path)
        self._advice = advice

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Path:
        """Return the path, or fail with the reason and a remedy."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not os.fspath(value) or not os.path.exists(path):  # noqa: PTH110  # it may be any path
            advice = f"; {self._advice}" if self._advice else ""
            self.fail(f"there is no file {os.fspath(value)!r}{advice}", param, ctx)
        return path


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8; raises click.FileError if that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.FileError(str(path), error.strerror or "cannot be written") from error


TO_WRITE = ToWrite()
TO_READ = ToRead()
PRIVATE_KEY = ToRead("jitgen trust key makes one")
