# SPDX-License-Identifier: Apache-2.0
"""
What the words of `jitgen trust` name: keys, digests, comments and times. Each function raises
click.UsageError for a word that it refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

import click

from jitgen.errors import SigningError
from jitgen.signing import times
from jitgen.signing.keys import PrivateKey, PublicKey, is_digest
from jitgen.signing.standing import SHOWN
from jitgen.signing.trust import Trust, is_comment


def public_key(text: str) -> PublicKey:
    """Return the public key `text`, or that of the private key in the file `text`."""
    path = Path(text)
    if path.is_file():
        return PrivateKey.load(path).public
    try:
        return PublicKey.parse(text)
    except SigningError:
        raise click.UsageError(
            f"{text!r} is neither a key's file nor a public key; jitgen trust key makes the one "
            "and prints the other"
        ) from None


def digest(text: str, said: Trust) -> str:
    """Return `text` if it is a digest, else the keyid of `said` that begins with it."""
    if is_digest(text):
        return text
    found = _begun(text, said.keys)
    if found is None:
        raise click.UsageError(
            f"{text!r} is no digest: 64 hexadecimal digits, lower case, or at least the {SHOWN} "
            "of a key that jitgen trust show prints"
        )
    return found


def one_of(text: str, known: Mapping[str, str]) -> str:
    """
    Return the digest in `known` that equals or begins with `text`; otherwise `text`, if it is a
    digest.
    """
    if (found := _begun(text, known)) is not None:
        return found
    if is_digest(text):
        return text
    listed = ", ".join(digest[:SHOWN] for digest in known)
    revoked = f"revoked are {listed}" if known else "nothing is revoked"
    raise click.UsageError(f"{text!r} is not revoked, or too short: {revoked}")


def keyid(text: str, said: Trust) -> str:
    """Return the keyid in `said` that equals or begins with `text`."""
    found = digest(text, said)
    if found not in said.keys:
        known = ", ".join(keyid[:SHOWN] for keyid in said.keys) or "none"
        raise click.UsageError(f"there is no key {text!r} in the trust document; it has {known}")
    return found


def comment(text: str) -> str:
    """Return `text` if it may be a comment or a reason."""
    if not is_comment(text):
        raise click.UsageError("a comment or reason is one line of at most 200 characters")
    return text


def moment(text: str) -> datetime:
    """Return the past time `text`, in whole seconds."""
    try:  # OverflowError: a time in the first or last year that another time zone cannot express
        found = datetime.fromisoformat(text).astimezone().replace(microsecond=0)
    except (ValueError, OverflowError):
        raise click.UsageError(f"{text!r} is no time such as 2026-01-02T03:04:05+00:00") from None
    if found > times.now():
        raise click.UsageError(
            f"--before {text} lies in the future: nothing that is signed until then would count"
        )
    return found


def _begun(text: str, known: Iterable[str]) -> str | None:
    """
    Return the digest in `known` that begins with `text`; None if there is none, or `text` is too
    short; raises click.UsageError if there are several.
    """
    found = [digest for digest in known if digest.startswith(text)]
    if len(text) < SHOWN or not found:
        return None
    if len(found) > 1:
        raise click.UsageError(f"{text!r} begins {' and '.join(found)}: give more digits of one")
    return found[0]
