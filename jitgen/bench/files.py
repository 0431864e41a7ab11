# SPDX-License-Identifier: Apache-2.0
"""Files of reports: written in one step, and read with one error for all that may be wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from jitgen.errors import ConfigError
from jitgen.support.documents import parse_json, read_bounded

_MAX_BYTES = 2**26  # of a report; a whole suite with its samples takes one
T = TypeVar("T")


def write(document: Mapping[str, Any], path: Path) -> None:
    """
    Write `document` to `path` as JSON; see `write_text`.

    Raises:
        ConfigError: The file cannot be written.
    """
    write_text(json.dumps(document, indent=1) + "\n", path)


def write_text(text: str, path: Path) -> None:
    """
    Write `text` to `path` in one step, so that a reader never sees half of it.

    Raises:
        ConfigError: The file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error


def read(path: Path, make: Callable[[Mapping[str, Any]], T]) -> T:
    """
    Return what `make` makes of the object that `path` holds.

    Raises:
        ConfigError: The file cannot be read, or `make` raised one: the message names the file.
    """
    try:
        document = parse_json(read_bounded(path, _MAX_BYTES), max_bytes=_MAX_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} does not hold a report: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path} does not hold a report: it is no object")
    try:
        return make(document)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
