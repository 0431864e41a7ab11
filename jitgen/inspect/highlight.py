# SPDX-License-Identifier: Apache-2.0
"""
Converts lines of code to coloured markup: Python and PTX with Pygments, machine code by a regular
expression.

Coloured text becomes an element with a name of one or two letters, to which the style sheet gives a
colour: a page has some ten thousand lines, and classes would double its size.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from jitgen.errors import ToolchainError
from jitgen.inspect import code
from jitgen.inspect.code import Listing
from jitgen.inspect.markup import Markup
from jitgen.support.text import printable

if TYPE_CHECKING:
    from pygments.lexer import Lexer
    from pygments.token import _TokenType

COMMENT, KEYWORD, NUMBER, STRING, NAME = "i", "b", "u", "s", "em"
"""Names of elements by the kind of text."""

_SASS = re.compile(
    r"(?P<i>^[0-9a-f]{4,6}(?= )|/\*.*?\*/)|(?P<u>\b0x[0-9a-f]+\b)|(?P<em>\.L\w+)"
    r"|(?P<b>(?<![\w.@!])(?!U?P[\dT]\b)[A-Z][A-Z0-9_]*(?:\.\w+)*)"
)
"""
Tokens of machine code: addresses and comments, numbers, labels, and words, of which one kind is
coloured.
"""


def lines(listing: Listing) -> Iterator[Markup]:
    """
    Yield the lines of a listing in colours.

    Raises:
        ToolchainError: Pygments is not installed.
    """
    texts = [printable(line.text, keep="\t") for line in listing.lines]
    if listing.language in (code.PYTHON, code.PTX):
        yield from _lexed(texts, listing.language)
    else:
        is_sass = listing.language == code.SASS
        yield from (Markup("".join(_parts(text, has_operation=not is_sass))) for text in texts)


def plain(listing: Listing) -> Iterator[Markup]:
    """
    Yield the lines without colours, which take a third of the size, for a page that would be too
    large.
    """
    for line in listing.lines:
        yield Markup(html.escape(printable(line.text, keep="\t")))


def _lexed(texts: list[str], language: str) -> Iterator[Markup]:
    lexer, kinds = _lexer(language)
    found, rows = [""], 0
    for kind, text in lexer.get_tokens("\n".join(texts)):
        name = next((name for of, name in kinds if kind in of), "")
        first, *more = text.split("\n")
        found[-1] += _in(name, first)
        for part in more:
            if rows + 1 < len(texts):
                found.append(_in(name, part))
                rows += 1
    found += [""] * (len(texts) - len(found))
    yield from map(Markup, found)


def _lexer(language: str) -> tuple[Lexer, list[tuple[_TokenType, str]]]:
    try:
        from pygments.lexers import get_lexer_by_name
        from pygments.token import Comment, Keyword, Name, Number, String
    except ImportError as error:
        raise ToolchainError(
            "pages of kernels need Pygments; run: pip install 'jitgen[inspect]'"
        ) from error
    lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False, stripall=False)
    names = (Name.Function, Name.Class, Name.Decorator, Name.Label)
    kinds = [(Comment, COMMENT), (String, STRING), (Keyword, KEYWORD), (Number, NUMBER)]
    return lexer, [*kinds, *((name, NAME) for name in names)]


def _in(name: str, text: str) -> str:
    if not text:
        return ""
    safe = html.escape(text, quote=False)
    return f"<{name}>{safe}</{name}>" if name and not text.isspace() else safe


def _parts(text: str, *, has_operation: bool) -> Iterable[str]:
    """
    Yield a line of machine code in parts, in which its address, its operation and numbers are
    marked. With `has_operation` its words are operands and not marked.
    """
    done = 0
    for found in _SASS.finditer(text):
        kind = str(found.lastgroup)
        if kind == KEYWORD and has_operation:
            continue  # an operand
        has_operation = has_operation or kind == KEYWORD
        yield html.escape(text[done : found.start()], quote=False)
        yield _in(kind, found[0])
        done = found.end()
    yield html.escape(text[done:], quote=False)
