# SPDX-License-Identifier: Apache-2.0
"""A damaged or forged entry is a miss, whatever is wrong with it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jitgen.cache import Damaged, Entry, Meta, Store
from jitgen.cache.entry import is_key
from jitgen.events import Event, EventKind, events
from tests.unit.store_fakes import document, fake_files, fake_meta, publish, tree

FILES = ("kernel.py", "kernel.so", "meta.json")


def overwrite(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def is_missed(store: Store, entry: Entry) -> bool:
    """Whether `entry` is a miss, was moved away, and can be published anew."""
    missed = store.read(entry.key) is None and not os.path.lexists(entry.directory)
    return missed and store.read(entry.key) is None


class TestDamage:
    """Bits that rot, files that are cut short."""

    def test_every_flipped_bit_is_a_miss(self, store: Store) -> None:
        """200 single bits over all files, ``meta.json`` and its white space included."""
        chance = random.Random(1)
        entry = publish(store, 1)
        good = {name: (entry.directory / name).read_bytes() for name in FILES}
        for _ in range(200):
            name = chance.choice(FILES)
            data = bytearray(good[name])
            bit = chance.randrange(len(data) * 8)
            data[bit // 8] ^= 1 << bit % 8
            overwrite(entry.directory / name, bytes(data))

            assert is_missed(store, entry), f"bit {bit} of {name}"
            restore(entry, good)

        assert store.read(entry.key) == entry

    def test_every_bit_of_the_digest_line_counts(self, store: Store) -> None:
        """The digest of ``meta.json`` does not protect itself by accident."""
        entry = publish(store, 1)
        data = (entry.directory / "meta.json").read_bytes()
        start = data.index(b'"digest"')
        for bit in range(start * 8, (start + 77) * 8):
            bad = bytearray(data)
            bad[bit // 8] ^= 1 << bit % 8
            with pytest.raises(Damaged):
                Meta.decode(bytes(bad))

    def test_every_truncation_is_a_miss(self, store: Store) -> None:
        """50 lengths over all files, zero and all but one byte included."""
        chance = random.Random(2)
        entry = publish(store, 1)
        good = {name: (entry.directory / name).read_bytes() for name in FILES}
        cuts = [(name, length) for name in FILES for length in (0, len(good[name]) - 1)]
        while len(cuts) < 50:
            name = chance.choice(FILES)
            cuts.append((name, chance.randrange(len(good[name]))))
        for name, length in cuts:
            overwrite(entry.directory / name, good[name][:length])

            assert is_missed(store, entry), f"{name} cut to {length}"
            restore(entry, good)

    @pytest.mark.parametrize("name", FILES)
    def test_a_longer_file_is_a_miss(self, store: Store, name: str) -> None:
        """Bytes after the end count as damage too."""
        entry = publish(store, 1)
        overwrite(entry.directory / name, (entry.directory / name).read_bytes() + b"\n")

        assert is_missed(store, entry)

    @pytest.mark.parametrize("name", FILES)
    def test_a_missing_file_is_a_miss(self, store: Store, name: str) -> None:
        """Every file is needed."""
        entry = publish(store, 1)
        (entry.directory / name).unlink()

        assert is_missed(store, entry)

    def test_quarantine_tells_why_and_makes_room(
        self, store: Store, cache_root: Path, told: list[Event]
    ) -> None:
        """The entry lies in quarantine, an event has the reason, and a new one can be published."""
        entry = publish(store, 1)
        overwrite(entry.directory / "kernel.so", b"\x7fELF" + bytes(3000))

        assert store.read(entry.key) is None
        reasons = [(event.key, event.detail) for event in told if event.kind == "quarantine"]
        assert reasons == [(entry.key, "kernel.so does not have its digest")]
        assert len(list((cache_root / "v1" / "quarantine").iterdir())) == 1
        assert publish(store, 1).directory == entry.directory
        assert store.read(entry.key) is not None

    def test_quarantine_spares_an_entry_published_since(self, store: Store) -> None:
        """Who saw the damaged folder does not move the good one that took its place."""
        entry = publish(store, 1)
        entry.directory.rename(entry.directory.with_name("old"))
        publish(store, 1, created="2026-02-03T04:05:06+00:00")

        store.quarantine(entry, "stale news")

        assert store.read(entry.key) is not None


class TestForgery:
    """Entries that were never published by jitgen."""

    def test_renamed_entry(self, store: Store) -> None:
        """An entry under the key of another one is not that other one."""
        first, second = publish(store, 1), publish(store, 2)
        shutil.rmtree(second.directory)
        shutil.copytree(first.directory, second.directory)

        assert is_missed(store, second)
        assert store.read(first.key) == first

    @pytest.mark.parametrize("name", FILES)
    @pytest.mark.parametrize("kind", ["symlink", "folder", "fifo"])
    def test_file_of_another_kind(self, store: Store, kind: str, name: str, tmp_path: Path) -> None:
        """Links are not followed, even to the right bytes; nothing waits for a pipe."""
        entry = publish(store, 1)
        path = entry.directory / name
        copy = tmp_path / name
        path.rename(copy)
        match kind:
            case "symlink":
                path.symlink_to(copy)
            case "folder":
                path.mkdir()
            case _:
                os.mkfifo(path)

        assert is_missed(store, entry)
        assert copy.exists()

    def test_entry_that_is_a_link(self, store: Store, tmp_path: Path) -> None:
        """The folder itself must not be a link either; what it points to stays."""
        entry = publish(store, 1)
        entry.directory.rename(tmp_path / "elsewhere")
        entry.directory.symlink_to(tmp_path / "elsewhere")

        assert is_missed(store, entry)
        assert tree(tmp_path / "elsewhere") == ["kernel.py", "kernel.so", "meta.json"]

    def test_entry_that_is_a_file(self, store: Store) -> None:
        """Something else in the place of an entry is moved away."""
        entry = publish(store, 1)
        shutil.rmtree(entry.directory)
        entry.directory.write_text("x")

        assert is_missed(store, entry)

    @pytest.mark.parametrize(
        "change",
        [
            lambda text: text | {"schema": 2},
            lambda text: text | {"schema": True},
            lambda text: text | {"extra": 1},
            lambda text: {name: value for name, value in text.items() if name != "symbol"},
            lambda text: text | {"library": "../kernel.so"},
            lambda text: text | {"library": "kernel.o"},
            lambda text: text | {"compile_s": "1"},
            lambda text: text | {"host_isa": ["avx2", 1]},
            lambda text: text | {"key_document": {}},
            lambda text: text | {"files": {}},
            lambda text: text | {"files": text["files"] | {"/etc/passwd": record(b"")}},
            lambda text: text | {"files": text["files"] | {"../x": record(b"")}},
            lambda text: text | {"files": text["files"] | {"meta.json": record(b"")}},
            lambda text: text | {"files": text["files"] | {"kernel.o": "x"}},
            lambda text: text | {"files": text["files"] | {"kernel.o": {"sha256": "0" * 64}}},
            lambda text: text | {"files": text["files"] | {"kernel.o": record(b"") | {"mode": 1}}},
            lambda text: text | {"files": {"kernel.so": text["files"]["kernel.so"]}},
        ],
    )
    def test_well_sealed_nonsense(
        self, store: Store, change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> None:
        """A record with a good digest and a bad content is refused for its content."""
        entry = publish(store, 1)
        overwrite(entry.directory / "meta.json", seal(change(entry.meta.to_json())))

        assert is_missed(store, entry)

    @pytest.mark.parametrize(
        "data", [b"", b"null", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"digest": 1}']
    )
    def test_no_record_at_all(self, store: Store, data: bytes) -> None:
        """Whatever lies in ``meta.json`` raises nothing else."""
        entry = publish(store, 1)
        overwrite(entry.directory / "meta.json", data)

        assert is_missed(store, entry)


class TestMeta:
    """The record itself."""

    def test_round_trip(self) -> None:
        """Encoding and decoding are inverses, and so are the JSON functions."""
        files = fake_files(1)
        meta = fake_meta(1).with_files(files)

        assert Meta.decode(meta.encode()) == meta
        assert Meta.from_json(meta.to_json()) == meta
        assert meta.size_bytes == sum(map(len, files.values()))

    def test_a_digest_in_the_key_document_is_no_trap(self, store: Store) -> None:
        """A field that looks like the record's own digest is just a field."""
        odd = document(1, digest="0" * 64)

        entry = publish(store, 1, key_document=odd)

        assert store.read(entry.key) == entry

    @pytest.mark.parametrize("key", [None, 1, b"a" * 64, "a" * 64 + "\n", "g" * 64, "a" * 63 + "/"])
    def test_only_digests_are_keys(self, key: object) -> None:
        """Nothing that could be a path is a key."""
        assert not is_key(key)
        assert is_key("0123456789abcdef" * 4)

    @pytest.mark.parametrize(
        "key", ["", "..", "../" * 21 + "x", "A" * 64, "a" * 63 + "\n", "a" * 65]
    )
    def test_no_method_takes_a_path_for_a_key(self, store: Store, key: str, tmp_path: Path) -> None:
        """Every method that makes a path of a key checks it first."""
        publish(store, 1)
        before = tree(tmp_path)
        for method in (store.read, store.remove, store.pin, store.unpin, store.is_pinned):
            with pytest.raises(ValueError, match="is no key"):
                method(key)
        with pytest.raises(ValueError, match="is no key"):
            store.lock(key, 0.1)
        store.index.remember_failure(key, "name", "reason", 60)
        store.index.forget_failure(key)
        store.index.record_use(key)

        assert store.index.failure(key) is None
        assert set(tree(tmp_path)) - set(before) <= {"cache/v1/journal"}


def restore(entry: Entry, good: dict[str, bytes]) -> None:
    """Put the good files back."""
    entry.directory.mkdir(exist_ok=True)
    for name, data in good.items():
        overwrite(entry.directory / name, data)


def record(data: bytes) -> dict[str, Any]:
    """Return the record of a file with content `data`."""
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def seal(values: dict[str, Any]) -> bytes:
    """Return a ``meta.json`` of any values, with the digest that it should have."""
    blank = json.dumps(values | {"digest": "0" * 64}, indent=2, sort_keys=True).encode() + b"\n"
    digest = hashlib.sha256(blank).hexdigest().encode()
    return blank.replace(b'"digest": "' + b"0" * 64, b'"digest": "' + digest)


def test_damage_is_counted(store: Store) -> None:
    """The counters of the process include what was quarantined."""
    entry = publish(store, 1)
    (entry.directory / "kernel.so").unlink()
    before = events.counts().get(str(EventKind.QUARANTINE), 0)

    store.read(entry.key)

    assert events.counts()[str(EventKind.QUARANTINE)] == before + 1
