# SPDX-License-Identifier: Apache-2.0
"""What a service says of the entries in its root, as keys and trust documents change."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest

from jitgen.cache import Entry, Store
from jitgen.server import built as built_module
from jitgen.server.built import Built
from jitgen.server.entry_store import IDENTITY, EntryStore
from jitgen.server.log import Log
from jitgen.server.revocations import Revocations
from jitgen.server.settings import Signing, Storage
from jitgen.server.vouching import Verdict, Vouching
from jitgen.signing import dsse
from jitgen.signing.keys import PrivateKey
from jitgen.signing.policy import judge
from tests.server.forging import signed
from tests.service.trusting import DAY, sealed
from tests.unit.store_fakes import fake_files, fake_meta

OLD, NEW, THIEF = (PrivateKey.generate() for _ in range(3))
ENTRY = Entry.of(fake_meta(1), fake_files(1))
RECORD = ENTRY.meta.encode()


class Signer:
    """What stands for the way to a signer."""

    def __init__(self, key: PrivateKey) -> None:
        self.key = key
        self.asked = 0

    @property
    def keyid(self) -> str:
        return self.key.keyid

    async def of(self, record: bytes) -> bytes:
        self.asked += 1
        assert record == RECORD
        return signed(ENTRY.meta, self.key)


class Bench:
    """A root with one entry, and a service that is to hand it out."""

    def __init__(self, folder: Path, *, key: Path | None = Path("/key")) -> None:
        folder.chmod(0o700)
        self.folder = folder
        self.log = io.StringIO()
        self.version = 0
        self.signer = Signer(NEW)
        self.store = Store.open(folder / "root", mode="rw")
        self.key = key

    def trusts(self, *keys: PrivateKey, **changes: Any) -> None:
        self.version += 1
        data = sealed(*keys, version=self.version, **changes)
        (self.folder / "trust.json").write_bytes(data)

    def entry_store(self) -> EntryStore:
        file = self.folder / "trust.json"
        revocations = Revocations(self.folder, file if file.exists() else None)
        log, signer = Log(self.log), self.signer
        built, settings = Built(self.folder, log), Signing(key=self.key)
        anyway: Any = signer
        vouching = Vouching(settings, revocations, built, anyway, self.store, log)
        return EntryStore(self.store, Storage(), revocations, vouching)

    def laid(self, *keys: PrivateKey, is_own: bool) -> None:
        """Put the entry into the root, signed by `keys`."""
        self.store.publish(ENTRY.meta, ENTRY.files, signed(ENTRY.meta, *keys))
        if is_own:
            Built(self.folder, Log(self.log)).add(RECORD)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def signers(bench: Bench) -> set[str]:
    found = bench.store.read(ENTRY.key)
    assert found is not None
    return {one.keyid for each in dsse.decode(found.signatures) for one in each.signatures}


@pytest.mark.parametrize(
    ("keys", "is_own", "changes", "verdict"),
    [
        ([NEW], False, {}, Verdict.COUNTS),
        ([OLD, NEW], False, {}, Verdict.COUNTS),
        ([OLD], False, {}, Verdict.NONE),
        ([THIEF], False, {}, Verdict.NONE),
        ([], False, {}, Verdict.NONE),
        ([OLD], True, {}, Verdict.OWN),
        ([], True, {}, Verdict.OWN),
        ([NEW], True, {"revoked_keys": {NEW.keyid: "stolen"}}, Verdict.OWN),
        ([NEW], True, {"min_signed_at": DAY}, Verdict.NONE),
        ([NEW], False, {"expires": -DAY / 2}, Verdict.NONE),
        ([NEW], True, {"expires": -DAY / 2}, Verdict.OWN),
    ],
)
def test_words(
    bench: Bench, keys: list[PrivateKey], is_own: bool, changes: dict[str, Any], verdict: Verdict
) -> None:
    """By a document that trusts the new key alone. All of them were handed out as they were."""
    bench.trusts(NEW, **changes)
    bench.laid(*keys, is_own=is_own)
    entry_store = bench.entry_store()
    found, said = entry_store._read(ENTRY.key)

    assert said is verdict
    assert found is not None
    is_missing = asyncio.run(entry_store.missing([ENTRY.key])) == [ENTRY.key]
    assert is_missing == (verdict is Verdict.NONE)


@pytest.mark.parametrize(("keys", "verdict"), [([], Verdict.NONE), ([OLD], Verdict.COUNTS)])
def test_without_a_document_a_signature_must_do(
    bench: Bench, keys: list[PrivateKey], verdict: Verdict
) -> None:
    """Then it is not known which signature is valid."""
    bench.laid(*keys, is_own=False)

    assert bench.entry_store()._read(ENTRY.key)[1] is verdict


def test_a_service_that_signs_nothing_hands_out_what_it_has(tmp_path: Path) -> None:
    bench = Bench(tmp_path, key=None)
    bench.laid(is_own=False)

    assert bench.entry_store()._read(ENTRY.key)[1] is Verdict.COUNTS


def test_own_work_is_signed_again_once(bench: Bench) -> None:
    """On the disk and in what is handed out; for many who ask at once, by one signature."""
    bench.trusts(NEW)
    bench.laid(OLD, is_own=True)
    entry_store = bench.entry_store()

    async def scene() -> list[Any]:
        return await asyncio.gather(*(entry_store.find(ENTRY.key) for _ in range(8)))

    found = asyncio.run(scene())
    trust = entry_store.revocations.trust
    assert trust is not None
    assert all(judge(RECORD, each.entry.signatures, trust.trust) for each in found)
    assert bench.signer.asked == 1
    assert signers(bench) == {OLD.keyid, NEW.keyid}, "older clients go by the older document"
    assert "signed again" in bench.log.getvalue()


def test_a_key_that_is_refused_signs_nothing_again(bench: Bench) -> None:
    """Its signature would count no more than the one that there is."""
    bench.trusts(THIEF)
    bench.laid(OLD, is_own=True)
    body = asyncio.run(bench.entry_store().body(ENTRY.key, IDENTITY))

    assert body is not None
    assert bench.signer.asked == 0


def test_the_own_build_takes_the_place_of_a_strange_one(bench: Bench) -> None:
    """The service threw its own build away, and handed out what was there before."""
    bench.trusts(NEW)
    bench.laid(THIEF, is_own=False)
    mine = Entry.of(fake_meta(1), {**fake_files(1), "kernel.so": b"right"})
    entry_store = bench.entry_store()
    found = asyncio.run(entry_store.publish(mine.meta, mine.files, signed(mine.meta, NEW)))

    assert found.is_ousted
    kept = bench.store.read(ENTRY.key)
    assert kept is not None
    assert kept.files["kernel.so"] == found.entry.files["kernel.so"] == b"right"
    again = asyncio.run(entry_store.publish(ENTRY.meta, ENTRY.files, signed(ENTRY.meta, NEW)))
    assert again.entry.files["kernel.so"] == b"right", "one that counts stays"


def test_memory_goes_with_what_changes_on_the_disk(bench: Bench) -> None:
    """Signatures that were added were handed out after the next start only."""
    bench.trusts(NEW)
    bench.laid(NEW, is_own=True)
    entry_store = bench.entry_store()

    async def scene() -> None:
        assert await entry_store.body(ENTRY.key, IDENTITY) is not None
        assert await entry_store.drop_changed() == 0
        bench.store.add_signatures(ENTRY.key, signed(ENTRY.meta, OLD))
        assert await entry_store.drop_changed() == 1
        assert len(entry_store.lru) == 0
        assert await entry_store.body(ENTRY.key, IDENTITY) is not None
        bench.store.remove(ENTRY.key)
        assert await entry_store.missing([ENTRY.key]) == [], "memory has it still"
        assert await entry_store.drop_changed() == 1
        assert await entry_store.missing([ENTRY.key]) == [ENTRY.key]
        assert await entry_store.body(ENTRY.key, IDENTITY) is None

    asyncio.run(scene())


class TestBuilt:
    """What is known of own work."""

    def test_it_is_kept_from_run_to_run(self, tmp_path: Path) -> None:
        Built(tmp_path, Log(io.StringIO())).add(RECORD)
        found = Built(tmp_path, Log(io.StringIO()))

        assert found.has(RECORD)
        assert not found.has(RECORD + b" ")

    def test_what_cannot_be_read_is_not_own(self, tmp_path: Path) -> None:
        """It is compiled again then, which is never wrong, and it is told."""
        log = io.StringIO()
        found = Built(tmp_path, Log(log))
        found.add(RECORD)
        (tmp_path / "built.sqlite").write_bytes(b"no database" * 1000)

        assert not found.has(RECORD)
        assert "built not read" in log.getvalue()
        found.add(RECORD)
        assert found.has(RECORD)
        assert (tmp_path / "built.damaged").exists()

    def test_there_is_an_end_to_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The oldest go."""
        monkeypatch.setattr(built_module, "_MOST", 10)
        monkeypatch.setattr(built_module, "_SPARE", 2)
        found = Built(tmp_path, Log(io.StringIO()))
        for number in range(30):
            found.add(b"%d" % number)
        known = [number for number in range(30) if found.has(b"%d" % number)]

        assert known == list(range(known[0], 30))
        assert 10 <= len(known) <= 12
