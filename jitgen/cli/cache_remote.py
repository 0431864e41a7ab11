# SPDX-License-Identifier: Apache-2.0
"""The commands under ``jitgen cache`` that sign entries and copy them to and from object stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from jitgen.cache.entry import is_key
from jitgen.cli.cache import KEY_DIGITS, open_store
from jitgen.cli.lookup import find_key
from jitgen.cli.options import ARCHS, DEVICES, refuse, with_output
from jitgen.cli.output import ExitCode, Output, counted
from jitgen.cli.paths import PRIVATE_KEY
from jitgen.cli.prewarm import plan_archs
from jitgen.cli.signing import trust_of, warn_of_key
from jitgen.config import Arch
from jitgen.errors import CacheError, ConfigError, SettingError
from jitgen.plans.plan import is_plan
from jitgen.settings import settings
from jitgen.support import vocabulary as v
from jitgen.support.codec import named
from jitgen.support.frozen import frozen
from jitgen.support.values import remotes
from jitgen.targets.devices import default_arch

if TYPE_CHECKING:
    from jitgen.cache import Entry, Store
    from jitgen.remote.objects import Objects

ByKey = Annotated[Mapping[str, v.Reason], v.by("key")]


@frozen
class _Signed:
    signed: Sequence[v.Key]
    there: Sequence[v.Key]
    stale: Sequence[v.Key]


@frozen
class _Pushed:
    to: v.Url
    pushed: Sequence[v.Key]
    there: Sequence[v.Key]
    unsigned: Sequence[v.Key]
    signed: Sequence[v.Key]
    failed: ByKey


@frozen
class _Pulled:
    from_: v.Url = named("from")
    pulled: Sequence[v.Key]
    here: Sequence[v.Key]
    failed: ByKey


@frozen
class _Judged:
    trust: int
    signed: Annotated[Mapping[str, Sequence[v.KeyId]], v.by("key")]
    refused: ByKey


_names = click.argument("names", metavar="[CONFIG-or-KEY]...", nargs=-1)
_sign = click.option("--key", "key_file", type=PRIVATE_KEY, help="Sign them with this private key.")
_builder = click.option(
    "--builder", default="jitgen", show_default=True, help="Who built them, as a comment."
)


@click.command()
@_names
@click.option(
    "--key",
    "key_file",
    type=PRIVATE_KEY,
    required=True,
    help="The file of the private key; see: jitgen trust key.",
)
@_builder
@click.option("--again", is_flag=True, help="Sign again what this key has signed already.")
@with_output
def sign(output: Output, names: tuple[str, ...], key_file: Path, builder: str, again: bool) -> None:
    """
    Sign entries of this cache, all if none is named. Further signatures are added to existing ones.

    Entries that this key has already signed are skipped. With --again they are signed again; that
    is needed if their signatures are no longer accepted, for example because the trust document
    refuses old ones.
    """
    from jitgen.signing.policy import judge

    store = open_store()
    trust = trust_of(store)
    signed: list[str] = []
    there: list[str] = []
    stale: list[str] = []
    for entry, is_new in _signed(output, store, names, key_file, builder, is_again=again):
        (signed if is_new else there).append(entry.key)
        if not is_new and trust and not judge(entry.meta.encode(), entry.signatures, trust):
            stale.append(entry.key)

    def human() -> None:
        were = f", {len(there):,} had a signature of this key" if there else ""
        output.line(f"{counted(len(signed), 'entry', 'entries')} signed{were}")
        if stale:
            output.warn(f"{len(stale):,} of these are refused here; sign them anew with --again")

    output.report("cache sign", _Signed(signed=signed, there=there, stale=stale), human)


@click.command()
@_names
@click.option("--to", "url", help="URL to copy to; default: the first of JITGEN_REMOTE.")
@_sign
@_builder
@click.option("--replace", is_flag=True, help="Overwrite entries, e.g. to add signatures.")
@with_output
def push(
    output: Output,
    names: tuple[str, ...],
    url: str | None,
    key_file: Path | None,
    builder: str,
    replace: bool,
) -> int:
    """
    Copy entries of this cache to an object store, all if none is named.

    Entries in the store are not overwritten: the first that published a key keeps it. With --key,
    entries that are in the store already also get the signature of that key.
    """
    from jitgen.remote import layout
    from jitgen.remote.outcomes import RemoteError

    if key_file is None:
        refuse("only with --key", "builder")
    store, backend = open_store(), backend_of(url)
    entries = _entries(store, names)
    if key_file is not None:
        entries = (entry for entry, _ in _signed(output, store, names, key_file, builder))
    pushed: list[str] = []
    there: list[str] = []
    unsigned: list[str] = []
    signed: list[str] = []
    failed: dict[str, str] = {}
    for entry in entries:
        if entry.unread:
            failed[entry.key] = f"who signed it cannot be read: {entry.unread}"
            continue
        try:
            is_new = layout.push(backend, entry, replaces=replace)
            if key_file is not None and not is_new and layout.sign(backend, entry):
                signed.append(entry.key)
        except (RemoteError, CacheError) as error:
            failed[entry.key] = str(error)
            continue
        (pushed if is_new else there).append(entry.key)
        if not entry.signatures:
            unsigned.append(entry.key)

    def human() -> None:
        _list(output, failed)
        also = f", {len(signed)} of them signed now" if signed else ""
        output.line(f"{len(pushed)} pushed to {backend.url}, {len(there)} were there{also}")
        if unsigned:
            output.warn(
                f"{counted(len(unsigned), 'of them is', 'of them are')} not signed, and will "
                "be refused; sign with --key FILE"
            )

    document = _Pushed(
        to=backend.url, pushed=pushed, there=there, unsigned=unsigned, signed=signed, failed=failed
    )
    output.report("cache push", document, human)
    return ExitCode.FAILED if failed else ExitCode.OK


@click.command()
@click.argument("names", metavar="[PLAN-or-CONFIG-or-KEY]...", nargs=-1)
@click.option("--arch", "archs", type=ARCHS, help="Targets of plans: A,B.")
@DEVICES
@click.option("--from", "url", help="URL to copy from; default: the first of JITGEN_REMOTE.")
@click.option("--all", "everything", is_flag=True, help="Copy all entries of the store.")
@with_output
def pull(
    output: Output,
    names: tuple[str, ...],
    archs: tuple[Arch, ...] | None,
    devices: tuple[str, ...],
    url: str | None,
    everything: bool,
) -> int:
    """
    Copy entries from an object store to this cache, if their signatures are accepted.

    A PLAN means every kernel that can be chosen for it on the named targets and devices, as for
    `jitgen prewarm`.
    """
    from jitgen.remote import layout
    from jitgen.remote.outcomes import RemoteError
    from jitgen.remote.request_policy import RequestPolicy
    from jitgen.remote.tiers import publish

    store, backend = open_store(), backend_of(url, is_written=False)
    if names and everything:
        raise click.UsageError("--all copies all entries: leave out the names, or --all")
    if not names and not everything:
        raise click.UsageError("name what to pull, or say --all")
    if not any(is_plan(name) for name in names):
        refuse("for plans alone; the name of a kernel says its target", "archs", "devices")
    try:
        keys = (
            list(backend.keys())
            if everything
            else list(dict.fromkeys(_keys(names, plan_archs(archs, devices), devices, store)))
        )
    except RemoteError as error:
        raise CacheError(f"{backend.url} does not say what it has: {error}") from None
    judge = RequestPolicy("remote", backend.url, store).judge
    pulled, there = [], []
    failed: dict[str, str] = {}
    for key in keys:
        if store.read_own(key) is not None:
            there.append(key)
            continue
        try:
            entry = publish(store, layout.fetch(backend, key, judge))
        except RemoteError as error:
            failed[key] = str(error)
            continue
        if entry.why_private:
            failed[key] = entry.why_private
        else:
            pulled.append(key)

    def human() -> None:
        _list(output, failed)
        output.line(f"{len(pulled)} pulled from {backend.url}, {len(there)} were here")

    document = _Pulled(from_=backend.url, pulled=pulled, here=there, failed=failed)
    output.report("cache pull", document, human)
    return ExitCode.FAILED if failed else ExitCode.OK


def _keys(
    names: tuple[str, ...],
    archs: tuple[Arch, ...] | None,
    devices: tuple[str, ...],
    store: Store,
) -> Iterator[str]:
    """Yield the keys that `names` mean: of all kernels of a plan, of a kernel, or the key."""
    from jitgen.plans.plan import load
    from jitgen.plans.prewarm import wanted

    for name in names:
        if is_key(name):
            yield name
        elif is_plan(name):
            for arch in archs or (default_arch(),):
                yield from (spec.key for spec in wanted(load(name), arch, store, devices).specs)
        else:
            yield find_key(name, store)


def verify_signatures(output: Output) -> int:
    """Print each entry without an accepted signature, and why; return the exit code."""
    from jitgen.signing.policy import judge

    store = open_store(changes=False)
    trust = store.trusted.current().trust
    signers: dict[str, list[str]] = {}
    refused: dict[str, str] = {}
    for info in store.entries():
        with settings.scope(verify="off"):
            entry = store.read(info.key)
        if entry is None:
            continue
        found = judge(entry.meta.encode(), entry.signatures, trust)
        if entry.unread:
            refused[info.key] = f"who signed it cannot be read: {entry.unread}"
        elif found:
            signers[info.key] = list(found.statements)
        else:
            refused[info.key] = found.reason

    def human() -> None:
        if refused:
            rows = [(key[:KEY_DIGITS], reason) for key, reason in refused.items()]
            output.table(["KEY", "~REFUSED"], rows)
        entries = counted(len(signers) + len(refused), "entry", "entries")
        output.note(
            f"{entries} checked against trust document {trust.version}, {len(refused)} refused"
        )

    document = _Judged(trust=trust.version, signed=signers, refused=refused)
    output.report("cache verify", document, human)
    return ExitCode.FAILED if refused else ExitCode.OK


def _list(output: Output, failed: dict[str, str]) -> None:
    if failed:
        rows = [(key[:KEY_DIGITS], reason) for key, reason in failed.items()]
        output.table(["KEY", "~FAILED"], rows)


def backend_of(url: str | None, *, is_written: bool = True) -> Objects:
    """Return the object store at `url`, or the first of JITGEN_REMOTE."""
    from jitgen.remote.objects import Objects

    try:
        places = settings.remote if url is None else remotes(url)
    except ValueError as error:
        raise click.UsageError(f"{url!r} is not allowed: it must be {error}") from None
    if not places:
        option = "--to" if is_written else "--from"
        raise SettingError(
            f"JITGEN_REMOTE is not set; name a place with {option}, such as s3://bucket/prefix"
        )
    if places[0].startswith("http"):
        raise click.UsageError(f"{places[0]} can only be read; name the bucket behind it")
    return Objects(places[0], is_patient=True, is_written=is_written)


def _entries(store: Store, names: tuple[str, ...]) -> Iterator[Entry]:
    """
    Yield the named entries; if none is named, all of this cache except those with an edited source.

    Signatures are not checked. An edited kernel is never sent elsewhere unless it is named.
    """
    keys = [find_key(name, store) for name in names]
    if not names:
        keys = [info.key for info in store.entries() if not info.base]
    for key in keys:
        with settings.scope(verify="off"):
            entry = store.read_own(key)
        if entry is not None and (names or not entry.meta.is_edited):
            yield entry
        elif names:
            raise ConfigError(f"there is no entry {key[:KEY_DIGITS]} in {store.root}")


def _signed(
    output: Output,
    store: Store,
    names: tuple[str, ...],
    key_file: Path,
    builder: str,
    *,
    is_again: bool = False,
) -> Iterator[tuple[Entry, bool]]:
    """
    Sign each entry with a key, unless it has that signature; yield the entry, and whether it was
    signed now.
    """
    from jitgen.signing import dsse
    from jitgen.signing.keys import PrivateKey
    from jitgen.signing.statement import PAYLOAD_TYPE, Statement

    key = PrivateKey.load(key_file)
    warn_of_key(output, key.keyid, store)
    for entry in _entries(store, names):
        is_signed = any(one.is_signed_by(key.public) for one in dsse.decode(entry.signatures))
        if is_again or not is_signed:
            statement = Statement.of(entry.meta.encode(), builder)
            envelope = dsse.seal(PAYLOAD_TYPE, statement.encode(), key)
            store.add_signatures(entry.key, dsse.encode([envelope]), renews=is_again)
        with settings.scope(verify="off"):
            found = store.read_own(entry.key)
        if found is not None:
            yield found, is_again or not is_signed
