# SPDX-License-Identifier: Apache-2.0
"""
``jitgen trust``: keys, and the document that says which signatures are accepted.

The root key only signs trust documents; keep it on a machine that does nothing else. `init`, `add`,
`rotate`, `revoke` and `unrevoke` write the next version of the document, signed with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, TypeVar

import click

from jitgen.cli import trust_words as words
from jitgen.cli.options import refuse, stacked, with_output
from jitgen.cli.output import ExitCode, Output
from jitgen.cli.paths import PRIVATE_KEY, TO_WRITE, ToRead
from jitgen.cli.trust_document import document_path, is_there, read_document, write_document
from jitgen.errors import CacheError, SigningError
from jitgen.signing import edit, times
from jitgen.signing.keys import PrivateKey
from jitgen.signing.standing import SHOWN as _SHOWN
from jitgen.support import vocabulary as v
from jitgen.support.codec import inline
from jitgen.support.frozen import frozen

_MOST_DAYS = 36500


Command = TypeVar("Command", bound=Callable[..., object] | click.Command)


def _days(name: str, default: timedelta, text: str) -> Callable[[Command], Command]:
    return click.option(
        name,
        type=click.IntRange(1, _MOST_DAYS),
        default=default.days,
        show_default=True,
        help=text,
    )


_INIT = "jitgen trust init makes one"
_WHAT = "The trust document; default: that of JITGEN_TRUST."
_WHOSE = "The private key that signs trust documents."
_file = click.option("--file", "path", type=ToRead(_INIT), help=_WHAT)
_new_file = click.option("--file", "path", type=TO_WRITE, help=_WHAT)
_root = click.option("--root-key", type=ToRead(_INIT), required=True, help=_WHOSE)
_new_root = click.option("--root-key", type=TO_WRITE, required=True, help=_WHOSE)
_valid = _days("--valid", edit.VALID, "Days for which the document is valid.")
_signs = _days("--signs", edit.SIGNS, "Days for which the key may sign.")
_comment = click.option("--comment", default="", help="A comment about the key.")
_key = click.argument("key", metavar="KEY")


@frozen
class _MadeKey:
    keyid: v.KeyId
    public: str
    file: v.File


@frozen
class _Adopted:
    file: v.File
    version: int
    forgotten: int | None


@frozen
class _Pushed:
    to: v.Url
    version: int


@frozen
class _TrustedKeyValues:
    """The JSON form of a `TrustedKey`."""

    keyid: v.KeyId
    public: str
    not_before: v.When
    not_after: v.When
    comment: str


@frozen
class _TrustValues:
    """The JSON form of a `Trust`."""

    type: str
    version: int
    issued: v.When
    expires: v.When
    roots: Sequence[str]
    keys: Sequence[_TrustedKeyValues]
    revoked_keys: Annotated[Mapping[str, str], v.by("keyid: why")]
    revoked: Annotated[Mapping[str, str], v.by("digest: why")]
    min_signed_at: v.When | None


@frozen
class _Shown:
    trust: Annotated[v.Values, _TrustValues] = inline()
    digest: str


@click.group()
def trust() -> None:
    """Make keys, and say which signatures are accepted."""


@trust.command()
@click.argument("path", metavar="FILE", type=TO_WRITE)
@with_output
def key(output: Output, path: Path) -> None:
    """Make a private key in FILE. Its public half, which `add` takes, is printed."""
    made = PrivateKey.generate()
    made.save(path)
    document = _MadeKey(keyid=made.keyid, public=made.public.text, file=path)
    output.report("trust key", document, lambda: output.line(made.public.text))


@trust.command()
@click.argument("path", metavar="KEY", type=PRIVATE_KEY)
@with_output
def public(output: Output, path: Path) -> None:
    """Print the public half of a private key. KEY is its file; `add` takes what is printed."""
    found = PrivateKey.load(path)
    document = _MadeKey(keyid=found.keyid, public=found.public.text, file=path)
    output.report("trust public", document, lambda: output.line(found.public.text))


@trust.command()
@stacked(_new_file, _new_root, _valid)
@with_output
def init(output: Output, path: Path | None, root_key: Path, valid: int) -> None:
    """Make a trust document, and a root key if there is none. `add` names the first signing key."""
    path = TO_WRITE.convert(document_path(path), None, None)  # of JITGEN_TRUST it was not checked
    if is_there(path):
        raise SigningError(f"{path} exists; a new document would forget what is revoked in it")
    if not is_there(root_key):
        PrivateKey.generate().save(root_key)
    root = PrivateKey.load(root_key)
    write_document(output, "init", path, None, edit.begun(root.public, timedelta(days=valid)), root)


@trust.command()
@stacked(_key, _file, _root, _comment, _signs, _valid)
@with_output
def add(
    output: Output,
    key: str,
    path: Path | None,
    root_key: Path,
    comment: str,
    signs: int,
    valid: int,
) -> None:
    """Let KEY sign entries from now on. It is a public key, or a private key's file."""
    path = document_path(path)
    before = read_document(path)
    changed = edit.added(
        before.trust,
        words.public_key(key),
        comment=words.comment(comment),
        signs=timedelta(days=signs),
        valid=timedelta(days=valid),
    )
    write_document(output, "add", path, before, changed, PrivateKey.load(root_key))


