# SPDX-License-Identifier: Apache-2.0
"""
What cannot be read is not taken for what is not there, wherever more than time depends on it.

`test_trust_memory` is about trust documents, `test_store_bases` about what is hidden of roots only
read; the rest is here, and a list of every place that passes over an error of the disk.
"""

from __future__ import annotations

import ast
import asyncio
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import jitgen
from jitgen.bundle.export import export
from jitgen.bundle.image import BundleError
from jitgen.cache import Entry, Store
from jitgen.cache.folder import Folder
from jitgen.cache.root import Root
from jitgen.errors import CacheError
from jitgen.plans import Plan
from jitgen.remote import breaker
from jitgen.remote.breaker import Breaker, State
from jitgen.remote.outcomes import Unreachable
from jitgen.server.entry_store import ZSTD, EntryStore
from jitgen.server.revocations import Revocations
from jitgen.server.settings import Storage
from jitgen.settings import settings
from jitgen.signing import dsse
from tests.cli.conftest import Jitgen
from tests.cli.conftest import jitgen as command

from .bundle_fakes import CPU, plan, store
from .remote_stand import KEY, KEY_2, Stand, entry_of, signatures_of
from .store_fakes import age, folder_of, publish
from .unreadable import PASSED_OVER, passes_over

__all__ = ["command", "plan", "store"]

PRODUCT = Path(jitgen.__file__).parent
WATCHED = (
    *(f"{name}/*.py" for name in ("cache", "signing", "remote", "server", "bundle", "fleet")),
    *("runtime/*.py", "plans/*.py", "ownership/*.py", "support/documents.py"),
    *("cli/trust*.py", "cli/cache_remote.py"),
)
"""Where something is remembered, or decided, that security or a promise rests on."""

ERRORS = (errno.EIO, errno.EACCES, errno.EMFILE, errno.ESTALE)


