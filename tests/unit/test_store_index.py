# SPDX-License-Identifier: Apache-2.0
"""The index: uses, failures, forks, and the journal before it."""

from __future__ import annotations

import gc
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jitgen.cache import Store
from jitgen.cache.index import MOST_JOURNAL_BYTES, Index, Journal, NullIndex
from jitgen.cache.root import Root
from tests.unit.store_fakes import fake_meta, publish, tree, used

KEY = fake_meta(1).key
SQLITE = "cache.db"
YEAR = 365 * 86400.0


@pytest.fixture
def store(store: Store) -> Store:
    """A store that can be written, with one entry, two uses of it and one failure."""
    return used(store)


@pytest.fixture
def folder(cache_root: Path) -> Path:
    """The folder of the index."""
    return cache_root / "v1" / "index"


class TestUses:
    """How often and when."""

    def test_counts_over_stores(self, store: Store) -> None:
        """Uses that other processes recorded are taken over."""
        Store.open().index.record_use(KEY)

        hits, last_use = store.index.uses(KEY)

        assert hits == 3
        assert abs(time.time() - last_use) < 60
        assert Store.open().index.uses(KEY)[0] == 3

    def test_unknown_key(self, store: Store) -> None:
        """Never used is zero, at no time."""
        assert store.index.uses("cd" * 32) == (0, 0.0)

    def test_removed_entries_are_forgotten(self, store: Store) -> None:
        """An entry that is removed and comes again starts at zero."""
        store.remove(KEY)
        publish(store, 1)

        assert store.index.uses(KEY)[0] == 0

    def test_totals(self, store: Store) -> None:
        """The index can count by itself."""
        assert store.index.stats() == {"entries": 1, "hits": 2, "failures": 1}

    def test_recording_opens_no_database(self, cache_root: Path) -> None:
        """Publishing and using cost an append each; SQLite is opened by the first query."""
        store = Store.open()
        publish(store, 1)
        store.index.record_use(KEY)
        assert store.index.failure(KEY) is None
        assert tree(cache_root / "v1" / "index") == []

        assert store.index.uses(KEY)[0] == 1

        assert SQLITE in tree(cache_root / "v1" / "index")

    def test_threads_and_processes_lose_nothing(self, store: Store) -> None:
        """Counts from threads and forked children add up."""
        children = []
        for _ in range(3):
            child = os.fork()
            if child == 0:
                for _ in range(20):
                    store.index.record_use(KEY)
                os._exit(0)
            children.append(child)
        threads = [
            threading.Thread(target=lambda: [store.index.record_use(KEY) for _ in range(20)])
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for child in children:
            os.waitpid(child, 0)

        assert store.index.uses(KEY)[0] == 2 + 6 * 20


class TestFailures:
    """What did not compile is not tried again for a while."""

    def test_reason_name_and_expiry(self, store: Store) -> None:
        """All of it comes back, in another store as well."""
        failure = Store.open().index.failure("ab" * 32)

        assert failure is not None
        assert (failure.name, failure.reason) == ("other", "did not fit")
        assert 0 < failure.expires - time.time() <= 60
        assert list(store.index.failures()) == ["ab" * 32]

    def test_a_failure_may_come_first(self, cache_root: Path) -> None:
        """The index creates the root as safely as a publish does, whatever the umask."""
        before = os.umask(0)
        try:
            Store.open().index.remember_failure(KEY, "name", "reason", 60)
        finally:
            os.umask(before)

        assert cache_root.stat().st_mode & 0o777 == 0o700
        assert Store.open().index.failure(KEY) is not None

    def test_expires(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """After its time it is gone."""
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 61)

        assert store.index.failure("ab" * 32) is None
        assert store.index.failures() == {}

    def test_zero_seconds_forget(self, store: Store) -> None:
        """JITGEN_FAILURE_TTL=0 remembers nothing, and forgets what was."""
        store.index.remember_failure("ab" * 32, "other", "did not fit", 0)

        assert store.index.failure("ab" * 32) is None

    def test_publishing_and_removing_forget(self, store: Store) -> None:
        """An entry proves the failure wrong; removing a key is how to retry."""
        for forget in (lambda: publish(store, 2), lambda: store.remove(fake_meta(2).key)):
            store.index.remember_failure(fake_meta(2).key, "two", "no", 60)
            assert store.index.failure(fake_meta(2).key) is not None
            forget()
            assert Store.open().index.failure(fake_meta(2).key) is None

    def test_clear_forgets_all(self, store: Store) -> None:
        """A cleared store knows no failures."""
        store.clear()

        assert Store.open().index.failures() == {}

    def test_long_reasons_are_cut(self, store: Store) -> None:
        """A compiler may say a lot."""
        store.index.remember_failure("cd" * 32, "n", "x" * 10**6, 60)

        failure = store.index.failure("cd" * 32)

        assert failure is not None
        assert len(failure.reason) == 4000

    def test_without_an_index_this_process_remembers(self) -> None:
        """The stand-in keeps failures in memory."""
        index = NullIndex()
        index.remember_failure(KEY, "name", "reason", 60)

        assert index.failure(KEY) is not None
        assert list(index.failures()) == [KEY]
        index.forget_failure(KEY)
        assert index.stats() == {"entries": 0, "hits": 0, "failures": 0}


class TestClock:
    """Failures are remembered for a time, and clocks are set."""

    @pytest.mark.parametrize("make", [lambda: Store.open().index, NullIndex])
    def test_set_back(self, make: Callable[[], NullIndex], monkeypatch: pytest.MonkeyPatch) -> None:
        """A failure from before the clock was set back a year used to hold for a year."""
        index = make()
        index.remember_failure("ab" * 32, "name", "reason", 60)
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now - YEAR)

        assert index.failure("ab" * 32) is None
        assert index.failures() == {}

    @pytest.mark.parametrize("seconds", [-30.0, 0.0, 3590.0])
    def test_holds(self, store: Store, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        """As long as it was told to, and where the clocks of two hosts differ a little."""
        store.index.remember_failure("ab" * 32, "name", "reason", 3600)
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + seconds)

        assert Store.open().index.failure("ab" * 32) is not None

    def test_set_back_and_failed_again(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """Then it counts from the new time, though the old row says something else."""
        store.index.remember_failure("ab" * 32, "name", "reason", 60)
        now = time.time() - YEAR
        monkeypatch.setattr(time, "time", lambda: now)
        store.index.remember_failure("ab" * 32, "name", "another reason", 60)

        found = Store.open().index.failure("ab" * 32)
        assert found is not None
        assert found.reason == "another reason"
        monkeypatch.setattr(time, "time", lambda: now + 61)
        assert Store.open().index.failure("ab" * 32) is None


class TestFork:
    """SQLite connections do not survive a fork."""

    def test_child_opens_its_own(self, store: Store) -> None:
        """Parent and child both go on, also if a thread of the parent was using the index."""
        index = store.index
        assert isinstance(index, Index)
        with index._database._lock:
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    for number in range(20):
                        index.remember_failure(f"{number:064x}", "n", "child", 60)
                    code = 0 if index.uses(KEY)[0] == 2 else 2
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        index.remember_failure("f" * 64, "n", "parent", 60)

        assert len(index.failures()) == 22


def root_in(folder: Path) -> Root:
    """A root that exists."""
    root = Root(folder)
    with root.create():
        return root


class TestJournal:
    """The lines that wait for the index."""

    def test_bad_lines_are_left_out(self, store: Store, cache_root: Path) -> None:
        """Torn, foreign and hostile lines do nothing."""
        with (cache_root / "v1" / "journal").open("ab") as stream:
            stream.write(b'["use","' + KEY.encode() + b'","disk",1]\n')
            stream.write(b'["use","../../x","disk",1]\n["gone"]\n["new",1,2]\n{}\n7\n["use"\xff\n')
            stream.write(b"[" * 100_000 + b"\n" + b'["use","')

        assert store.index.uses(KEY)[0] == 3
        assert list(store.index.rows()) == [KEY]

    def test_does_not_grow_for_ever(self, tmp_path: Path) -> None:
        """A fleet that only reads fills it up to a limit."""
        journal = Journal(root_in(tmp_path))
        with (tmp_path / "v1" / "journal").open("wb") as stream:
            stream.truncate(MOST_JOURNAL_BYTES)
        journal.append(("use", KEY, "disk", 1))

        assert (tmp_path / "v1" / "journal").stat().st_size == MOST_JOURNAL_BYTES

    def test_link_is_not_followed(self, tmp_path: Path) -> None:
        """A link in its place is neither written nor read through."""
        victim = tmp_path / "victim"
        victim.write_text('["use"]\n')
        journal = Journal(root_in(tmp_path))
        (tmp_path / "v1" / "journal").symlink_to(victim)

        journal.append(("use", KEY, "disk", 1))

        assert journal.take() == []
        assert victim.read_text() == '["use"]\n'
        assert not (tmp_path / "v1" / "journal").is_symlink()

    def test_missing_folder(self, tmp_path: Path) -> None:
        """Nothing is raised, nothing is created."""
        journal = Journal(Root(tmp_path / "missing"))
        journal.append(("use", KEY, "disk", 1))

        assert journal.take() == []
        assert journal.is_empty()
        assert not (tmp_path / "missing").exists()


class TestItIsClosed:
    """Python 3.13 warns of a connection that is not closed."""

    @staticmethod
    def descriptors(folder: Path) -> int:
        places = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))  # noqa: PTH208
        found = [os.readlink(place) for place in places if os.path.lexists(place)]  # noqa: PTH115
        return sum(place.startswith(str(folder)) for place in found)

    def test_with_the_store(self, folder: Path) -> None:
        """Whichever thread opened it, and another one used it."""
        store = Store.open()
        publish(store, 1)
        store.index.learn({})
        opened = threading.Thread(target=store.index.rows)
        opened.start()
        opened.join()
        store.index.remember_failure("ab" * 32, "other", "did not fit", 60)
        assert self.descriptors(folder) == 1
        del store, opened
        gc.collect()

        assert not self.descriptors(folder)

    def test_where_it_cannot_be_opened(self, folder: Path) -> None:
        store = Store.open()
        publish(store, 1)
        assert store.index.rows()
        store.index.close()
        (folder / SQLITE).write_bytes(b"no database" * 1000)
        store.index.rows()
        store.index.close()

        assert not self.descriptors(folder)

    def test_of_a_parent_is_left_alone(self, store: Store, folder: Path) -> None:
        """A child that closed it would drop the parent's locks."""
        assert self.descriptors(folder) == 1
        if not (child := os.fork()):
            has_used = bool(store.index.rows())
            store.index.close()
            os._exit(0 if has_used else 1)

        assert os.waitpid(child, 0)[1] == 0
        assert store.index.uses(KEY)[0] == 2


