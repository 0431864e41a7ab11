# SPDX-License-Identifier: Apache-2.0
"""Several trust documents, processes, threads and places over one root: versions only grow."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jitgen.cache import remembered, trusted
from jitgen.cache.folder import Folder
from jitgen.errors import CacheError, SigningError
from jitgen.remote import layout, refresh
from jitgen.remote.objects import Objects
from jitgen.settings import settings
from jitgen.signing.trust import opened

from .remote_stand import KEY, Stand, entry_of, trusting
from .trust_fakes import (
    DAMAGE,
    K1,
    R1,
    R2,
    R3,
    STOLEN,
    V1,
    V2,
    V3,
    V4,
    Host,
    document,
    host,
    hosting,
    is_accepted,
)

__all__ = ["host"]


class TestOthers:
    """Several documents, processes and places over one root."""

    def test_processes_with_different_files(self, host: Host) -> None:
        """A process with an older file used to put it in the place of the newer one."""
        old, new = host.folder / "old.json", host.folder / "new.json"
        for path, data in ((old, V1), (new, V4)):
            path.write_bytes(data)
        for path in (new, old, new, old):
            with settings.scope(trust=path):
                assert host.process().current().version == 4
            assert host.kept.version == 4

    def test_processes_that_race(self, host: Host) -> None:
        """Whatever the order in which they look and write, the latest stays."""
        context = multiprocessing.get_context("fork")
        later = [document(version, (R2,), keys=(), revoked_keys=STOLEN) for version in range(5, 13)]
        for number in range(4):
            workers = [context.Process(target=_accept, args=(host, data)) for data in later]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join(60)
            assert [worker.exitcode for worker in workers] == [0] * len(later), number
            assert host.kept.version == 12

    def test_threads_that_race(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        """One that had looked before put back what another thread had just replaced, for 60 s."""
        process, real = host.process(), remembered.Remembered.read
        is_looking, may_go_on = threading.Event(), threading.Event()

        def slow(self: remembered.Remembered) -> Any:
            found = real(self)
            if threading.current_thread() is looker:
                is_looking.set()
                may_go_on.wait(0.2)
            return found

        monkeypatch.setattr(remembered.Remembered, "read", slow)
        looker = threading.Thread(target=process.current)
        looker.start()
        assert is_looking.wait(10)
        process.accept(V4)
        may_go_on.set()
        looker.join()

        assert process.current().version == 4

    def test_another_lineage_is_refused_until_it_is_adopted(self, host: Host) -> None:
        """It was silently taken, and what the one before had revoked was forgotten."""
        other = document(1, (R3,))
        host.configure(other)
        process = host.process()

        assert not is_accepted(process)
        with pytest.raises(SigningError, match=r"does not lead to version 3; .*jitgen trust adopt"):
            process.current()
        assert host.kept.version == 3

        assert process.adopt()[0].data == other
        assert is_accepted(process)
        assert host.kept.data == other

    def test_a_process_that_went_by_another_lineage_has_to_start_again(self, host: Host) -> None:
        """It must not write down again what was forgotten."""
        process = host.process()
        assert process.current().version == 3
        before = dict(trusted._seen)
        host.configure(document(1, (R3,)))
        host.process().adopt()
        trusted._seen.update(before)

        with pytest.raises(SigningError, match="start this process again"):
            process.current()
        assert host.kept.data == host.file.read_bytes()

    def test_an_older_version_is_not_adopted(self, host: Host) -> None:
        with pytest.raises(SigningError, match="versions only grow"):
            host.process().adopt()
        assert host.kept.version == 3

    @pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
    def test_what_is_lost_is_replaced_on_demand(
        self, host: Host, damage: Callable[[Path], None]
    ) -> None:
        damage(host.memory)
        host.configure(V3)

        assert host.process().adopt()[0].version == 3
        assert host.process().current().version == 3

    def test_two_documents_of_one_version_are_refused(self, host: Host) -> None:
        """Whichever was configured counted, though the other may have revoked something."""
        host.configure(document(3, (R2,), keys=(K1,)))

        with pytest.raises(SigningError, match="there are two documents of version 3"):
            host.process().current()

        process = host.process()
        host.configure(document(4, (R2,), keys=(K1,), revoked_keys=STOLEN))
        assert process.current().version == 4

    def test_a_thief_of_the_old_root_key_takes_no_host_along(self, host: Host) -> None:
        forged = document(9, (R1,), keys=(K1,))
        with pytest.raises(SigningError, match="no root of the trust document in use"):
            host.process().accept(forged)
        host.configure(forged)

        assert not is_accepted(host.process())
        assert host.kept.version == 3

    def test_an_expired_document_is_still_the_latest(self, tmp_path: Path) -> None:
        from jitgen.signing import times

        over = times.now().replace(microsecond=0)
        with hosting(tmp_path) as host:
            host.process().accept(document(2, (R1,), expires=over))

            assert "expired" in host.process().refusal(b"", b"") or not is_accepted(host.process())
            assert host.process().current().version == 2


@pytest.mark.parametrize("mode", ["ro", "off"])
def test_where_nothing_can_be_remembered_a_process_remembers(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a minute it was back at the configured document, and asked no place for ten."""
    with hosting(tmp_path, mode=mode) as host:
        process = host.process()
        process.accept(V2)
        process.accept(V3)
        monkeypatch.setattr(trusted, "FRESH_S", -1.0)
        trusted._seen.update({x: y._replace(until=0.0) for x, y in trusted._seen.items()})

        for _ in range(2):
            assert process.current().version == 3
            assert not is_accepted(process)
        assert not host.memory.exists()
        assert host.process().current().version == 1