@contextmanager
def failing(name: str, number: int) -> Iterator[None]:
    """Let the file or folder `name` of a cache be unreadable in the with block."""
    real_open = os.open

    def open_(path: Any, *arguments: Any, **options: Any) -> int:
        if path == name and "dir_fd" in options:
            raise OSError(number, os.strerror(number), name)
        return real_open(path, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", open_)
        yield


@pytest.fixture
def entry(stand: Stand) -> Entry:
    """An entry of the root that two keys have signed."""
    made = entry_of(1, KEY)
    kept = stand.store.publish(made.meta, made.files, made.signatures)
    stand.store.add_signatures(kept.key, signatures_of(kept.meta, KEY_2))
    return kept


@pytest.mark.parametrize("number", ERRORS)
class TestSignatures:
    """An entry whose signatures cannot be read is not an unsigned one."""

    def test_none_is_lost_when_one_is_added(self, stand: Stand, entry: Entry, number: int) -> None:
        """One passing error, and all that were there were replaced by the new one."""
        path = folder_of(entry) / "signatures.json"
        before = path.read_bytes()
        with failing("signatures.json", number), pytest.raises(CacheError, match="cannot be read"):
            stand.store.add_signatures(entry.key, signatures_of(entry.meta, KEY))

        assert path.read_bytes() == before
        assert len(dsse.decode(before)) == 2

    def test_it_loads_from_the_own_root_and_says_so(
        self, stand: Stand, entry: Entry, number: int
    ) -> None:
        with failing("signatures.json", number):
            found = stand.store.read(entry.key)
            assert found is not None
            assert found.unread
            with settings.scope(verify="always"):
                assert stand.store.read(entry.key) is None

    def test_a_service_does_not_keep_it_in_memory_unsigned(
        self, stand: Stand, entry: Entry, number: int
    ) -> None:
        """It went out without signatures, and was refused by every client, until a restart."""
        entry_store = EntryStore(stand.store, Storage(), Revocations(stand.folder, None))
        with failing("signatures.json", number):
            assert asyncio.run(entry_store.body(entry.key, ZSTD)) is None
        body = asyncio.run(entry_store.body(entry.key, "identity"))
        assert body is not None
        assert b"signatures.json" in body.data

    def test_commands_tell(
        self, command: Jitgen, stand: Stand, entry: Entry, number: int, tmp_path: Path
    ) -> None:
        """`push --replace` put an unsigned one in the place of a signed one."""
        with settings.scope(cache_dir=stand.store.root):
            assert command(f"cache push --to {stand.url}").code == 0
            (record,) = (stand.bucket / "v1" / "ac").rglob("*.json")
            before = record.read_bytes()
            with failing("signatures.json", number):
                done = command(f"cache push --to {stand.url} --replace --json")
                verified = command("cache verify --signatures --json")

        assert "who signed it cannot be read" in done.document["failed"][entry.key]
        assert "who signed it cannot be read" in verified.document["refused"][entry.key]
        assert record.read_bytes() == before


def test_a_bundle_is_not_made_without_signatures_that_are_there(
    plan: Plan, store: Store, tmp_path: Path
) -> None:
    with failing("signatures.json", errno.EIO), pytest.raises(BundleError, match="who signed"):
        export([plan], [CPU], tmp_path / "b.tar", store)
    assert not (tmp_path / "b.tar").exists()


class TestPins:
    @pytest.fixture
    def entries(self, cache_root: Path) -> list[Entry]:
        """Three entries that have not been used for long; the first is pinned."""
        found = [publish(Store.open(), number) for number in (1, 2, 3)]
        for each in found:
            age(each, 7200)
        Store.open().pin(found[0].key)
        return found

    @pytest.mark.parametrize("number", ERRORS)
    def test_nothing_is_pruned_where_they_cannot_be_read(
        self, entries: list[Entry], number: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        """They counted as none, and pinned entries were removed."""
        with failing("pins", number):
            assert Store.open().prune(1).removed == ()
        assert "what is pinned cannot be read" in caplog.text
        assert [Store.open().read(each.key) is not None for each in entries] == [True] * 3

    def test_without_any_everything_may_go(self, entries: list[Entry], cache_root: Path) -> None:
        Store.open().unpin(entries[0].key)
        (cache_root / "v1" / "pins").rmdir()

        assert len(Store.open().prune(1).removed) == 3


class TestBreaker:
    URL = "https://kernels.example"

    @pytest.fixture
    def failed(self, stand: Stand) -> Breaker:
        """The breaker of a place that has just failed."""
        found = Breaker(stand.store, self.URL)
        with pytest.raises(Unreachable), found.attempt():
            raise Unreachable("no answer")
        return found

    def test_what_is_torn_is_not_all_is_well(self, stand: Stand, failed: Breaker) -> None:
        """The process knew better, and asked the place for every kernel again."""
        (path,) = (stand.store.root / "v1" / "breakers").iterdir()
        path.write_bytes(path.read_bytes()[:-9])

        state = failed.state()
        assert state is not None
        assert state.left_s > 0

    def test_a_long_reason_does_not_undo_it(self, stand: Stand) -> None:
        """It was cut off in the middle, so that what was written down could not be read."""
        found = Breaker(stand.store, self.URL)
        for text in ("x" * 10_000, "\x1b" * 5000, "\U0001f600" * 5000, '"\\' * 5000):
            with pytest.raises(Unreachable), found.attempt():
                raise Unreachable(text)
            breaker._private.clear()
            state: State | None = found.state()
            assert state is not None
            assert state.reason
            found.reset()


class TestBuilders:
    OURS, THEIRS = {"compiler": "ab" * 32}, {"compiler": "cd" * 32}

    def test_a_record_that_cannot_be_read_has_no_owner(self, cache_root: Path) -> None:
        """One EIO, and a patched compiler became the one whose kernels are kept."""
        assert publish(Store.open(), 1, builder=self.OURS).directory
        (record,) = (cache_root / "v1" / "builders").iterdir()
        real = Folder.read

        def read(folder: Folder, name: str, *arguments: Any, **options: Any) -> bytes:
            if name == record.name:
                raise OSError(errno.EIO, "Input/output error")
            return real(folder, name, *arguments, **options)

        before = record.read_bytes()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Folder, "read", read)
            assert "Input/output error" in publish(Store.open(), 2, builder=self.THEIRS).why_private
        assert record.read_bytes() == before
        assert "the compiler here" in publish(Store.open(), 2, builder=self.THEIRS).why_private


def test_a_root_that_cannot_be_looked_at_may_be_open_to_others(
    cache_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One passing error, and a database that others can write was read."""
    root = Root(cache_root)
    assert not root.is_open()
    monkeypatch.setattr(Root, "open", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "")))

    assert root.is_open()


def test_every_place_that_passes_over_an_error_says_why_it_may() -> None:
    """A new place is entered in the list, with what it means there that nothing can be read."""
    found = {
        f"{path.relative_to(PRODUCT)}:{place}"
        for pattern in WATCHED
        for path in sorted(PRODUCT.glob(pattern))
        for place in passes_over(ast.parse(path.read_text(encoding="utf-8")))
    }

    assert found - PASSED_OVER.keys() == set()
    assert PASSED_OVER.keys() - found == set()
