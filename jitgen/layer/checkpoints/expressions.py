# SPDX-License-Identifier: Apache-2.0
"""
Regular expressions from a model's config, which is untrusted: expressions that Python's
backtracking might try for minutes or years are refused before they run.
"""

from __future__ import annotations

import math
import re

_LONGEST = 1000
_MOST_STEPS = 10**7
"""Number of ways to match that Python tries in less than a second."""

_LITERAL = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
"""An escaped character, or a class of characters."""

_REPEATED_GROUP = re.compile(r"\)[*+{]")
_HIDDEN = re.compile(r"\(\?(#|[A-Za-z-]*x)")
"""
Comments, and the flag that allows blanks: with these, a repeat may be separated from its group.
"""

_REPEAT = re.compile(r"((?<!\()\?|[*+]|\{[\d,]*\})[?+]?")


def is_match(expression: str, paths: list[str]) -> bool:
    """
    Return whether an expression matches the start of one of the paths.

    Raises:
        ValueError: It is not a valid expression, or may take too long.
    """
    if len(expression) > _LONGEST:
        raise ValueError(f"longer than {_LONGEST:,} characters")
    try:
        compiled = re.compile(expression)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"no expression: {error}") from error
    plain = _LITERAL.sub("x", expression)
    if _REPEATED_GROUP.search(plain) or _HIDDEN.search(plain):
        raise ValueError("which may take too long: it repeats a group, or has a comment or (?x)")
    if _steps(plain, max(map(len, paths))) > _MOST_STEPS:
        raise ValueError("which may take too long: it has too many repeats and alternatives")
    return any(compiled.match(path) for path in paths)


def _steps(plain: str, length: int) -> int:
    """
    Return a bound of the number of ways to match a text of this length: each repeat may end at any
    place after the previous one, and each group may take any of its alternatives.
    """
    repeats = len(_REPEAT.findall(plain))
    ways = math.comb(length + repeats, repeats)
    alternatives = [1]
    for character in plain:
        if character == "(":
            alternatives.append(1)
        elif character == "|":
            alternatives[-1] += 1
        elif character == ")":
            ways *= alternatives.pop()
    return ways * alternatives[0]