class TestLocks:
    """What the database costs: SQLite locks, checks and unlocks the file for each transaction."""

    @pytest.fixture
    def said(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Statements that any connection to a database runs from now on, without pragmas."""
        statements: list[str] = []
        connect = sqlite3.connect

        def watched(*given: Any, **named: Any) -> sqlite3.Connection:
            connection = connect(*given, **named)
            connection.set_trace_callback(
                lambda text: text.startswith(("PRAGMA", "--")) or statements.append(text)
            )
            return connection

        monkeypatch.setattr(sqlite3, "connect", watched)
        return statements

    def test_a_list_reads_all_rows_under_one_lock(self, store: Store, said: list[str]) -> None:
        """Each of 256 rows was a transaction of its own: 1,000 file calls for a list."""
        store.index.rows()
        store.index.close()
        Store.open().index.rows()

        said.clear()
        index = Store.open().index
        index.rows()

        assert len(said) > 256
        assert alone(said) == []
        assert said.count("BEGIN") == 1
        index.close()

    def test_opening_writes_in_one_transaction(self, store: Store, said: list[str]) -> None:
        """Each setting was written in transactions of its own, in each process that opened it."""
        store.index.close()

        index = Store.open().index
        index.traffic()

        assert sum(text.startswith("BEGIN IMMEDIATE") for text in said) == 1
        assert [text.split()[0] for text in alone(said)] == ["SELECT"], "of the traffic alone"
        index.close()

    def test_traffic_reads_no_rows(self, store: Store, said: list[str]) -> None:
        """It read all 256 rows to take the journal over."""
        store.index.close()
        store.index.traffic()
        said.clear()

        store.index.traffic()

        assert len(said) == 1

    def test_settings_are_those_of_the_connection_in_use(self, store: Store) -> None:
        """They were set on a connection that was closed, so each write waited for the disk."""
        store.index.rows()
        table = store.index._database._table  # type: ignore[attr-defined]

        ((mode,),) = table._cache._con.execute("PRAGMA journal_mode")
        ((synchronous,),) = table._cache._con.execute("PRAGMA synchronous")

        assert (mode, synchronous) == ("truncate", 0)


def alone(statements: list[str]) -> list[str]:
    """Return the statements outside BEGIN and COMMIT or ROLLBACK."""
    found, is_within = [], False
    for text in statements:
        word = text.split()[0].rstrip(";")
        if word == "BEGIN":
            is_within = True
        elif word in ("COMMIT", "ROLLBACK"):
            is_within = False
        elif not is_within:
            found.append(text)
    return found
