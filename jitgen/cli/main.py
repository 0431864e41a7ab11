# SPDX-License-Identifier: Apache-2.0
"""
Entry point: the tree of commands, and how errors become exit codes.

Exit codes: 0 ok, 1 failed, 2 usage, 3 a kernel would have to be compiled, 130 interrupted; which
malformed files are 1 and which are 2 is in docs/troubleshooting.md. An error that jitgen raises on
purpose is one line on standard error, never a traceback.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress

import click

from jitgen._version import __version__
from jitgen.cli.lazy import LazyGroup
from jitgen.cli.output import ExitCode, Output
from jitgen.errors import (
    ConfigError,
    InputError,
    JitgenError,
    PlanError,
    SettingError,
)
from jitgen.settings import settings
from jitgen.support.boundary import boundary

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the number of SIGINT, as in shells."""

_USAGE_ERRORS = (ConfigError, InputError, PlanError, SettingError)
"""Errors in the user's input, as opposed to failures of the work."""

_HELP = frozenset({"-h", "--help"})

_COMMANDS = {
    "demo": ("jitgen.cli.demo:demo", "Multiply a small MoE layer and show what was compiled."),
    "prewarm": ("jitgen.cli.prewarm:prewarm", "Compile every kernel that plans may need."),
    "lock": ("jitgen.cli.lock:lock", "Write down which kernels a service runs."),
    "plan": ("jitgen.cli.plan:plan", "List and show plans; make them from calls or a model."),
    "show": ("jitgen.cli.show:show", "Show a kernel: source, PTX, SASS, resources, key."),
    "inspect": ("jitgen.cli.inspect:inspect_command", "Make an HTML page about a kernel, or two."),
    "run": ("jitgen.cli.run:run", "Compile an edited kernel, check it and time it."),
    "diff": ("jitgen.cli.diff:diff", "Compare two kernels, from config to machine code."),
    "verify": ("jitgen.cli.verify:verify", "Run GPU kernels without a GPU and check them."),
    "configs": ("jitgen.cli.configs:configs", "List the configs that a target can run."),
    "select": ("jitgen.cli.select:select", "Say which config is chosen for a problem, and why."),
    "tune": ("jitgen.cli.tune:tune", "Measure candidate kernels, and record the fastest."),
    "serve": ("jitgen.cli.serve:serve", "Serve kernels to a fleet, and compile missing ones."),
    "token": ("jitgen.cli.serve:token", "Make an access token for the compile service."),
    "signer": ("jitgen.cli.serve:signer", "Sign for a compile service of another user."),
    "cache": ("jitgen.cli.cache:cache", "Inspect the disk cache and clean it."),
    "bundle": ("jitgen.cli.bundle:bundle", "Copy kernels in one file, which is an OCI image."),
    "trust": ("jitgen.cli.trust:trust", "Make keys, and say which signatures are accepted."),
    "bench": ("jitgen.cli.bench:bench", "Measure jitgen, and compare it with budgets and peers."),
    "schema": ("jitgen.cli.schema:schema", "Print the JSON Schema of what --json prints."),
    "doctor": (
        "jitgen.cli.doctor:doctor",
        "Report on the installation, also for bug reports.",
    ),
}


@click.group(
    cls=LazyGroup, commands_at=_COMMANDS, context_settings={"help_option_names": sorted(_HELP)}
)
@click.version_option(__version__, "-V", "--version", message="jitgen %(version)s")
def cli() -> None:
    """Generate, compile, cache and choose GPU kernels for mixture-of-experts grouped GEMMs."""


class _WarningPrinter(logging.Handler):
    """Prints warnings of the library as lines on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        Output(is_json=False).warn(text)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (None: this process's) and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_streams()
    # torch warns where numpy is missing; jitgen needs none, and the user of a command can't tell
    warnings.filterwarnings("ignore", "Failed to initialize NumPy", UserWarning)
    talk = _WarningPrinter(level=logging.WARNING)
    log = logging.getLogger("jitgen")
    log.addHandler(talk)
    try:
        if not _is_free(words):
            _check_settings()
        code = cli.main(words, prog_name="jitgen", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except click.ClickException as error:
        return _complain(error, is_json="--json" in words)
    except JitgenError as error:
        # a command that had printed its document does not raise any more
        _tell(error, is_json="--json" in words)
        return ExitCode.USAGE if isinstance(error, _USAGE_ERRORS) else ExitCode.FAILED
    except BrokenPipeError:
        _discard_output()
        return ExitCode.FAILED
    except Exception as error:  # whatever lies underneath; see `jitgen.support.boundary`
        try:
            with boundary("this command"):
                raise error
        except JitgenError as ours:
            _tell(ours, is_json="--json" in words)
        return ExitCode.FAILED
    finally:
        log.removeHandler(talk)
    return int(code or ExitCode.OK)


def _is_free(words: Sequence[str]) -> bool:
    """Return whether a command runs even if settings are wrong: help, the version, the doctor."""
    return not words or words[0] in ("-V", "--version", "doctor") or not _HELP.isdisjoint(words)


def _check_settings() -> None:
    """Raise SettingError for a variable with a bad value, even if this command does not read it."""
    settings.check_environment()
    if settings.plugins or settings.arch or settings.device:
        from jitgen.runtime.settings_check import check_names

        check_names()


def _open_streams() -> None:
    """
    Make standard streams usable: replace closed ones, and escape characters that they cannot
    encode.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _tell(error: JitgenError, *, is_json: bool) -> None:
    """Print an error; only on standard error if standard output cannot be written."""
    try:
        Output(is_json=is_json).error(type(error).__name__, str(error))
        sys.stdout.flush()
    except OSError:
        _discard_output()


def _complain(error: click.ClickException, *, is_json: bool) -> int:
    """Print an error of the command line: a usage line if it helps, then the error."""
    context = getattr(error, "ctx", None)
    message = error.format_message()
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(message, err=True)
        return error.exit_code
    if context is not None:
        click.echo(f"{context.get_usage()}\nTry '{context.command_path} --help'.", err=True)
    Output(is_json=is_json).error(type(error).__name__, message)
    return error.exit_code


def _discard_output() -> None:
    """Discard buffered output: the reader of the pipe is gone, or the disk is full."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run())


if __name__ == "__main__":
    main()
