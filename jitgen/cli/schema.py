# SPDX-License-Identifier: Apache-2.0
"""``jitgen schema``: the JSON Schema of what ``--json`` prints."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from jitgen.cli.options import with_output
from jitgen.cli.output import Output
from jitgen.support import vocabulary as v
from jitgen.support.frozen import frozen


@frozen
class _Schemas:
    commands: Sequence[str]
    json_schema: v.Values


@click.command()
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
@with_output
def schema(output: Output, words: tuple[str, ...]) -> None:
    """
    Print the JSON Schema (draft 2020-12) of what a command prints with --json.

    COMMAND are the words of a command, such as `cache ls`; the words of a group mean all of its
    commands, no words mean all commands. See docs/json.md.
    """
    from jitgen.cli.schemas import DOCUMENTS, schema_of

    asked = list(words)
    chosen = [name for name in DOCUMENTS if name.split()[: len(asked)] == asked]
    if not chosen:
        raise click.UsageError(
            f"there is no command {' '.join(asked)!r}; --help of jitgen, or of a group of its "
            "commands, lists them"
        )
    found = schema_of(chosen)
    document = _Schemas(commands=chosen, json_schema=found)
    output.report("schema", document, lambda: output.text(json.dumps(found, indent=2)))
