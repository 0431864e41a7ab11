# SPDX-License-Identifier: Apache-2.0
"""``jitgen cache explain`` and ``quarantine``: why a kernel is not loaded, and damaged entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import click

from jitgen.cache.inventory import Difference
from jitgen.cache.quarantine import Damage
from jitgen.cli.cache import KEY_DIGITS, open_store, when
from jitgen.cli.lookup import KernelId, Named, Nameless, find
from jitgen.cli.options import with_output
from jitgen.cli.output import ExitCode, Output, counted
from jitgen.compile.toolchain import COMPILER, flavour
from jitgen.settings import settings
from jitgen.support import vocabulary as v
from jitgen.support.codec import one_of
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.cache import Meta, Store
    from jitgen.remote.probe import ProbeResult

    Nearest = list[tuple[Meta, tuple[Difference, ...]]]


_NO_ENTRY = "no entry has this key"

State = Annotated[str, one_of("hit", "miss", "failed", "refused")]


@frozen
class _NearEntry:
    """An entry whose key document is similar to that of the explained kernel."""

    key: v.Key
    name: v.Name
    differences: Sequence[Difference]
    meanings: Sequence[str]


@frozen
class _Explained(KernelId):
    state: State
    reason: str
    key_document: v.Values
    damaged: Sequence[Damage]
    elsewhere: Sequence[Annotated[object, "jitgen.remote.probe:ProbeResult"]]
    nearest: Sequence[_NearEntry]


@frozen
class _ExplainedDamage:
    """JSON document about a damaged entry whose kernel is unknown."""

    key: v.Key
    state: State
    reason: v.Reason
    damaged: Sequence[Damage]
    nearest: Sequence[_NearEntry]


@frozen
class _Quarantined:
    damaged: Sequence[Damage]
    removed: v.Count
    left: v.Count


@click.command()
@click.argument("config_or_key", metavar="CONFIG-or-KEY")
@click.option(
    "--limit", type=click.IntRange(1), default=3, show_default=True, help="Entries shown."
)
@with_output
def explain(output: Output, config_or_key: str, limit: int) -> int:
    """
    Say whether a kernel would be loaded from the cache; if not, show in which fields the nearest
    entries of its operation differ.

    With a KEY, show how that entry differs from the one that the installed toolchain would look
    for; for a damaged entry, show the damage.
    """
    from jitgen.runtime import spec as keys

    store = open_store(changes=False)
    try:
        named = find(config_or_key, store)
    except Nameless as nameless:
        _tell_damage(output, nameless.key, nameless.damages)
        return ExitCode.OK
    document = keys.document(named.config, named.arch)
    wanted = keys.digest(document)
    state, reason = _state(store, named, wanted)
    nearest: Nearest = []
    if named.is_key and named.key != wanted:
        nearest = store.differences(named.key, document)
    elif state == "miss":
        nearest = store.nearest(document, limit)
        if nearest and reason == _NO_ENTRY:
            reason += "; the nearest are below"
    damages = [] if state == "hit" and named.key == wanted else store.damages(named.key)

    elsewhere = _elsewhere(store, named) if state == "miss" and named.key == wanted else []

    def human() -> None:
        output.fields([("name", named.name), ("key", wanted), (state, reason)])
        for backend in elsewhere:
            output.line(
                f"{backend.tier:<7} {backend.reason or f'{backend.url} has it: a call fetches it'}"
            )
        for damage in damages:
            output.line()
            output.line(f"entry {_described(output, damage)}")
        for meta, differences in nearest:
            output.line()
            output.line(f"entry {meta.key[:KEY_DIGITS]} {meta.name} differs in", style="bold")
            output.table(
                ["FIELD", "WANTED", "FOUND"],
                [(item.field, _short(item.wanted), _short(item.found)) for item in differences],
            )
            for meaning in _meanings(differences):
                output.note(meaning)

    found = _Explained(
        name=named.name,
        arch=named.arch,
        key=wanted,
        state=state,
        reason=reason,
        key_document=document,
        damaged=damages,
        elsewhere=elsewhere,
        nearest=[
            _NearEntry(
                key=meta.key,
                name=meta.name,
                differences=differences,
                meanings=_meanings(differences),
            )
            for meta, differences in nearest
        ],
    )
    output.report("cache explain", found, human)
    return ExitCode.OK


def _elsewhere(store: Store, named: Named) -> list[ProbeResult]:
    """Ask each remote cache and service for a kernel; return what they answer."""
    if not (settings.remote or settings.service):
        return []
    from jitgen.remote.probe import probe_all
    from jitgen.runtime.spec import spec_of

    return probe_all(store, spec_of(named.config, named.arch))


def _meanings(differences: Sequence[Difference]) -> list[str]:
    """Return an explanation of differences whose names do not explain themselves."""
    fields = {item.field: item for item in differences}
    found = []
    if any(field.startswith(f"toolchain.{COMPILER}-libs-cu") for field in fields):
        found.append(
            f"the compiler's code generators for CUDA 12 and 13 make different code; here cu"
            f"{flavour()} is in use (see docs/install.md)"
        )
    if "host" in fields:
        found.append(
            f"it was compiled for hosts {fields['host'].found}, and this one is "
            f"{fields['host'].wanted}: for the cpu target each level has kernels of its own"
        )
    return found


def _state(store: Store, named: Named, wanted: str) -> tuple[str, str]:
    """Return ``hit``, ``miss``, ``failed`` or ``refused``, and the reason."""
    from jitgen.runtime.kernel import unsupported_isa
    from jitgen.targets.legality import check

    verdict = check(named.config, named.arch)
    if not verdict:
        return "refused", f"{verdict.code}: {verdict.reason}"
    failure = store.index.failure(wanted)
    if failure is not None:
        return "failed", f"{failure.reason} (retry with: jitgen cache rm {wanted[:KEY_DIGITS]})"
    entry = store.read(wanted)
    if entry is not None:
        missing = unsupported_isa(entry)
        return ("miss", missing) if missing else ("hit", str(entry.directory))
    damages = store.damages(wanted)
    if damages:
        how = "cannot serve" if damages[0].set_aside is None else "was set aside"
        return "miss", f"the entry of this key {how}: {damages[0].reason}"
    return "miss", _NO_ENTRY


def _tell_damage(output: Output, key: str, damages: tuple[Damage, ...]) -> None:
    """Print the known facts about a damaged entry whose kernel is unknown."""

    def human() -> None:
        output.fields([("key", key), ("miss", damages[0].reason)])
        for damage in damages:
            output.line()
            output.line(f"entry {_described(output, damage)}")

    document = _ExplainedDamage(
        key=key, state="miss", reason=damages[0].reason, damaged=damages, nearest=()
    )
    output.report("cache explain", document, human)


@click.command()
@click.option("--empty", is_flag=True, help="Remove what is listed.")
@with_output
def quarantine(output: Output, empty: bool) -> int:
    """
    List the quarantine: damaged entries, and other files that were found where an entry belongs.

    Nothing in it is ever loaded; it is kept for a day, so that you can find out what happened to
    the disk. With --empty everything is removed, and the exit code is 1 if something cannot be
    removed.
    """
    store = open_store(changes=empty)
    found = store.quarantined()
    removed = store.empty_quarantine() if empty else 0
    left = len(store.quarantined()) if empty else len(found)

    def human() -> None:
        if found:
            columns = ["KEY", ">SIZE", "SET ASIDE", "~REASON", "NAME"]
            output.table(columns, [_row(output, damage) for damage in found])
        if empty:
            output.note(f"{counted(removed, 'item')} removed, {left} left")
        else:
            output.note(f"{counted(len(found), 'item')} in {store.root}/v1/quarantine")

    document = _Quarantined(damaged=found, removed=removed, left=left)
    output.report("cache quarantine", document, human)
    return ExitCode.FAILED if empty and left else ExitCode.OK


def _row(output: Output, damage: Damage) -> tuple[str, ...]:
    return (
        damage.key[:KEY_DIGITS],
        output.size(damage.disk_bytes),
        "" if damage.set_aside is None else when(output, damage.set_aside),
        damage.reason,
        damage.name,
    )


def _described(output: Output, damage: Damage) -> str:
    """Return one line about a damaged entry."""
    how = "cannot serve"
    if damage.set_aside is not None:
        how = f"was set aside {when(output, damage.set_aside)}"
    return f"{damage.key[:KEY_DIGITS]} {how}: {damage.reason}; it lies in {damage.path}"


def _short(value: object) -> str:
    """Return a value of a key document as text, with long digests shortened."""
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= 40 else f"{text[:KEY_DIGITS]}..."
