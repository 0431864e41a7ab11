# SPDX-License-Identifier: Apache-2.0
"""
Bearer tokens and their scopes; the service knows only digests of them.

The file is TOML, a table for each token::

    [[token]]
    name = "pods"
    sha256 = "9f86d081..."        # of the token's text
    scopes = ["read", "compile"]
    not_after = 2027-01-01        # may be left out

A token is 256 random bits, so that a digest cannot be reversed by a search. The time to look up a
digest reveals nothing about other tokens.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, date, datetime
from datetime import time as clock
from pathlib import Path

from jitgen.cache.entry import is_key
from jitgen.errors import SettingError
from jitgen.server.config_errors import ConfigErrors, read_toml, short
from jitgen.server.settings import SCOPES
from jitgen.support.codec import of
from jitgen.support.frozen import frozen
from jitgen.support.text import shown
from jitgen.support.values import choices

PREFIX = "jitgen_"
"""Beginning of every token, by which secret scanners find a leaked one."""

_MAX_BYTES = 2**20
_MAX_TOKEN = 256  # characters; those of `new_token` have 50


def _digest(value: object) -> str:
    if not is_key(value):
        raise ValueError("a SHA-256: 64 hexadecimal digits in lower case")
    return str(value)


def _moment(value: object) -> float:
    """Read a TOML date, or date and time, as seconds since 1970; without an offset it is UTC."""
    if isinstance(value, datetime):
        moment = value
    elif isinstance(value, date):
        moment = datetime.combine(value, clock())
    else:
        raise ValueError("a date such as 2027-01-31")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@frozen
class Token:
    """
    One token.

    Attributes:
        name: Its name in logs, metrics and limits.
        sha256: Digest of its text.
        scopes: Scopes that it allows.
        not_after: Time at which it expires, in seconds since 1970; None: never.
    """

    name: str = of(short, None, "whose it is")
    sha256: str = of(_digest, "", "digest of its text")
    scopes: tuple[str, ...] = of(choices(*SCOPES), (), "what it is good for")
    not_after: float | None = of(_moment, None, "the day on which it ends")


class Tokens:
    """The tokens of one file; safe to replace while requests are served."""

    def __init__(self, tokens: Mapping[str, Token], anonymous: Token | None = None) -> None:
        self._by_digest = dict(tokens)
        self._anonymous = anonymous
        self._known: dict[str, Token] = {}

    def __len__(self) -> int:
        return len(self._by_digest)

    def late(self) -> list[str]:
        """Return the names of the tokens that have ended."""
        now = time.time()
        return [
            each.name
            for each in self._by_digest.values()
            if each.not_after is not None and now >= each.not_after
        ]

    def of(self, secret: str | None) -> Token | None:
        """
        Return the token with this text, the anonymous one for None; None if there is none, or it
        has ended.
        """
        if secret is None:
            return self._anonymous
        # Computing a digest takes a microsecond. Only valid tokens are cached, so that is bounded.
        found = self._known.get(secret)
        if found is None:
            if len(secret) > _MAX_TOKEN:
                return None
            found = self._by_digest.get(hashlib.sha256(secret.encode()).hexdigest())
            if found is None:
                return None
            self._known[secret] = found
        if found.not_after is not None and time.time() >= found.not_after:
            return None
        return found


def read_tokens(file: Path | None, anonymous: tuple[str, ...] = ()) -> Tokens:
    """
    Return the tokens of a file.

    Args:
        file: A TOML document; None: there are no tokens.
        anonymous: What requests without a token may do; nothing: such requests are refused.

    Raises:
        SettingError: The file cannot be read, other users can write or replace it, or it has
            errors; the message has a line for each.
    """
    stranger = Token(name="anonymous", scopes=anonymous) if anonymous else None
    if file is None:
        return Tokens({}, stranger)
    document = read_toml(file, _MAX_BYTES)
    errors = ConfigErrors()
    found = _parsed(document, errors)
    if errors.lines:
        raise SettingError("\n".join(f"{file}: {line}" for line in errors.lines))
    return Tokens(found, stranger)


def _parsed(document: dict[str, object], errors: ConfigErrors) -> dict[str, Token]:
    rows = document.get("token", [])
    for name in sorted(set(document) - {"token"}):
        errors.add(name, "is not known; allowed: [[token]] tables")
    if not isinstance(rows, list):
        errors.add("token", f"must be [[token]] tables (got {shown(rows)})")
        rows = []
    found: dict[str, Token] = {}
    names: set[str] = set()
    for index, row in enumerate(rows):
        token = errors.table(Token, row, f"token[{index}]")
        for needed in ("name", "sha256", "scopes"):
            if isinstance(row, dict) and needed not in row:
                errors.add(f"token[{index}].{needed}", "is missing")
        if isinstance(row, dict) and row.get("scopes") == []:
            errors.add(f"token[{index}].scopes", f"must have one at least of {', '.join(SCOPES)}")
        if token.sha256 and token.sha256 in found:
            errors.add(f"token[{index}]", "is the same token as an earlier one")
        if token.name in names:
            errors.add(f"token[{index}].name", f"two tokens are called {shown(token.name)}")
        names.add(token.name)
        found[token.sha256] = token
    return found


def new_token(name: str, scopes: tuple[str, ...]) -> tuple[str, str]:
    """Return the text of a new token, and its table for the file of tokens."""
    secret = PREFIX + secrets.token_urlsafe(32)
    digest = hashlib.sha256(secret.encode()).hexdigest()
    listed = ", ".join(f'"{scope}"' for scope in scopes)
    table = f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\nscopes = [{listed}]\n'
    return secret, table