@trust.command()
@stacked(_key, _file, _root, _comment, _signs, _valid)
@_days("--overlap", edit.OVERLAP, "Days for which the keys before go on signing.")
@click.option("--replaces", multiple=True, metavar="KEYID", help="A key to replace; default: all.")
@click.option("--root", "is_root", is_flag=True, help="KEY is the file of the next root key.")
@with_output
def rotate(
    output: Output,
    /,
    key: str,
    path: Path | None,
    root_key: Path,
    replaces: tuple[str, ...],
    is_root: bool,
    comment: str,
    **days: int,
) -> None:
    """
    Replace the keys that sign now by KEY.

    With --replaces, replace only the named keys; with --root, the root key: both root keys then
    sign the document. Prints when the replaced keys end; their earlier signatures stay valid.
    """
    path, root = document_path(path), PrivateKey.load(root_key)
    before, lasts = read_document(path), timedelta(days=days["valid"])
    if is_root:
        refuse(
            "not with --root, which is about root keys",
            *("replaces", "comment", "signs", "overlap"),
        )
        new = PrivateKey.load(Path(key))
        if new.public in before.trust.roots:
            raise click.UsageError(
                f"{key} is a root key of {path} already; jitgen trust key makes the next one"
            )
        changed = edit.with_root(before.trust, new.public, lasts)
        write_document(output, "rotate", path, before, changed, root, new)
        return
    changed = edit.rotated(
        before.trust,
        words.public_key(key),
        comment=words.comment(comment),
        replaces=tuple(words.keyid(text, before.trust) for text in replaces),
        overlap=timedelta(days=days["overlap"]),
        signs=timedelta(days=days["signs"]),
        valid=lasts,
    )
    write_document(output, "rotate", path, before, changed, root)


@trust.command()
@click.argument("digests", metavar="DIGEST...", nargs=-1)
@stacked(_file, _root, _valid)
@click.option("--reason", default="", help="The reason; refusals show it.")
@click.option("--before", help="Refuse signatures made before this time, ISO 8601.")
@with_output
def revoke(
    output: Output,
    digests: tuple[str, ...],
    path: Path | None,
    root_key: Path,
    valid: int,
    reason: str,
    before: str | None,
) -> None:
    """
    Revoke keys and entries.

    DIGEST is a keyid (or how `show` begins it), the SHA-256 of a file, or an entry's key, all 64
    digits of it, which `jitgen cache explain NAME` prints.

    No signature of a revoked key is accepted, no matter its date, because a thief of the key could
    have written any date.
    """
    path = document_path(path)
    if not digests and before is None:
        raise click.UsageError("name a DIGEST, or a time with --before")
    if not digests:
        refuse("needs a DIGEST, whose revocation it explains", "reason")
    before_this = read_document(path)
    found = tuple(words.digest(text, before_this.trust) for text in digests)
    changed = edit.revoked(
        before_this.trust,
        found,
        reason=words.comment(reason),
        before=None if before is None else words.moment(before),
        valid=timedelta(days=valid),
    )
    why = dict.fromkeys(found, reason)
    write_document(output, "revoke", path, before_this, changed, PrivateKey.load(root_key), why=why)


