# SPDX-License-Identifier: Apache-2.0
"""
Text from untrusted files, escaped for a terminal or a log.

Names, reasons and paths come from files that another user may have written. On a terminal an escape
sequence in one of them can move the cursor, recolour what was said before, or set the window's
title, and characters that reorder or hide text can make one name look like another. So every
character that is not printable according to Unicode is shown as an escape.
"""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 120  # characters of a value in a message


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean ...?`` with the one of `known` that is like `name`; else nothing."""
    import difflib

    found = difflib.get_close_matches(name, list(known), 1, cutoff=0.7)
    return f"; did you mean {found[0]}?" if found else ""


def printable(text: str, keep: str = "") -> str:
    r"""
    Return `text` with every non-printable character replaced by an escape such as ``\x1b`` or
    ``\u202e``.

    Args:
        text: Anything.
        keep: Characters that are not replaced, for example ``"\n\t"``.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else _escape(letter) for letter in text
    )


def _escape(letter: str) -> str:
    code = ord(letter)
    if code < 0x100:
        return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(letter, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def json_safe(text: str) -> str:
    """
    Return the JSON document `text` with the same meaning and nothing in it that is not printable.

    Such characters can only stand inside of strings, where JSON has an escape for each.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else _json_escape(letter)
        for letter in text
    )


def _json_escape(letter: str) -> str:
    code = ord(letter)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def one_line(text: str) -> str:
    """Return `text` with a space in place of every line break and other run of white space."""
    return " ".join(text.split())


def shown(value: object) -> str:
    """
    Return the ``repr`` of `value` for a message, cut to a readable length.

    Values from documents may be of any size and depth; only the part that is shown is formatted.
    """
    import reprlib

    short = reprlib.Repr()
    short.maxlevel, short.maxdict, short.maxlist = 3, 6, 6
    short.maxstring = short.maxother = short.maxlong = _MOST
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    text = short.repr(value)
    return text if len(text) <= 2 * _MOST else f"{text[: 2 * _MOST]}..."
