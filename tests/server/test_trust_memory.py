# SPDX-License-Identifier: Apache-2.0
"""A service goes by the latest trust document that it has seen, across restarts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jitgen.cache import Store
from jitgen.errors import SettingError
from jitgen.server.revocations import Revocations
from tests.unit.trust_fakes import R2, R3, V1, V2, document

WRONG = "ab" * 32
V3 = document(3, (R2,), revoked={WRONG: "wrong results"})


def started(folder: Path) -> Revocations:
    """Return what a service reads that starts now."""
    store = Store.open(folder / "cache", mode="rw")
    return Revocations(folder, folder / "trust.json", store.trusted.remembered)


def put(folder: Path, data: bytes) -> None:
    """Let `data` be the document that the operator put there."""
    (folder / "trust.json").write_bytes(data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a service that has gone by versions 1 to 3."""
    tmp_path.chmod(0o700)
    put(tmp_path, V1)
    service = started(tmp_path)
    for data in (V2, V3):
        put(tmp_path, data)
        service.reload()
    assert service.of_key(WRONG) is not None
    return tmp_path


def test_an_older_file_takes_nothing_back_at_a_restart(folder: Path) -> None:
    """A restart with an older file handed out again what the later one had revoked."""
    put(folder, V1)
    service = started(folder)

    assert service.of_key(WRONG) is not None
    assert service.trust is not None
    assert service.trust.version == 3
    service.reload()  # the file is as it was: nothing to tell


def test_what_it_hands_out_brings_an_old_client_forward(folder: Path) -> None:
    from jitgen.signing.trust import opened

    service = started(folder)
    assert service.trust is not None
    assert opened(service.trust.data, opened(V1)).version == 3


def test_an_older_file_is_told_at_sighup(folder: Path) -> None:
    service = started(folder)
    put(folder, V2)

    with pytest.raises(SettingError, match="not later than 3"):
        service.reload()


def test_a_memory_that_cannot_be_read_is_no_reason_to_go_back(folder: Path) -> None:
    (folder / "cache" / "v1" / "trust.json").write_bytes(b"")
    put(folder, V1)

    with pytest.raises(SettingError, match="jitgen trust adopt"):
        started(folder)


def test_another_lineage_is_told_with_the_command(folder: Path) -> None:
    put(folder, document(1, (R3,)))

    with pytest.raises(SettingError, match=f"JITGEN_CACHE_DIR={folder}/cache jitgen trust adopt"):
        started(folder)


def test_the_list_of_revocations_is_private_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0o002)
    try:
        started(folder).add({"cd" * 32: "why"}, "admin")
    finally:
        os.umask(before)

    assert started(folder).of_key("cd" * 32) is not None


def test_a_list_of_revocations_that_others_can_write_is_refused(folder: Path) -> None:
    """Only the folder was looked at, and by its path."""
    started(folder).add({"cd" * 32: "why"}, "admin")
    (folder / "revocations.json").chmod(0o666)

    with pytest.raises(SettingError, match="can be written by other users"):
        started(folder)
