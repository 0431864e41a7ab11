# SPDX-License-Identifier: Apache-2.0
"""A command group that imports a command only when it runs; listing commands imports nothing."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """
    A group whose commands are in separate modules.

    Args:
        commands_at: For each command, in the order of the help text, ``module:attribute`` and the
            line that the help text shows.
    """

    def __init__(
        self, *arguments: Any, commands_at: Mapping[str, tuple[str, str]], **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._commands_at = commands_at

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of `commands_at`."""
        return list(self._commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command; None if there is no command of this name."""
        if cmd_name not in self._commands_at:
            return None
        module, _, attribute = self._commands_at[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the requested command, or fail with a list of the names."""
        name = args[0]
        is_known = name in self._commands_at or name.startswith("-") or ctx.resilient_parsing
        if not is_known:
            from difflib import get_close_matches  # every start imports this module

            meant = get_close_matches(name, self._commands_at, 1)
            hint = f" Did you mean {meant[0]!r}?" if meant else ""
            ctx.fail(f"No such command {name!r}.{hint} Commands: {', '.join(self._commands_at)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._commands_at.items()])
