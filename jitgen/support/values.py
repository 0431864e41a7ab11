# SPDX-License-Identifier: Apache-2.0
"""
Readers of the values of settings: environment variables are texts, a TOML file has types.

A reader converts a text or a TOML value. For a value that is not allowed, it raises ValueError,
whose message says what is allowed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Reader = Callable[[Any], Any]

_SIZE = r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?"
_MAX_DIGITS = 18
MAX_WAIT_S = 1e6
"""The longest wait: clocks of the system count milliseconds in 32 bits."""

MAX_TTL_S = 1e9
"""The longest that anything is remembered: thirty years."""

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


# of texts and of TOML values


def choice(*allowed: str) -> Reader:
    """Return a reader of one of the words `allowed`."""

    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError(" or ".join(allowed))
        return str(value)

    return read


def parse_size(value: Any) -> int:
    """Read bytes: an integer, or a text such as ``4GiB``, ``500M`` or ``0``, by powers of 1024."""
    if type(value) is int and value >= 0:
        return value
    match = re.fullmatch(_SIZE, value.strip(), re.IGNORECASE) if isinstance(value, str) else None
    if match is None or len(match[1]) > _MAX_DIGITS:
        raise ValueError("a size such as 4GiB, 500MiB or 0")
    found = int(float(match[1]) * _UNITS[match[2].upper()])
    if not found and float(match[1]):  # 0 often means no limit
        raise ValueError("a size such as 4GiB, 500MiB or 0, and not a part of a byte")
    return found


def path(value: Any) -> Path:
    """Read an absolute path."""
    if not isinstance(value, str) or not Path(value).is_absolute() or "\0" in value:
        raise ValueError("an absolute path")
    return Path(value)


# of TOML values


def text(value: Any) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("a text that is not empty")
    return value


def boolean(value: Any) -> bool:
    """Read true or false."""
    if type(value) is not bool:
        raise ValueError("true or false")
    return value


def integer(least: int, most: int) -> Reader:
    """Return a reader of an integer from `least` to `most`."""
    return _between((int,), least, most, f"an integer from {least} to {most}")


def duration(least: float, most: float) -> Reader:
    """Return a reader of a number of seconds from `least` to `most`, as a float."""
    check = _between((int, float), least, most, f"seconds, from {least:.0f} to {most:.0f}")
    return lambda value: float(check(value))


def choices(*allowed: str) -> Reader:
    """Return a reader of a list of words from `allowed`, each at most once, as a tuple."""

    def read(value: Any) -> tuple[str, ...]:
        is_list = isinstance(value, list) and all(item in allowed for item in value)
        if not is_list or len(set(value)) != len(value):
            raise ValueError(f"a list of some of {', '.join(allowed)}, each once")
        return tuple(value)

    return read


def _between(kinds: tuple[type, ...], least: float, most: float, allowed: str) -> Reader:
    """
    Return a reader of a number of one of `kinds` from `least` to `most`; `allowed` says so in the
    error.
    """

    def read(value: Any) -> Any:
        if type(value) not in kinds or not least <= value <= most:  # nan is not between either
            raise ValueError(allowed)
        return value

    return read


# of texts


def flag(text: str) -> bool:
    """Read 0, 1, true or false, in any case."""
    if text.lower() not in ("0", "1", "false", "true"):
        raise ValueError("0 or 1")
    return text.lower() in ("1", "true")


def number(kind: type[int] | type[float], most: float, allowed: str) -> Reader:
    """Return a reader of a text with a number from 0 to `most`; `allowed` says so in the error."""
    check = _between((kind,), 0, most, allowed)

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(allowed) from None
        return check(value)

    return read


def seconds(most: float) -> Reader:
    """Return a reader of a text with a time from 0 to `most`, in seconds."""
    return number(float, most, f"seconds, from 0 to {most:.0f}")


def absolute(text: str) -> Path:
    """Read an absolute path; ``~`` is the home folder."""
    try:
        return path(str(Path(text).expanduser()))
    except RuntimeError:  # the user has no home folder: the path stays relative
        return path(text)


def file(text: str) -> Path:
    """Read the absolute path of a file: neither the root folder nor a path that ends in ``..``."""
    found = absolute(text)
    if found.name in ("", ".."):
        raise ValueError("an absolute path of a file")
    return found


def folders(text: str) -> tuple[Path, ...]:
    """Read absolute paths, separated as in ``PATH``."""
    try:
        return tuple(absolute(part) for part in text.split(os.pathsep) if part)
    except ValueError:
        raise ValueError(f"absolute paths, separated by {os.pathsep}") from None


_REMOTES = ("s3", "gs", "az", "file", "https", "http")
_SERVICES = ("https", "http")


def _url(text: str, *schemes: str) -> str:
    """
    Return `text`, a URL of one of `schemes` without credentials, which logs would show, ? or #; a
    slash at its end is removed.
    """
    from urllib.parse import urlsplit

    allowed = f"a URL that begins with {', '.join(f'{scheme}://' for scheme in schemes)}"
    if not text.isprintable() or " " in text:
        raise ValueError(f"{allowed}, without blanks; commas separate several")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ValueError(allowed) from None
    if parts.scheme not in schemes or "://" not in text:
        raise ValueError(allowed)
    if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
        raise ValueError("a folder by its absolute path, as in file:///shared/kernels")
    if parts.scheme != "file" and not parts.netloc:
        what = "host" if parts.scheme.startswith("http") else "bucket"
        raise ValueError(f"{allowed} and a {what}")
    try:
        is_port = parts.port != 0
    except ValueError:
        is_port = False
    if not is_port:
        raise ValueError("a URL with a port from 1 to 65535, or without one")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(f"{allowed}, without a user, a password, ? or #")
    return text.rstrip("/")


def remotes(text: str) -> tuple[str, ...]:
    """Read the URLs of caches, separated by commas."""
    return tuple(_url(name, *_REMOTES) for name in names(text))


def service(text: str) -> str:
    """Read the URL of a service; an empty text means no service."""
    return _url(text, *_SERVICES) if text else ""


def names(text: str) -> tuple[str, ...]:
    """Read words that commas separate."""
    return tuple(name for part in text.split(",") if (name := part.strip()))
