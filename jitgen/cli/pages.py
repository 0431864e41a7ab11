# SPDX-License-Identifier: Apache-2.0
"""Writing of HTML pages, for several commands."""

from __future__ import annotations

from pathlib import Path

import click


def write(path: Path, text: str) -> None:
    """Write a page; raises click.FileError where that cannot be."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.FileError(str(path), error.strerror or "cannot be written") from error
