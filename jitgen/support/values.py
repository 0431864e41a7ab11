# SPDX-License-Identifier: Apache-2.0
"""
Texts to the values of settings. A bad text raises ValueError, whose message says what is allowed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SIZE = r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?"
_MAX_DIGITS = 18
MAX_WAIT_S = 1e6
"""The longest wait: clocks of the system count milliseconds in 32 bits."""

MAX_TTL_S = 1e9
"""The longest that anything is remembered: thirty years."""

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_size(text: str) -> int:
    """
    Return the bytes that `text` stands for: ``4GiB``, ``500M``, ``0``; units are powers of 1024.
    """
    match = re.fullmatch(_SIZE, text.strip(), re.IGNORECASE)
    if match is None or len(match[1]) > _MAX_DIGITS:
        raise ValueError("a size such as 4GiB, 500MiB or 0")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def choice(*allowed: str) -> Callable[[str], str]:
    """Return what takes one of the words `allowed`."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(" or ".join(allowed))
        return text

    return parse


def flag(text: str) -> bool:
    """Return whether `text` says yes."""
    if text.lower() not in ("0", "1", "false", "true"):
        raise ValueError("0 or 1")
    return text.lower() in ("1", "true")


def number(kind: type[int] | type[float], most: float, what: str) -> Callable[[str], Any]:
    """Return what takes a number from 0 to `most`, which `what` describes."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(what) from None
        if not 0 <= value <= most:  # nor is nan
            raise ValueError(what)
        return value

    return parse


def seconds(most: float) -> Callable[[str], Any]:
    """Return what takes a time from 0 to `most`."""
    return number(float, most, f"seconds, from 0 to {most:.0f}")


def absolute(text: str) -> Path:
    """Return the absolute path that `text` is."""
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # nobody knows the home folder that ~ stands for
        path = Path(text)
    if not path.is_absolute() or "\0" in text:
        raise ValueError("an absolute path")
    return path


def file(text: str) -> Path:
    """Return the absolute path of a file that `text` is: the root folder is none."""
    path = absolute(text)
    if path.name in ("", ".."):
        raise ValueError("an absolute path of a file")
    return path


def folders(text: str) -> tuple[Path, ...]:
    """Return several of them."""
    try:
        return tuple(absolute(part) for part in text.split(os.pathsep) if part)
    except ValueError:
        raise ValueError(f"absolute paths, separated by {os.pathsep}") from None


_REMOTES = ("s3", "gs", "az", "file", "https", "http")
_SERVICES = ("https", "http")


def _url(text: str, *schemes: str) -> str:
    """Return a URL of one of `schemes`, without what would be a secret in a log or no place."""
    from urllib.parse import urlsplit

    allowed = f"a URL that begins with {', '.join(f'{scheme}://' for scheme in schemes)}"
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in schemes and parts.port != 0 and text.isprintable()
    except ValueError:
        raise ValueError(allowed) from None
    if not is_good or " " in text or not (parts.netloc or parts.scheme == "file"):
        raise ValueError(allowed)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(f"{allowed}, without a user, a password, ? or #")
    return text.rstrip("/")


def remotes(text: str) -> tuple[str, ...]:
    """Return the URLs of caches."""
    return tuple(_url(name, *_REMOTES) for name in names(text))


def service(text: str) -> str:
    """Return the URL of a service; there may be none."""
    return _url(text, *_SERVICES) if text else ""


def names(text: str) -> tuple[str, ...]:
    """Return several words."""
    return tuple(name for part in text.split(",") if (name := part.strip()))
