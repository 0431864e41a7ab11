# SPDX-License-Identifier: Apache-2.0
"""``jitgen serve``, ``jitgen token`` and ``jitgen signer``: the compile service of a fleet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from jitgen.cli.options import with_output
from jitgen.cli.output import ExitCode, Output
from jitgen.cli.paths import PRIVATE_KEY
from jitgen.errors import InputError, ToolchainError
from jitgen.support import vocabulary as v
from jitgen.support.frozen import frozen

_SCOPES = ("read", "compile", "write", "admin")


@frozen
class _CheckedConfig:
    ok: v.Ok
    config: v.File
    mistakes: Sequence[str]
    warnings: Sequence[str]


@frozen
class _NewToken:
    name: str
    scopes: Sequence[str]
    token: str
    table: str


@frozen
class _Signer:
    keyid: str
    socket: v.File


@contextmanager
def _extra() -> Iterator[None]:
    """Raise a ToolchainError with the install command if packages of the service are missing."""
    try:
        yield
    except ImportError as error:
        raise ToolchainError(
            f"the compile service is not installed ({error}); run: pip install 'jitgen[server]'"
        ) from error


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--check-config", is_flag=True, help="Check CONFIG, print its errors, and end.")
@with_output
def serve(output: Output, config: Path, check_config: bool) -> int:
    """
    Serve kernels to a fleet, and compile missing ones, as the TOML file CONFIG says.

    SIGTERM ends the service when running compiles are done; SIGHUP makes it read tokens, trust
    document and key again. The log goes to standard error, one JSON object per line. See
    docs/service.md.
    """
    with _extra():
        from jitgen.server.check import checked
        from jitgen.server.serve import run
        from jitgen.server.settings import read_settings
    if check_config:
        found, warnings = checked(config)
        document = _CheckedConfig(ok=not found, config=config, mistakes=found, warnings=warnings)
        output.report("serve", document, lambda: _print(output, config, found))
        for line in warnings:
            output.warn(line)
        return ExitCode.USAGE if found else ExitCode.OK
    run(read_settings(config))
    return ExitCode.OK


def _print(output: Output, config: Path, found: list[str]) -> None:
    for line in found:
        output.line(line)
    if not found:
        output.line(f"{config} is right")


@click.command()
@click.argument("name")
@click.option("--scopes", default="read,compile", show_default=True, help=", ".join(_SCOPES))
@with_output
def token(output: Output, name: str, scopes: str) -> int:
    """
    Make an access token for the compile service; its log and limits call it NAME.

    Prints the token, which is stored nowhere else, and the table to add to the service's file of
    tokens. Clients read the token from the file that JITGEN_TOKEN_FILE names.
    """
    with _extra():
        from jitgen.server.tokens import new_token
    chosen = tuple(dict.fromkeys(part.strip() for part in scopes.split(",")))
    if unknown := [scope for scope in chosen if scope not in _SCOPES]:
        raise InputError("scopes", f"must be some of {', '.join(_SCOPES)} (got {unknown[0]!r})")
    if not name.isprintable() or not name or '"' in name or "\\" in name:
        raise InputError("name", "must be printable and without quotes or backslashes")
    secret, table = new_token(name, chosen)
    document = _NewToken(name=name, scopes=chosen, token=secret, table=table)
    output.report("token", document, lambda: output.text(f"{secret}\n\n{table}"))
    return ExitCode.OK


@click.command()
@click.option("--key", type=PRIVATE_KEY, required=True, help="The signing key.")
@click.option(
    "--socket", type=click.Path(path_type=Path), required=True, help="The socket to listen on."
)
@with_output
def signer(output: Output, key: Path, socket: Path) -> int:
    """
    Sign for a compile service that runs as another user and cannot read the key.

    The SOCKET, a file that the service's group may use, receives statements about entries; nothing
    else is signed.
    """
    with _extra():
        from jitgen.server.confine import undumpable
        from jitgen.server.log import Log
        from jitgen.server.signer import listen
        from jitgen.signing.keys import PrivateKey
    undumpable()
    loaded = PrivateKey.load(key)
    document = _Signer(keyid=loaded.keyid, socket=socket)

    def begun() -> None:
        text = f"key {loaded.keyid} signs at {socket}"
        output.report("signer", document, lambda: output.line(text))

    listen(socket, loaded, Log(), begun=begun)
    return ExitCode.OK
