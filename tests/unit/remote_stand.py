# SPDX-License-Identifier: Apache-2.0
"""A builder with a key, hosts with roots of their own, and what lies between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jitgen.cache import Entry, Meta, Store, trusted
from jitgen.events import Event, EventKind, on_event
from jitgen.remote import breaker, layout, tiers
from jitgen.remote.budget import Allowance, allowance
from jitgen.remote.negative import negatives
from jitgen.remote.objects import Objects
from jitgen.remote.outcomes import Miss
from jitgen.settings import settings
from jitgen.signing import dsse, times
from jitgen.signing.keys import PrivateKey
from jitgen.signing.statement import PAYLOAD_TYPE, Statement
from jitgen.signing.trust import Trust, TrustedKey

from .store_fakes import fake_files, fake_meta

DAY = timedelta(days=1)
ROOT, KEY, KEY_2, THIEF = (PrivateKey.generate() for _ in range(4))


def trusting(*keys: PrivateKey, version: int = 1, **changes: Any) -> bytes:
    """Return a trust document by which `keys` sign from yesterday until tomorrow."""
    now = times.now().replace(microsecond=0)
    values: dict[str, Any] = {
        "version": version,
        "issued": now,
        "expires": now + DAY,
        "roots": (ROOT.public,),
        "keys": {
            key.keyid: TrustedKey(public=key.public, not_before=now - DAY, not_after=now + DAY)
            for key in keys
        },
    }
    return Trust(**(values | changes)).sealed(ROOT)


def entry_of(number: int, *keys: PrivateKey, **changes: Any) -> Entry:
    """Return fake kernel `number`, signed by `keys`."""
    bare = Entry.of(fake_meta(number, **changes), fake_files(number))
    return Entry.of(bare.meta, bare.files, signatures_of(bare.meta, *keys))


def signatures_of(meta: Meta, *keys: PrivateKey) -> bytes:
    """Return the ``signatures.json`` of an entry, signed by `keys` now."""
    payload = Statement.of(meta.encode(), "a test").encode()
    return dsse.encode([dsse.seal(PAYLOAD_TYPE, payload, key) for key in keys])


def spec_of(entry: Entry) -> Any:
    """Return an object with those attributes of a `KernelSpec` that a fake kernel has."""
    return SimpleNamespace(
        key=entry.key,
        name=entry.meta.name,
        arch=entry.meta.arch,
        config=SimpleNamespace(to_json=lambda: entry.meta.config),
        document=entry.meta.key_document,
    )


@dataclass
class Stand:
    """
    Attributes:
        folder: Folder of all hosts and places.
        store: Store of the host that fetches.
    """

    folder: Path
    store: Store

    @property
    def url(self) -> str:
        return f"file://{self.folder}/bucket"

    @property
    def bucket(self) -> Path:
        return self.folder / "bucket"

    def host(self, name: str) -> Store:
        """Return the store of another host."""
        return Store.open(self.folder / name, mode="rw")

    def trust(self, data: bytes) -> None:
        """Let `data` be the trust document that is configured."""
        (self.folder / "trust.json").unlink(missing_ok=True)
        (self.folder / "trust.json").write_bytes(data)

    def look_again(self) -> None:
        """Let the next fetch look for a later trust document."""
        trusted._looked.clear()
        (self.store.root / "v1" / trusted._LOOKED).unlink()

    def push(self, entry: Entry, **options: Any) -> bool:
        return layout.push(Objects(self.url, is_patient=True), entry, **options)

    def fetch(self, entry: Entry, url: str = "") -> Entry | Miss:
        """Return what a host makes of `entry`, or of what is in its place."""
        return tiers.Remote(url or self.url, self.store).fetch(spec_of(entry))

    def ask(self, url: str, entry: Entry, *, may_compile: bool = True) -> Entry | Miss:
        """Return what a host gets from the service at `url`."""
        return tiers.Service(url, self.store).fetch(spec_of(entry), may_compile=may_compile)


@contextmanager
def standing(folder: Path, **changes: Any) -> Iterator[Stand]:
    """Yield a stand in `folder` whose process remembers nothing and trusts `KEY`."""
    folder.chmod(0o700)
    forget()
    stand = Stand(folder, Store.open(folder / "root", mode="rw"))
    stand.trust(trusting(KEY))
    stand.store.trusted.mark_fresh()
    with settings.scope(**{"trust": folder / "trust.json", "verify": "remote", **changes}):
        yield stand
    forget()


def is_same(found: object, entry: Entry) -> bool:
    """Return whether an entry was found that has the bytes of `entry`, wherever it lies."""
    if not isinstance(found, Entry):
        return False
    return (found.meta, found.files, found.signatures) == (
        entry.meta,
        entry.files,
        entry.signatures,
    )


def forget() -> None:
    """Forget what this process knows about places elsewhere, as a new one would."""
    negatives.clear()
    trusted._seen.clear()
    trusted._looked.clear()
    breaker._private.clear()
    allowance.__dict__.update(Allowance().__dict__)
    tiers.close()


@contextmanager
def told(*kinds: EventKind) -> Iterator[list[Event]]:
    """Yield the list of events of these kinds."""
    seen: list[Event] = []
    end = on_event(lambda event: seen.append(event) if event.kind in kinds else None)
    try:
        yield seen
    finally:
        end()
