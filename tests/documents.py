# SPDX-License-Identifier: Apache-2.0
"""What stands in the pages of the documentation: blocks of code, and command lines of jitgen."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from jitgen.cli.main import cli

ROOT = Path(__file__).parents[1]
WRITTEN = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/index.md")

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+)`")
_SHELLS = ("console", "sh", "bash")
_SPLITS = re.compile(r"&&|\|\||[|;]")
_STARTS = re.compile(r"^(?:(?:\$|RUN|- run:|-|\+) +)*(?:[A-Z_]+=\S+ +)*jitgen +")
_SHOWN = re.compile(r"\.\.\.|…|<[^>]*>|[A-Z][A-Z_]*\.\.\.")


def pages() -> list[str]:
    """Return every page, as a path from the root."""
    return sorted({*WRITTEN, *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))})


def text(page: str) -> str:
    """Return the text of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of code of one language."""
    return [code for name, code in fences(page) if name == language]


def fences(page: str) -> list[tuple[str, str]]:
    """Return every fenced block of a page: its language, and what stands in it."""
    return _FENCED.findall(text(page))


def command_lines(page: str) -> Iterator[str]:
    """
    Yield each command line of jitgen's, from its first word on.

    They stand in blocks of shells and in indented ones, one a line, and in the text between
    backticks. Of a synopsis brackets go, and alternatives become words.
    """
    yield from shell_lines(page)
    yield from spoken_lines(page)


def shell_lines(page: str) -> Iterator[str]:
    """
    Yield the command lines in blocks of shells and in indented ones: those that a reader copies.
    """
    for line in copied_lines(page):
        bare = re.sub(r"\[([^\]]*)\]", lambda found: found[1].replace(" | ", " "), line)
        for part in _SPLITS.split(bare):
            if found := _STARTS.match(part.strip()):
                yield part.strip()[found.end() :]


def copied_lines(page: str) -> Iterator[str]:
    """Yield every line of blocks of shells and of indented ones, without its comment."""
    whole = text(page)
    plain = _FENCED.sub("\n", whole)
    shells = [code for name, code in _FENCED.findall(whole) if name in _SHELLS]
    for block in (*shells, *_INDENTED.findall(plain)):
        for line in block.replace("\\\n", " ").splitlines():
            yield re.sub(r"(^|\s)#.*$", "", line)


def spoken_lines(page: str) -> Iterator[str]:
    """Yield the command lines in sentences, some of which only name a command."""
    plain = _FENCED.sub("\n", text(page))
    for code in _INLINE.findall(_INDENTED.sub("\n", plain)):
        if found := _STARTS.match(code):
            yield _SPLITS.split(code[found.end() :])[0]


def mistake(line: str) -> str:
    """Return what click says against a command line before it looks at values, or nothing."""
    words = shlex.split(_SHOWN.sub("", line.replace("'...'", "X")), posix=True)
    command: click.Command = cli
    path = ["jitgen"]
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0].strip(","))
        if found is None:
            return f"{' '.join(path)} has no command {words[0]}"
        command = found
        path.append(words.pop(0))
    # a command keeps its help option as the first context wants it
    context = click.Context(command, info_name=" ".join(path), help_option_names=["-h", "--help"])
    try:
        command.make_parser(context).parse_args([*words])
    except click.BadOptionUsage as error:  # its value is left out in a sentence about the option
        return "" if words[-1].startswith("-") else error.format_message()
    except click.UsageError as error:
        return error.format_message()
    return ""
