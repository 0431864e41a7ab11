# SPDX-License-Identifier: Apache-2.0
"""The reference of the command line: a page for each command of `jitgen`, from click's own."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from jitgen.cli.main import cli

EXIT_CODES = """\
Exit codes: 0 ok, 1 failed, 2 usage, 3 something would have to be compiled, 130 interrupted.
Data goes to standard output, talk to standard error; what `--json` prints is described in
[What `--json` prints](../json.md).
"""


def commands(
    command: click.Command = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command that does something, with the words that name it."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    if command.invoke_without_command:
        yield path, command
    for name, found in _below(command):
        yield from commands(found, (*path, name))


def _below(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    """Yield the commands of a group, in its order."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if found is not None:
            yield name, found


def page_of(name: str) -> str:
    """Return where a command, the first word after `jitgen`, is described."""
    return f"cli/{name}.md"


def pages() -> dict[str, str]:
    """Return the text of every page, by its place on the site."""
    made = {}
    for name, command in _below(cli):
        lines = [f"# jitgen {name}", "", *_described(command, (name,)), EXIT_CODES]
        made[page_of(name)] = "\n".join(lines)
    return made


def menu() -> list[dict[str, object]]:
    """Return the part of the site's menu that holds the commands."""
    return [{f"jitgen {name}": page_of(name)} for name, _ in _below(cli)]


def _described(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
    context = click.Context(command, info_name=" ".join(("jitgen", *path)))
    usage = " ".join(command.collect_usage_pieces(context))
    yield from ["```", f"{context.info_name} {usage}", "```", "", _help(command.help), ""]
    options = [each for each in command.params if isinstance(each, click.Option)]
    records = [each.get_help_record(context) for each in options if not each.hidden]
    rows = [row for row in records if row is not None]
    if rows:
        yield from ["| option | meaning |", "|---|---|"]
        for names, text in rows:
            yield f"| `{' '.join(names.split())}` | {_cell(_code(text))} |"
        yield ""
    if isinstance(command, click.Group):
        for name, found in _below(command):
            words = (*path, name)
            yield from [f"## jitgen {' '.join(words)}", "", *_described(found, words)]


def _help(text: str | None) -> str:
    """Return a help text as Markdown: what click is not to wrap is a block, as its sign says."""
    made = []
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        first, _, rest = paragraph.partition("\n")
        if first.strip() == "\b":
            made.append("\n".join(f"    {line}" for line in rest.splitlines()))
        else:
            made.append(_code(paragraph.replace("\f", "")))
    return "\n\n".join(made)


def _code(text: str) -> str:
    """Escape what Markdown would take for HTML: placeholders stand in angle brackets."""
    return re.sub(r"<(?=[A-Za-z/])", "&lt;", text)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
