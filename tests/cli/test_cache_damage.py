# SPDX-License-Identifier: Apache-2.0
"""`jitgen cache explain` on what is damaged, and `jitgen cache quarantine`."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from jitgen.cache import Entry, Store
from jitgen.cache.quarantine import UNLOADABLE
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.runtime import spec
from tests.cli.conftest import Jitgen
from tests.unit.store_fakes import fake_files, fake_meta, folder_of, publish

CONFIG = GroupedGemmConfig(layout="ragged", tile=Tile(m=128, n=128, k=128))
NAME = CONFIG.name(Arch.SM_90A)
CHANGED = "kernel.so does not have its digest"


@pytest.fixture
def entry(cache_root: Path) -> Entry:
    """The entry that serves `CONFIG`, as the installed toolchain would look for it."""
    meta = fake_meta(
        1,
        key_document=spec.document(CONFIG, Arch.SM_90A),
        name=NAME,
        host_isa=("x86-64",),
        builder={"linker": "ab"},
    )
    return Store.open(cache_root).publish(meta, fake_files(1))


def damage(entry: Entry, name: str = "kernel.so") -> None:
    path = folder_of(entry) / name
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.chmod(0o600)
    path.write_bytes(content)


class TestExplain:
    def test_a_damaged_entry(self, jitgen: Jitgen, entry: Entry) -> None:
        """It used to say that no entry has this key, the very command that had set it aside."""
        assert jitgen("cache", "explain", NAME, "--json").document["damaged"] == []
        damage(entry)
        first, again = jitgen("cache", "explain", NAME), jitgen("cache", "explain", NAME)

        for done in (first, again):
            assert done.code == 0
            assert f"miss  the entry of this key was set aside: {CHANGED}" in done.out
            assert "quarantine/" in done.out
        document = jitgen("cache", "explain", entry.key[:10], "--json").document
        assert (document["state"], document["name"]) == ("miss", NAME)
        assert [item["reason"] for item in document["damaged"]] == [CHANGED]

    def test_an_entry_without_a_record(self, jitgen: Jitgen, entry: Entry) -> None:
        """Nothing tells which kernel it was; the reason is told nevertheless."""
        damage(entry, "meta.json")
        Store.open().verify()
        done = jitgen("cache", "explain", entry.key)

        assert done.code == 0
        assert "meta.json" in done.out
        document = jitgen("cache", "explain", entry.key, "--json").document
        assert document["key"] == entry.key
        assert "meta.json" in document["reason"]
        shown = jitgen("show", entry.key)
        assert shown.code == 2
        assert "nothing tells which kernel it was" in shown.err

    def test_where_it_cannot_be_moved(
        self, jitgen: Jitgen, entry: Entry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In a cache that is only read it stays in its place, and is explained there."""
        monkeypatch.setenv("JITGEN_CACHE", "ro")
        damage(entry)
        document = jitgen("cache", "explain", NAME, "--json").document

        assert document["reason"] == f"the entry of this key cannot serve: {CHANGED}"
        assert document["damaged"][0]["path"] == str(folder_of(entry))
        assert document["damaged"][0]["set_aside"] is None

    def test_in_a_root_that_is_only_read(
        self, jitgen: Jitgen, entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A damaged entry of an image is hidden; a good one that was hidden is told apart."""
        monkeypatch.setenv("JITGEN_BASE", str(tmp_path / "cache"))
        monkeypatch.setenv("JITGEN_CACHE_DIR", str(tmp_path / "upper"))
        assert jitgen("cache", "rm", entry.key).code == 0
        hidden = jitgen("cache", "explain", NAME, "--json").document["damaged"]
        damage(entry)
        changed = jitgen("cache", "explain", NAME, "--json").document["damaged"]

        assert ["it is hidden" in item["reason"] for item in hidden] == [True]
        assert [item["reason"] for item in changed] == [CHANGED]

    def test_a_good_one_published_since(self, jitgen: Jitgen, entry: Entry) -> None:
        """What lies in quarantine says nothing about what took its place."""
        damage(entry)
        store = Store.open()
        assert store.read(entry.key) is None
        store.publish(entry.meta, fake_files(1))
        document = jitgen("cache", "explain", NAME, "--json").document

        assert document["state"] == "hit"
        assert document["damaged"] == []


class TestQuarantine:
    def test_nothing(self, jitgen: Jitgen) -> None:
        done = jitgen("cache", "quarantine")

        assert (done.code, done.out) == (0, "")
        assert "0 items" in done.err

    def test_what_and_why(self, jitgen: Jitgen, entry: Entry, cache_root: Path) -> None:
        """Damaged bytes, a good entry that could not be loaded, and what is no entry at all."""
        store = Store.open()
        other = publish(store, 2)
        damage(entry)
        assert store.read(entry.key) is None
        store.quarantine(other, "no symbol")
        third = publish(store, 3)
        folder_of(third).parent.chmod(0o777)
        assert store.read(third.key) is None
        found = {
            item["key"]: item
            for item in jitgen("cache", "quarantine", "--json").document["damaged"]
        }

        assert found[entry.key]["reason"] == CHANGED
        assert found[entry.key]["name"] == NAME
        assert found[entry.key]["disk_bytes"] > 0
        assert found[other.key]["reason"] == UNLOADABLE
        assert found[""]["reason"] == f"it stood where {third.key[:2]} should be"
        assert all(item["set_aside"].endswith("+00:00") for item in found.values())
        assert jitgen("cache", "stats", "--json").document["quarantined"] == 3
        table = jitgen("cache", "quarantine")
        assert CHANGED in table.out
        assert "3 items in" in table.err
        assert len(list((cache_root / "v1" / "quarantine").iterdir())) == 3

    def test_empty(self, jitgen: Jitgen, entry: Entry, cache_root: Path) -> None:
        damage(entry)
        assert Store.open().read(entry.key) is None
        document = jitgen("cache", "quarantine", "--empty", "--json").document

        assert [item["key"] for item in document["damaged"]] == [entry.key]
        assert (document["removed"], document["left"]) == (1, 0)
        assert list((cache_root / "v1" / "quarantine").iterdir()) == []
        assert jitgen("cache", "explain", NAME, "--json").document["damaged"] == []

    def test_empty_where_nothing_may_be_changed(
        self, jitgen: Jitgen, entry: Entry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("JITGEN_CACHE", "ro")

        assert jitgen("cache", "quarantine").code == 0
        refused = jitgen("cache", "quarantine", "--empty")
        assert refused.code == 1
        assert "JITGEN_CACHE=ro" in refused.err

    @pytest.mark.parametrize("name", ["link", "file", "x" * 64 + "-0123abcd", "no entry-0123abcd"])
    def test_whatever_lies_there(self, jitgen: Jitgen, cache_root: Path, name: str) -> None:
        """It is listed and removed, and nothing is followed or decoded."""
        folder = cache_root / "v1" / "quarantine"
        folder.mkdir(parents=True, mode=0o700)
        cache_root.chmod(0o700)
        (cache_root / "v1").chmod(0o700)
        if name == "link":
            (folder / f"{'a' * 64}-0123abcd").symlink_to("/etc")
        else:
            (folder / name).write_text("\x1b[31m")
        document = jitgen("cache", "quarantine", "--empty", "--json").document

        assert (len(document["damaged"]), document["left"]) == (1, 0)
        assert Path("/etc").is_dir()
        assert "\x1b" not in json.dumps(document)


class TestDiskThatRefuses:
    """What cannot be changed says why: it used to say only that it was not."""

    @pytest.fixture(autouse=True)
    def read_only(self, entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        for name in ("rename", "unlink", "link", "mkdir"):
            monkeypatch.setattr(os, name, refuse)
        monkeypatch.setattr("jitgen.cache.folder.Folder.write", refuse)

    @pytest.mark.parametrize("words", ["rm {key}", "clear --yes", "pin {key}"])
    def test_it(self, jitgen: Jitgen, entry: Entry, words: str) -> None:
        done = jitgen("cache", words.format(key=entry.key))

        assert done.code == 1
        assert "Read-only file system (EROFS)" in done.err

    def test_adopt(self, jitgen: Jitgen, entry: Entry, cache_root: Path) -> None:
        """It used to say that it had removed nothing, and that all was well."""
        assert list((cache_root / "v1" / "builders").iterdir())
        done = jitgen("cache", "adopt")

        assert done.code == 1
        assert "1 record" in done.err
        assert "Read-only file system (EROFS)" in done.err
