# SPDX-License-Identifier: Apache-2.0
"""Finds, reads and replaces the trust document of `jitgen trust`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import click

from jitgen.cli.output import Output, counted
from jitgen.errors import SigningError
from jitgen.ownership.files import read_trusted
from jitgen.settings import settings
from jitgen.signing import times
from jitgen.signing.chain import newest
from jitgen.signing.keys import PrivateKey
from jitgen.signing.standing import SHOWN
from jitgen.signing.trust import MAX_BYTES, SealedTrust, Trust, TrustedKey, opened
from jitgen.support import vocabulary as v
from jitgen.support.documents import BadDocument
from jitgen.support.frozen import frozen


@frozen
class _Written:
    file: v.File
    version: int
    keys: Sequence[v.KeyId]
    ends: Annotated[Mapping[str, v.When], v.by("keyid")]


def document_path(path: Path | None) -> Path:
    """Return `path`, or the path in JITGEN_TRUST; raises click's error if both are missing."""
    found = settings.trust if path is None else path
    if found is None:
        raise click.UsageError("name the trust document: --file FILE, or JITGEN_TRUST")
    return Path(found)


def is_there(path: Path) -> bool:
    """Return whether `path` exists; raises SigningError if that cannot be determined."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SigningError(f"{path} cannot be looked at: {error.strerror}") from error
    return True


def read_document(path: Path) -> SealedTrust:
    """Return the document at `path`; raises SigningError if there is none, or it cannot be used."""
    try:
        return opened(read_trusted(path, MAX_BYTES))
    except FileNotFoundError:
        raise SigningError(
            f"there is no trust document {path}; jitgen trust init makes one"
        ) from None
    except OSError as error:
        raise SigningError(f"the trust document {path} cannot be read: {error.strerror}") from error
    except (BadDocument, SigningError) as error:
        raise SigningError(f"{path} is no trust document that can be used: {error}") from None


def write_document(
    output: Output,
    command: str,
    path: Path,
    before: SealedTrust | None,
    made: Trust,
    *roots: PrivateKey,
    why: Mapping[str, str] | None = None,
) -> None:
    """
    Sign `made`, replace `before` at `path` by it atomically, and print the keys whose ends change.
    The file ``<path>.log`` gets a line about the change, with the reasons `why`, by digest.
    """
    data = made.sealed(*roots)
    if before is not None:
        data = newest(before, opened(data, before)).data
    draft = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(draft, flags, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fchmod(descriptor, 0o644)
            os.fsync(descriptor)
        if (read_document(path) if is_there(path) else None) != before:
            raise SigningError(f"{path} was changed meanwhile; look at it, and do it again")
        draft.replace(path)
    except OSError as error:
        said = error.strerror or error
        raise SigningError(f"the trust document {path} cannot be written: {said}") from error
    finally:
        with suppress(OSError):
            draft.unlink()
    try:
        _log(path, command, made, data, why or {})
    except OSError as error:
        output.warn(f"the log {path}.log cannot be written: {error.strerror or error}")
    keys = counted(len(made.keys.keys() - made.revoked_keys.keys()), "key")
    text = f"{path}: version {made.version}, {keys}, until {times.text_of(made.expires)}"
    ends = _ends(made, {} if before is None else before.trust.keys)

    def human() -> None:
        output.line(text)
        for keyid, end in ends.items():
            key, gone = made.keys[keyid], made.keys[keyid].not_after < times.now()
            name = f"key {keyid[:SHOWN]}" + (f" ({key.comment})" if key.comment else "")
            output.line(f"{name} {'signed' if gone else 'signs'} until {end}")
        for root in () if before is None else before.trust.roots:
            if root not in made.roots:
                output.line(f"root key {root.keyid[:SHOWN]} signs no document after this one")

    document = _Written(file=path, version=made.version, keys=[*made.keys], ends=ends)
    output.report(f"trust {command}", document, human)


def _log(path: Path, command: str, made: Trust, data: bytes, why: Mapping[str, str]) -> None:
    """Append a line of JSON about a change to the log beside the document."""
    line = {
        "at": times.text_of(made.issued),
        "command": command,
        "version": made.version,
        "sha256": hashlib.sha256(data).hexdigest(),
        "digests": dict(why),
    }
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path.with_name(f"{path.name}.log"), flags, 0o644)
    with os.fdopen(descriptor, "ab") as stream:
        stream.write(f"{json.dumps(line)}\n".encode("ascii"))


def _ends(made: Trust, before: Mapping[str, TrustedKey]) -> dict[str, str]:
    """Return the new end of each key whose end has changed."""
    return {
        keyid: times.text_of(key.not_after)
        for keyid, key in made.keys.items()
        if keyid not in before or before[keyid].not_after != key.not_after
    }
