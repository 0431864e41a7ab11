# SPDX-License-Identifier: Apache-2.0
"""
JSON and TOML that another user may have written, read within bounds.

A parser does what its input says: a gigabyte is read whole, nesting becomes recursion, an integer
of a million digits takes minutes, a list of ten million empty lists takes a gigabyte, and NaN turns
up where a number was expected. Everything that jitgen parses comes through here and is bounded
before it is parsed. A document outside of the bounds raises `BadDocument`, with one line that names
the fault; the caller, who read the document, says which file that was.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from typing import IO, Any, NoReturn

from jitgen.support.boundary import on_fresh_stack

MAX_BYTES = 2**20
"""Default limit of a document's size."""

MAX_DEPTH = 32
"""No document of jitgen's nests deeper; the deepest, a table of measurements, has six levels."""

MAX_VALUES = 2**19
"""Values of a JSON document, counted by its commas and brackets: each takes up to 100 bytes."""

_MAX_TOML_VALUES = 2**16  # keys, tables and values; a table takes almost a kilobyte
_MAX_DIGITS = 20  # of an integer: more than 64 bits hold
_MAX_DOTS = 64  # in a line of TOML: the time for a dotted name grows with the square of its parts
_FEW_BYTES = 2**15  # a document so small cannot hold too many values, and need not be searched
# A string without an end reaches to the end of the text, so that the search stays linear.
# Possessive repetitions of groups find too little in Python 3.11.2, so there are none. Nothing is
# tried twice nevertheless: each way on begins with another byte, and what is cut off matches.
_JSON_STRING = rb'(?s)"[^"\\]*(?:\\.[^"\\]*)*"?'
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

_TOML_TEXT = rb"""(?sx)
    \"{3} [^"\\]* (?: (?: \\. | "(?!"") ) [^"\\]* )* (?: "{3,5} | \\? \Z )     # of several lines
  | '{3}  [^']*   (?:           '(?!'')   [^']*   )* (?: '{3,5} | \Z )
  | "     [^"\\\n]* (?: \\. [^"\\\n]* )* "?                                    # of a single line
  | '     [^'\n]* '?
  | \#    [^\n]*                                                               # a comment
"""
"""Strings and comments of TOML, in which brackets, dots and digits mean nothing."""

_TOML_DIGITS = re.compile(rb"[0-9_]{100}")


class BadDocument(ValueError):
    """A document is too large, too deep, or malformed; the message says which."""


def parse_json(data: bytes, *, max_bytes: int = MAX_BYTES) -> Any:
    """
    Return the value of a JSON text in UTF-8.

    Raises:
        BadDocument: It is no JSON, too large or too deep, or it holds too many values, NaN, an
            infinity or an integer of more than 20 digits.
    """
    check_size(len(data), max_bytes)
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:  # else there is nothing to look for
        _check_depth(re.sub(_JSON_STRING, b"", data))
    if len(data) > _FEW_BYTES:
        _check_count(sum(map(data.count, (b",", b"[", b"{"))), MAX_VALUES)
    try:
        return json.loads(
            data.decode("utf-8"),
            parse_int=_integer,
            parse_float=_number,
            parse_constant=_no_number,
        )
    except BadDocument:
        raise
    except ValueError as error:
        raise BadDocument(f"it is no JSON: {error}") from None


def parse_toml(data: bytes, *, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """
    Return the table of a TOML text in UTF-8.

    Raises:
        BadDocument: It is no TOML, too large or too deep, a line of it is full of dots, or it holds
            too many values, NaN, an infinity or an integer of more than 20 digits.
    """
    import tomllib

    check_size(len(data), max_bytes)
    bare = re.sub(_TOML_TEXT, b"", data)
    _check_depth(bare)
    if any(line.count(b".") > _MAX_DOTS for line in bare.splitlines()):
        raise BadDocument(f"a line of it has more than {_MAX_DOTS} dots")
    _check_count(sum(map(bare.count, (b",", b"[", b"{", b"="))), _MAX_TOML_VALUES)
    if _TOML_DIGITS.search(bare):  # Python takes the square of their number to read them
        raise BadDocument("it holds an integer of more than 100 digits")
    try:
        text = data.decode("utf-8")
        found = on_fresh_stack(lambda: tomllib.loads(text, parse_float=_number))
    except BadDocument:
        raise
    except (ValueError, OverflowError) as error:  # a date or an integer may be out of range, too
        raise BadDocument(f"it is no TOML: {error}") from None
    _check_values(found)
    return found


def check_size(num_bytes: int, max_bytes: int) -> None:
    """Raise BadDocument where `num_bytes` is more than `max_bytes`."""
    if num_bytes > max_bytes:
        raise BadDocument(f"it has {num_bytes} bytes, and {max_bytes} are the most that are read")


def read_bounded(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """
    Return the content of the regular file `path`, or of a pipe, which is read up to the limit.

    Raises:
        BadDocument: It is larger than `max_bytes`, or is a block device.
        OSError: It cannot be read, or is a folder.
    """
    with open(path, "rb", opener=_open) as stream:  # any path, also /dev/stdin
        return read_stream(stream, max_bytes)


def _open(path: str, flags: int) -> int:
    """Open `path` without blocking: a pipe without a writer counts as empty."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor


def read_stream(stream: IO[bytes], max_bytes: int = MAX_BYTES) -> bytes:
    """Read all of `stream`; raises as `read_bounded`."""
    found = os.fstat(stream.fileno())
    if stat.S_ISBLK(found.st_mode) or stat.S_ISDIR(found.st_mode):
        raise BadDocument("it is no regular file")
    if stat.S_ISREG(found.st_mode):
        check_size(found.st_size, max_bytes)
    data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise BadDocument(f"it has more than the {max_bytes} bytes that are read at most")
    return data


def canonical_json(document: Any) -> str:
    """
    Return the one JSON text of `document`: sorted keys, no spaces, ASCII. Digests are taken of it.
    """
    return json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def _check_depth(data: bytes) -> None:
    """Refuse `data` if its brackets nest too deeply; recursion then never depends on it."""
    depth = 0
    for bracket in data.translate(None, _NOT_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            raise BadDocument(f"it nests deeper than {MAX_DEPTH} levels")


def _check_count(values: int, most: int) -> None:
    """Refuse a document of more `values` than `most`: each takes many times its bytes in memory."""
    if values > most:
        raise BadDocument(f"it holds some {values:,} values, and {most:,} are the most")


def _check_values(document: dict[str, Any]) -> None:
    """Refuse long integers, in any base, and dotted names that nest too deeply."""
    waiting: list[tuple[Any, int]] = [(document, 1)]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, (dict, list)):
            if depth > MAX_DEPTH:
                raise BadDocument(f"it nests deeper than {MAX_DEPTH} levels")
            each = value.values() if isinstance(value, dict) else value
            waiting += [(one, depth + 1) for one in each]
        elif type(value) is int and abs(value) >= 10**_MAX_DIGITS:
            raise BadDocument(f"it holds an integer of more than {_MAX_DIGITS} digits")


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise BadDocument(f"it holds an integer of {len(text)} digits")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        is_word = text.strip("+-").isalpha()  # inf and nan, which TOML knows
        what = f"{text}, which is no number" if is_word else f"a number that is too large: {text}"
        raise BadDocument(f"it holds {what[:60]}")
    return value


def _no_number(text: str) -> NoReturn:
    raise BadDocument(f"it holds {text}, which is no number")