def test_a_root_that_is_only_read_holds_what_it_remembers(host: Host) -> None:
    host.mode = "ro"

    assert host.process().current().version == 3
    with pytest.raises(CacheError, match="may not be written"):
        host.process().adopt()


def test_a_write_that_fails_is_told_and_done_later(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was passed over in silence, and after a minute the process went by the older one again."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    process = host.process()
    monkeypatch.setattr("jitgen.events._warned", set())
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "replace_durably", full)
        process.accept(V4)
    assert "trust document 4 cannot be remembered" in caplog.text
    assert host.kept.version == 3
    trusted._seen.update({x: y._replace(until=0.0) for x, y in trusted._seen.items()})

    assert process.current().version == 4
    assert host.kept.version == 4


def test_a_process_that_holds_the_lock_for_ever_is_not_waited_for(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that was stopped in the middle would stop all."""
    monkeypatch.setattr(remembered, "_PATIENCE_S", 0.0)
    monkeypatch.setattr("jitgen.events._warned", set())
    with (host.memory.parent / "locks" / "trust.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = host.process()
        assert process.accept(V4).version == 4
        assert process.current().version == 4
    assert "another process holds" in caplog.text


class TestPlaces:
    """Each place may have the later document."""

    def test_every_one_is_asked(self, stand: Stand) -> None:
        """The first that was asked, and had none, kept all others from being asked, for ever."""
        entry = entry_of(1, KEY)
        stand.push(entry)
        second = f"file://{stand.folder}/second"
        layout.push(Objects(second, is_patient=True), entry)
        Objects(second, is_patient=True).replace(
            layout.TRUST_PATH, trusting(KEY, version=2, revoked_keys={KEY.keyid: "stolen"})
        )
        stand.look_again()
        other = entry_of(2, KEY)
        for url in (stand.url, second):
            stand.fetch(other, url)

        assert stand.store.trusted.current().version == 2
        assert stand.store.trusted.is_fresh(refresh.EVERY_S, second)
        assert not stand.store.trusted.is_fresh(refresh.EVERY_S, "file:///third")


def _accept(host: Host, data: bytes) -> None:
    """Accept a document in a process of its own, which may find a later one."""
    process = host.process()
    try:
        process.accept(data)
    except SigningError as error:
        assert "is not later than" in str(error)  # noqa: PT017
    assert process.current().version >= opened(data).version


def test_accepting_looks_at_what_others_have_remembered(host: Host) -> None:
    """A process that had looked within the minute wrote what it was given over a later one."""
    process = host.process()
    assert process.current().version == 3
    seen = dict(trusted._seen)
    host.process().accept(document(6, (R2,), keys=(), revoked_keys=STOLEN))
    trusted._seen.update(seen)

    with pytest.raises(SigningError, match="not later than 6"):
        process.accept(V4)
    assert host.kept.version == 6


def test_roots_that_were_revoked_prove_nothing(tmp_path: Path) -> None:
    """The thief of a revoked root signs no step."""
    two = (R1, R2)
    with hosting(tmp_path, document(1, two)) as host:
        process = host.process()
        process.accept(document(2, two, (R2,), revoked_keys={R1.keyid: "stolen"}))
        with pytest.raises(SigningError):
            process.accept(document(3, (R1,), (R1,), keys=(K1,)))
        assert host.process().current().version == 2


def test_the_doctor_says_which_document_is_in_use(host: Host) -> None:
    """Only the version was told, whichever file had it."""
    from jitgen.cache import Store
    from jitgen.cli.doctor_remote import _trust

    with settings.scope(verify="always"):
        (found,) = _trust(Store.open(host.folder / "root"))
        assert found.value.startswith("version 3, until ")
        assert found.value.endswith(", remembered; JITGEN_TRUST has version 1")
        host.configure(V4)
        (found,) = _trust(Store.open(host.folder / "root"))
        assert "remembered" not in found.value
