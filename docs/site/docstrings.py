# SPDX-License-Identifier: Apache-2.0
"""
Docstrings as Markdown.

They are written for Napoleon: paragraphs, literal blocks after ``::``, and sections such as Args
whose entries are ``name: text``. Backticks mean the same in both languages.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator

_SECTION = re.compile(
    r"^(Args|Attributes|Returns|Yields|Raises|Example|Examples|Note|Notes|Warns):$"
)
_ENTRY = re.compile(r"^(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*)(?: \([^)]*\))?: +(.*)$")
_LISTED = re.compile(r"^- `([^`]+)`: (.*)$")
_RULER = r" *(?:=+ +)+=+\n"
_ROWS = r"(?:.*\S.*\n)+?"
_TABLE = re.compile(rf"^( *)(?==){_RULER}{_ROWS}{_RULER}{_ROWS}{_RULER}", re.MULTILINE)
_STARS: dict[object, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}
_WIDTH = 88
_LISTS = frozenset({"Args", "Attributes", "Raises", "Warns"})


def markdown(text: str | None) -> str:
    """Return a docstring as Markdown; nothing for one that is empty."""
    lines = inspect.cleandoc(text or "").splitlines()
    made: list[str] = []
    at = 0
    while at < len(lines):
        found = _SECTION.match(lines[at])
        if found is None:
            made.append(_plain(lines[at]))
            at += 1
            continue
        body = []
        at += 1
        while at < len(lines) and (not lines[at].strip() or lines[at].startswith(" ")):
            body.append(lines[at])
            at += 1
        made += ["", f"**{found[1]}**", "", *_section(found[1], body), ""]
    return _fenced("\n".join(made).strip() + "\n") if made else ""


def entries(text: str | None, section: str) -> dict[str, str]:
    """Return the first paragraph of each entry of a docstring's section, in one line, by name."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in markdown(text).partition(f"**{section}**")[2].splitlines():
        if line.startswith("**"):  # the next section
            break
        if entry := _LISTED.match(line):
            names = entry[1].split(", ")
            found |= dict.fromkeys(names, entry[2])
        elif not line.strip():
            names = []
        else:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


def _plain(line: str) -> str:
    """Return a line of a paragraph: what announces a literal block announces it in English."""
    if line.strip() == "::":
        return ""
    return line[:-1] if line.endswith("::") and not line.startswith(" ") else line


def _section(name: str, body: list[str]) -> Iterator[str]:
    """Yield what stands below a title: a list, where its entries have names."""
    body = inspect.cleandoc("\n".join(["", *body])).splitlines()
    if name not in _LISTS:
        yield from map(_plain, body)
        return
    for line in body:
        entry = _ENTRY.match(line)
        yield f"- `{entry[1]}`: {entry[2]}" if entry else line


def _fenced(text: str) -> str:
    """Put tables of reStructuredText, which Markdown does not know, into blocks of code."""

    def block(found: re.Match[str]) -> str:
        space = found[1]
        return "\n".join([f"{space}```text", found[0].rstrip("\n"), f"{space}```", ""])

    return _TABLE.sub(block, text)


def signature(name: str, thing: Callable[..., object], *, is_method: bool = False) -> str:
    """Return how `thing` is called, one argument a line where they do not fit in one."""
    try:
        called = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    given = list(called.parameters.values())
    if is_method and given and given[0].name in ("self", "cls"):
        del given[0]
    parts = [_argument(each) for each in given]
    kinds = [each.kind for each in given]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        parts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    returned = called.return_annotation
    result = "" if returned is inspect.Signature.empty else f" -> {_annotation(returned)}"
    line = f"{name}({', '.join(parts)}){result}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){result}"])


def _argument(parameter: inspect.Parameter) -> str:
    text = f"{_STARS.get(parameter.kind, '')}{parameter.name}"
    has_type = parameter.annotation is not parameter.empty
    if has_type:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return text
    default = repr(parameter.default)
    if default.startswith("<"):  # an object that cannot be written down
        default = "..."
    return f"{text} = {default}" if has_type else f"{text}={default}"


def _annotation(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
