# SPDX-License-Identifier: Apache-2.0
"""Trust documents that change, expire, come back or are forged; and JITGEN_VERIFY=always."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from jitgen.cache import Entry
from jitgen.errors import SettingError
from jitgen.events import EventKind
from jitgen.remote import layout
from jitgen.remote.objects import Objects
from jitgen.remote.outcomes import Miss
from jitgen.settings import settings
from jitgen.signing import times
from jitgen.signing.trust import opened

from .remote_stand import (
    DAY,
    KEY,
    KEY_2,
    ROOT,
    THIEF,
    Stand,
    entry_of,
    forget,
    is_same,
    told,
    trusting,
)
from .store_fakes import fake_files, fake_meta


def test_refused_signature_is_judged_anew_when_the_trust_document_changes(stand: Stand) -> None:
    entry = entry_of(1, KEY_2)
    stand.push(entry)
    assert isinstance(stand.fetch(entry), Miss)
    assert isinstance(stand.fetch(entry), Miss)

    stand.trust(trusting(KEY, KEY_2, version=2))
    assert is_same(stand.fetch(entry), entry)


def test_without_a_trust_document_it_is_said_what_to_do(stand: Stand) -> None:
    with settings.scope(trust=stand.folder / "none.json"):
        found = stand.fetch(entry_of(1, KEY))
        assert isinstance(found, Miss)
    del settings.trust
    with pytest.raises(SettingError, match="name a trust document"):
        stand.fetch(entry_of(2, KEY))


def test_expired_trust_accepts_nothing(stand: Stand) -> None:
    entry = entry_of(1, KEY)
    stand.push(entry)
    stand.trust(trusting(KEY, version=2, expires=times.now().replace(microsecond=0) - DAY))

    found = stand.fetch(entry)
    assert isinstance(found, Miss)
    assert "trust document 2 expired" in found.reason


def test_old_trust_file_does_not_come_back(stand: Stand) -> None:
    """A stolen key was revoked; the thief puts the old trust document back."""
    entry, old = entry_of(1, KEY), trusting(KEY)
    stand.push(entry)
    stand.trust(trusting(KEY, version=2, revoked_keys={KEY.keyid: "stolen"}))
    assert isinstance(stand.fetch(entry), Miss)

    stand.trust(old)
    forget()
    found = stand.fetch(entry)
    assert isinstance(found, Miss)
    assert "is revoked: stolen" in found.reason


class TestLaterTrust:
    """A revocation reaches a host through the place that it fetches from."""

    def _put(self, stand: Stand, data: bytes) -> None:
        Objects(stand.url, is_patient=True).replace(layout.TRUST_PATH, data)
        stand.look_again()

    def test_counts_from_the_next_fetch_on(self, stand: Stand) -> None:
        entry = entry_of(1, KEY)
        stand.push(entry)
        self._put(stand, trusting(KEY, version=2, revoked_keys={KEY.keyid: "stolen"}))

        found = stand.fetch(entry)
        assert isinstance(found, Miss)
        assert "is revoked: stolen" in found.reason
        assert stand.store.trusted.current().trust.version == 2

    def test_is_looked_for_once_in_ten_minutes_of_a_host(self, stand: Stand) -> None:
        entries = [entry_of(number, KEY) for number in (1, 2)]
        for entry in entries:
            stand.push(entry)
        self._put(stand, trusting(KEY, version=2))
        assert is_same(stand.fetch(entries[0]), entries[0])
        Objects(stand.url, is_patient=True).replace(layout.TRUST_PATH, trusting(version=3))
        forget()  # another process of this host
        assert is_same(stand.fetch(entries[1]), entries[1])

    @pytest.mark.parametrize("version", [1, 3])
    def test_of_another_root_or_an_earlier_one_changes_nothing(
        self, stand: Stand, version: int
    ) -> None:
        entry = entry_of(1, KEY)
        stand.push(entry)
        stand.trust(trusting(KEY, version=2))
        forged = opened(trusting(version=version)).trust
        roots = {"roots": (THIEF.public,)} if version == 3 else {}
        self._put(stand, replace(forged, **roots).sealed(THIEF if roots else ROOT))

        assert is_same(stand.fetch(entry), entry)
        assert stand.store.trusted.current().trust.version == 2

    @pytest.mark.parametrize("data", [b"", b"{}", b"garbage"])
    def test_garbage_changes_nothing(self, stand: Stand, data: bytes) -> None:
        entry = entry_of(1, KEY)
        stand.push(entry)
        self._put(stand, data)

        assert is_same(stand.fetch(entry), entry)


def test_trust_file_that_others_can_write_counts_for_nothing(stand: Stand) -> None:
    entry = entry_of(1, KEY)
    stand.push(entry)
    (stand.folder / "trust.json").chmod(0o666)

    found = stand.fetch(entry)
    assert isinstance(found, Miss)
    assert "can be written by other users" in found.reason

    (stand.folder / "trust.json").chmod(0o644)
    assert is_same(stand.fetch(entry), entry)


class TestAlways:
    """With JITGEN_VERIFY=always nothing unsigned is loaded, though others can write to it."""

    @pytest.fixture
    def open_root(self, stand: Stand) -> Iterator[Stand]:
        path = stand.store.root
        path.chmod(0o777)
        with settings.scope(verify="always"):
            yield stand

    def test_root_that_others_can_write_serves_what_is_signed(self, open_root: Stand) -> None:
        entry = entry_of(1, KEY)
        open_root.push(entry)

        assert is_same(open_root.fetch(entry), entry)
        assert is_same(open_root.store.read(entry.key), entry)
        assert open_root.store.index.reason  # nothing of others' goes through a database

    def test_unsigned_entry_in_the_root_is_a_miss_and_gives_way(self, open_root: Stand) -> None:
        bare, good = entry_of(1), entry_of(1, KEY)
        with settings.scope(verify="off", trust_shared=open_root.folder):
            assert open_root.store.publish(bare.meta, bare.files).directory
        with told(EventKind.REJECT) as seen:
            assert open_root.store.read(bare.key) is None
        assert "it is not signed" in seen[0].detail

        open_root.push(good)
        assert is_same(open_root.fetch(good), good)
        assert is_same(open_root.store.read(good.key), good)

    def test_changed_entry_is_not_loaded(self, open_root: Stand) -> None:
        """A library of a stranger under the key, with digests that are right."""
        good = entry_of(1, KEY)
        evil = Entry.of(good.meta, {**good.files, "kernel.so": b"\x7fELF evil"}, good.signatures)
        with settings.scope(verify="off", trust_shared=open_root.folder):
            open_root.store.publish(evil.meta, evil.files, evil.signatures)
            assert open_root.store.read(good.key) is not None

        assert open_root.store.read(good.key) is None

    def test_what_is_compiled_here_stays_with_its_process(self, open_root: Stand) -> None:
        found = open_root.store.publish(fake_meta(1), fake_files(1))

        assert "it is not signed" in found.why_private
        assert open_root.store.read(found.key) is None

    def test_revoked_entry_is_not_loaded_any_more(self, open_root: Stand) -> None:
        entry = entry_of(1, KEY)
        open_root.push(entry)
        assert is_same(open_root.fetch(entry), entry)

        open_root.trust(trusting(KEY, version=2, revoked={entry.key: "it is wrong"}))
        assert open_root.store.read(entry.key) is None

    def test_base_is_held_to_it_too(self, open_root: Stand) -> None:
        entry = entry_of(1)
        with settings.scope(verify="off"):
            open_root.host("base").publish(entry.meta, entry.files)
        with settings.scope(base=(open_root.folder / "base",)):
            upper = open_root.host("upper")
            assert upper.read(entry.key) is None
            with settings.scope(verify="remote"):
                assert is_same(upper.read(entry.key), entry)