@trust.command()
@click.argument("digests", metavar="DIGEST...", nargs=-1, required=True)
@stacked(_file, _root, _valid)
@click.option("--reason", default="", help="The reason, for the log beside the document.")
@with_output
def unrevoke(
    output: Output,
    digests: tuple[str, ...],
    path: Path | None,
    root_key: Path,
    valid: int,
    reason: str,
) -> None:
    """
    Take back revocations. DIGEST is one that `show` prints, or how it begins.

    Signatures of the key, and the entries, are accepted again. Hosts that get the document log a
    warning about what is no longer revoked; the .log file beside the document has the reason.
    """
    path = document_path(path)
    before = read_document(path)
    revoked = {**before.trust.revoked_keys, **before.trust.revoked}
    found = tuple(words.one_of(text, revoked) for text in digests)
    changed = edit.restored(before.trust, found, timedelta(days=valid))
    why = dict.fromkeys(found, words.comment(reason))
    write_document(output, "unrevoke", path, before, changed, PrivateKey.load(root_key), why=why)


@trust.command()
@with_output
def adopt(output: Output) -> None:
    """
    Forget the document that the cache remembers. That of JITGEN_TRUST is used from then on.

    Use this to start again with other root keys, or if the remembered document is lost. Running
    processes keep using the old document, and refuse fetched kernels, until they are restarted.
    """
    from jitgen.cache import Store

    store = Store.open()
    try:
        chosen, before = store.trusted.adopt()
    except OSError as error:
        raise CacheError(f"{store.root} cannot be written: {error.strerror or error}") from error
    forgotten = None if before is None or before.digest == chosen.digest else before.version
    file = store.trusted.remembered.path
    document = _Adopted(file=file, version=chosen.version, forgotten=forgotten)
    text = f"{store.root} goes by version {chosen.version} from now on"
    if forgotten is not None:
        text += f"; version {forgotten} of another document is forgotten"
    output.report("trust adopt", document, lambda: output.line(text))


@trust.command()
@_file
@click.option("--to", "url", help="URL to copy to; default: the first of JITGEN_REMOTE.")
@with_output
def push(output: Output, path: Path | None, url: str | None) -> None:
    """
    Put a trust document where hosts fetch kernels. Hosts that fetch kernels there use it from then
    on.
    """
    from jitgen.cli.cache_remote import backend_of
    from jitgen.remote.layout import TRUST_PATH
    from jitgen.remote.outcomes import RemoteError

    found, backend = read_document(document_path(path)), backend_of(url)
    try:
        backend.replace(TRUST_PATH, found.data)
    except RemoteError as error:
        raise CacheError(f"{backend.url} does not take it: {error}") from None
    text = f"version {found.trust.version} put to {backend.url}"
    document = _Pushed(to=backend.url, version=found.trust.version)
    output.report("trust push", document, lambda: output.line(text))


@trust.command()
@_file
@with_output
def show(output: Output, path: Path | None) -> int:
    """Print a trust document; exit 1 if it has expired."""
    found = read_document(document_path(path))
    said, is_over = found.trust, times.now() >= found.trust.expires

    def human() -> None:
        expires = times.text_of(said.expires)
        least = said.min_signed_at
        output.fields(
            [
                ("version", str(said.version)),
                ("issued", times.text_of(said.issued)),
                ("expires", f"{expires} (it has expired)" if is_over else expires),
                ("roots", ", ".join(root.keyid[:_SHOWN] for root in said.roots)),
                ("signed before", f"{times.text_of(least)} is refused" if least else "any time"),
            ]
        )
        rows = [
            (
                keyid[:_SHOWN],
                times.text_of(key.not_before),
                "revoked" if keyid in said.revoked_keys else times.text_of(key.not_after),
                key.comment,
            )
            for keyid, key in said.keys.items()
        ]
        if rows:
            columns = ["KEY", "FROM", "UNTIL", "COMMENT"]
            output.table(columns, rows)
        taken = {**said.revoked_keys, **said.revoked}
        if taken:
            columns = ["REVOKED", "~REASON"]
            output.table(columns, [(name[:_SHOWN], why) for name, why in taken.items()])

    output.report("trust show", _Shown(trust=said.to_json(), digest=found.digest), human)
    return ExitCode.FAILED if is_over else ExitCode.OK
