# SPDX-License-Identifier: Apache-2.0
"""From one root through a bucket to another: what arrives, and what does not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jitgen.cache import Entry
from jitgen.events import EventKind
from jitgen.remote import layout, wire
from jitgen.remote.files import Files
from jitgen.remote.objects import Objects
from jitgen.remote.outcomes import LocalFailure, Miss, NotFound, Unreachable
from jitgen.settings import settings
from jitgen.signing import dsse

from .remote_stand import (
    KEY,
    KEY_2,
    THIEF,
    Stand,
    entry_of,
    forget,
    is_same,
    signatures_of,
    told,
    trusting,
)


def test_pushed_entry_arrives_with_its_signatures(stand: Stand) -> None:
    entry = entry_of(1, KEY)
    assert stand.push(entry)
    assert not stand.push(entry)

    with told(EventKind.FETCH) as seen:
        found = stand.fetch(entry)
    assert is_same(found, entry)
    assert is_same(stand.store.read(entry.key), entry)
    assert [(event.tier, event.detail) for event in seen] == [("remote", "")]


def test_contents_come_before_the_key_and_nothing_is_overwritten(stand: Stand) -> None:
    entry = entry_of(1, KEY)
    order = []

    class Recorder:
        def create(self, path: str, data: bytes) -> bool:
            order.append(path)
            return True

        def replace(self, path: str, data: bytes) -> bool:
            raise AssertionError("nothing is overwritten")

        def read(self, path: str, max_bytes: int) -> bytes:
            raise AssertionError("nothing is read")

    layout.push(Recorder(), entry)
    assert [path.split("/")[1] for path in order] == ["cas", "cas", "ac"]


def test_what_is_not_there_is_asked_once_in_half_a_minute(stand: Stand) -> None:
    stand.push(entry_of(1, KEY))
    entry = entry_of(2, KEY)
    with told(EventKind.FETCH) as seen:
        first, second = stand.fetch(entry), stand.fetch(entry)
    assert first == second
    assert isinstance(first, Miss)
    assert first.is_not_found
    assert len(seen) == 1

    stand.push(entry)
    forget()
    assert is_same(stand.fetch(entry), entry)


def test_record_without_its_contents_is_absent(stand: Stand) -> None:
    entry = entry_of(1, KEY)
    stand.push(entry)
    (stand.bucket / layout.content_path(entry.meta.files["kernel.so"]["sha256"])).unlink()

    found = stand.fetch(entry)
    assert isinstance(found, Miss)
    assert found.is_not_found
    assert "its kernel.so is not there" in found.reason


def test_unsigned_or_signed_by_a_stranger_is_refused(stand: Stand) -> None:
    for number, keys in enumerate(((), (THIEF,), (KEY_2,))):
        entry = entry_of(number, *keys)
        stand.push(entry)

        with told(EventKind.REJECT) as seen:
            found = stand.fetch(entry)
        assert isinstance(found, Miss)
        assert seen[0].key == entry.key
        assert stand.store.read(entry.key) is None


def test_verify_off_takes_what_anybody_put_there(stand: Stand) -> None:
    entry = entry_of(1)
    stand.push(entry)

    with settings.scope(verify="off"):
        assert is_same(stand.fetch(entry), entry)


def test_forked_child_is_told_and_does_not_wait(stand: Stand) -> None:
    """That holds for obstore only: a forked process can read a folder."""
    entry = entry_of(1, KEY)
    stand.push(entry)
    child = os.fork()
    if child == 0:
        try:
            Objects(stand.url).read("v1", 1)
        except LocalFailure as error:
            os._exit(0 if "forked" in str(error) and is_same(stand.fetch(entry), entry) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert is_same(stand.fetch(entry), entry)


@pytest.mark.parametrize(
    ("path", "trouble", "reason"),
    [
        ("nothing", NotFound, "not there"),
        ("folder", Unreachable, "no regular file"),
        ("pipe", Unreachable, "no regular file"),
        ("large", Unreachable, "more than the 4 bytes"),
        ("large/below", Unreachable, "Not a directory"),
    ],
)
def test_folder_gives_files_and_nothing_else(
    tmp_path: Path, path: str, trouble: type[Exception], reason: str
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"12345")
    (tmp_path / "file").write_bytes(b"1234")
    folder = Files(tmp_path.as_uri())

    assert folder.read("file", 4) == b"1234"
    with pytest.raises(trouble, match=reason):
        folder.read(path, 4)


class TestPoison:
    """A writer of the bucket replaces one object by another."""

    def _record(self, stand: Stand, entry: Entry) -> Path:
        return stand.bucket / layout.record_path(entry.key)

    def _write(self, path: Path, **document: str) -> None:
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document))

    def _content(self, stand: Stand, entry: Entry) -> Path:
        return stand.bucket / layout.content_path(entry.meta.files["kernel.so"]["sha256"])

    def _meta(self, stand: Stand, good: Entry, other: Entry) -> None:
        record = json.loads(self._record(stand, other).read_text())
        self._write(self._record(stand, good), **record)

    def _blob(self, stand: Stand, good: Entry, other: Entry) -> None:
        path = self._content(stand, good)
        path.unlink()
        path.write_bytes(self._content(stand, other).read_bytes())

    def _envelope(self, stand: Stand, good: Entry, other: Entry) -> None:
        self._write(
            self._record(stand, good),
            meta=good.meta.encode().decode(),
            signatures=other.signatures.decode(),
        )

    def _signer(self, stand: Stand, good: Entry, other: Entry) -> None:
        self._write(
            self._record(stand, good),
            meta=good.meta.encode().decode(),
            signatures=signatures_of(good.meta, THIEF).decode(),
        )

    def _rewritten(self, stand: Stand, good: Entry, **changes: Any) -> None:
        """An evil library under the same key, its digests right, with the old envelope."""
        evil = Entry.of(replace(good.meta, **changes), {**good.files, "kernel.so": b"\x7fELF evil"})
        stand.push(replace(evil, signatures=good.signatures), replaces=True)

    def _library(self, stand: Stand, good: Entry, other: Entry) -> None:
        self._rewritten(stand, good)

    def _time(self, stand: Stand, good: Entry, other: Entry) -> None:
        meta = replace(good.meta, created="2026-01-02T03:04:06+00:00")
        stand.push(Entry.of(meta, good.files, good.signatures), replaces=True)

    def _version(self, stand: Stand, good: Entry, other: Entry) -> None:
        meta = replace(good.meta, jitgen="9.9.9")
        stand.push(Entry.of(meta, good.files, good.signatures), replaces=True)

    def _symbol(self, stand: Stand, good: Entry, other: Entry) -> None:
        stand.push(
            Entry.of(replace(good.meta, symbol="x"), good.files, good.signatures), replaces=True
        )

    def _garbage(self, stand: Stand, good: Entry, other: Entry) -> None:
        path = self._content(stand, good)
        path.unlink()
        path.write_bytes(b"garbage")

    def _bomb(self, stand: Stand, good: Entry, other: Entry) -> None:
        path = self._content(stand, good)
        path.unlink()
        path.write_bytes(wire.compress(bytes(2**24)))

    @pytest.mark.parametrize(
        "swap",
        [
            "_meta",
            "_blob",
            "_envelope",
            "_signer",
            "_library",
            "_time",
            "_version",
            "_symbol",
            "_garbage",
            "_bomb",
        ],
    )
    def test_swapped_part_is_refused(self, stand: Stand, swap: str) -> None:
        good, other = entry_of(1, KEY), entry_of(2, KEY)
        stand.push(good)
        stand.push(other)
        spoil: Callable[[Stand, Entry, Entry], None] = getattr(self, swap)
        spoil(stand, good, other)

        with told(EventKind.REJECT) as seen:
            found = stand.fetch(good)
        assert isinstance(found, Miss)
        assert len(seen) == 1
        assert stand.store.read(good.key) is None
        assert is_same(stand.fetch(other), other)


def test_signatures_are_added_to_an_entry(stand: Stand) -> None:
    entry = entry_of(1, KEY)
    stand.store.publish(entry.meta, entry.files, entry.signatures)
    assert stand.store.add_signatures(entry.key, signatures_of(entry.meta, KEY_2))
    assert not stand.store.add_signatures("0" * 64, b"")

    with settings.scope(verify="always"):
        stand.trust(trusting(KEY_2, version=2))
        found = stand.store.read(entry.key)
    assert found is not None
    assert len(dsse.decode(found.signatures)) == 2
