# SPDX-License-Identifier: Apache-2.0
"""What a root remembers of trust is never taken for nothing, and never goes back."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jitgen.cache.folder import Folder
from jitgen.errors import SigningError

from .trust_fakes import (
    DAMAGE,
    K1,
    R2,
    R3,
    V1,
    V2,
    V3,
    V4,
    Host,
    document,
    folder,
    host,
    hosting,
    is_accepted,
    strangers,
)

__all__ = ["host"]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def test_a_change_of_the_root_key_outlives_the_process(host: Host) -> None:
    """
    The configured document's root had not signed the remembered one: the next process threw it
    away for good, went by the old document, and accepted what a revoked key had signed.
    """
    process = host.process()

    assert process.current().version == 3
    assert not is_accepted(process)
    assert host.kept.version == 3
    with pytest.raises(SigningError, match="not later than 3"):
        process.accept(V3)
    assert process.accept(V4).version == 4
    assert host.process().current().version == 4


class TestUnreadable:
    """Whatever is in the way of the memory, it may hold what was revoked since."""

    @pytest.mark.parametrize(
        "damage", [*DAMAGE, pytest.param(strangers, marks=as_root)], ids=lambda f: f.__name__
    )
    def test_refuses_and_stays(self, host: Host, damage: Callable[[Path], None]) -> None:
        """It counted as none: the configured document took its place, and a revoked key counted."""
        data = host.memory.read_bytes()
        damage(host.memory)
        found = os.lstat(host.memory)
        process = host.process()

        assert not is_accepted(process)
        with pytest.raises(SigningError) as error:
            process.current()
        assert str(host.memory) in str(error.value)
        assert "jitgen trust adopt" in str(error.value)
        with pytest.raises(SigningError):
            process.accept(V4)
        assert os.lstat(host.memory) == found

        (host.memory.rmdir if damage is folder else host.memory.unlink)()
        host.memory.write_bytes(data)
        host.memory.chmod(0o600)
        assert process.current().version in (3, 4)

    @pytest.mark.parametrize(
        "number", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ESTALE, errno.ENOMEM]
    )
    def test_passing_error_passes(
        self, host: Host, number: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One EIO was enough to throw the newest document away, for every process to come."""
        real, process = Folder.read, host.process()

        def read(folder: Folder, name: str, *arguments: Any, **options: Any) -> bytes:
            if name == "trust.json":
                raise OSError(number, os.strerror(number))
            return real(folder, name, *arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Folder, "read", read)
            assert not is_accepted(process)
            assert errno.errorcode[number] in process.refusal(b"", b"") or number == errno.EACCES
        assert process.current().version == 3
        assert not is_accepted(process)
        assert host.kept.version == 3

    def test_a_root_that_cannot_be_entered(self, host: Host) -> None:
        """A file in the place of the root's folder counted as "there is no root"."""
        process = host.process()
        (host.folder / "root" / "v1").rename(host.folder / "aside")
        (host.folder / "root" / "v1").write_bytes(b"")

        with pytest.raises(SigningError, match="cannot be read"):
            process.current()

    def test_none_is_none(self, host: Host) -> None:
        """Only where there is no such file does the configured document count alone."""
        host.memory.unlink()

        assert host.process().current().version == 1

    def test_a_configured_document_that_cannot_be_read_does_not_leave_the_other_in_use(
        self, host: Host
    ) -> None:
        process = host.process()
        assert process.current().version == 3
        host.file.chmod(0o666)

        assert not is_accepted(process)
        assert "can be written by other users" in process.refusal(b"", b"")


class TestForward:
    """An old configured document is brought forward, however many roots there were since."""

    def test_by_what_a_place_hands_out(self, tmp_path: Path) -> None:
        """A host that had not seen the document that both roots signed could not go on."""
        latest = _history(tmp_path)
        with hosting(tmp_path / "a") as host:
            with pytest.raises(SigningError, match="no root of the trust document in use"):
                host.process().accept(V3)

            assert host.process().accept(latest).version == 3
            assert host.process().current().version == 3
            assert not is_accepted(host.process())

    def test_by_the_configured_file(self, tmp_path: Path) -> None:
        latest = _history(tmp_path)
        with hosting(tmp_path / "a") as host:
            host.process().current()
            host.configure(latest)

            assert host.process().current().version == 3

    def test_what_is_forged_into_a_history_is_refused(self, host: Host) -> None:
        import json

        mine = json.loads(document(9, (R3,), keys=(K1,)))
        for earlier in (V1, V2, V3, document(8, (R2, R3), (R3,))):
            forged = json.dumps(mine | {"before": [json.loads(earlier)]}).encode()
            with pytest.raises(SigningError):
                host.process().accept(forged)
        assert host.kept.version == 3


def _history(folder: Path) -> bytes:
    """Return version 3, with what led to it, as a host remembers it that saw all of them."""
    folder.chmod(0o700)
    (folder / "history").mkdir(mode=0o700)
    (folder / "a").mkdir(mode=0o700)
    with hosting(folder / "history") as host:
        for data in (V2, V3):
            host.process().accept(data)
        return host.memory.read_bytes()
