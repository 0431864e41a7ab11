# SPDX-License-Identifier: Apache-2.0
"""Keys, envelopes and statements: what is signed, and what a signature says nothing about."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitgen.cache import Entry
from jitgen.errors import SigningError
from jitgen.ownership.files import keep_private
from jitgen.signing import dsse
from jitgen.signing.keys import PrivateKey, PublicKey
from jitgen.signing.statement import Statement

from .signing_fakes import NOW, signed
from .store_fakes import fake_files, fake_meta

ENTRY = Entry.of(fake_meta(1), fake_files(1))
RECORD = ENTRY.meta.encode()
KEY, OTHER = PrivateKey.generate(), PrivateKey.generate()


def test_encoding_is_that_of_dsse() -> None:
    """The example of DSSE's own specification."""
    assert dsse.encoding("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_key_file_is_private_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "signer.pem"
    KEY.save(path)

    assert path.stat().st_mode & 0o777 == 0o600
    assert PrivateKey.load(path).public == KEY.public
    with pytest.raises(SigningError, match="exists, and no key is overwritten"):
        OTHER.save(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_key_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "signer.pem"
    KEY.save(path)
    path.chmod(mode)

    with pytest.raises(SigningError, match=f"chmod 600 {path}"):
        PrivateKey.load(path)


def test_advice_does_not_lock_out_the_user_of_another_users_file(tmp_path: Path) -> None:
    """A service that reads root's key by its group could not read it after a chmod alone."""
    path = tmp_path / "signer.pem"
    KEY.save(path)
    mine = path.stat()
    theirs = os.stat_result((*mine[:4], mine.st_uid + 1, *mine[5:]))
    folder = tmp_path.stat()

    assert keep_private(path, mine) == f"chmod 600 {path}"
    assert keep_private(path, theirs) == f"chown {os.geteuid()} {path} && chmod 600 {path}"
    assert keep_private(tmp_path, folder) == f"chmod 700 {tmp_path}"


@pytest.mark.parametrize("content", [b"", b"no key", b"\0" * 2**15])
def test_key_file_that_holds_none_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "signer.pem"
    path.write_bytes(content)
    path.chmod(0o600)

    with pytest.raises(SigningError, match=r"is no (private )?key"):
        PrivateKey.load(path)


def test_signature_is_of_one_key_and_every_byte() -> None:
    envelope = dsse.seal("a/b", b"payload", KEY)

    assert envelope.is_signed_by(KEY.public)
    assert not envelope.is_signed_by(OTHER.public)
    assert not replace(envelope, payload=b"Payload").is_signed_by(KEY.public)
    assert not replace(envelope, payload_type="a/c").is_signed_by(KEY.public)


def test_public_key_that_is_no_point_verifies_nothing() -> None:
    assert not PublicKey(raw=b"\xff" * 32).verifies(bytes(64), b"")


def test_envelopes_are_written_and_read() -> None:
    envelopes = (dsse.seal("a/b", b"\0\xff", KEY, OTHER), dsse.seal("a/b", b"", OTHER))

    assert dsse.decode(dsse.encode(envelopes)) == envelopes
    assert dsse.encode(()) == b""
    assert dsse.decode(b"") == ()


def test_envelopes_are_merged_once_each() -> None:
    first, second = signed(RECORD, KEY), signed(RECORD, OTHER)
    both = dsse.merged(first, second)

    assert dsse.merged(both, first, b"") == both
    assert len(dsse.decode(both)) == 2


def test_a_newer_signature_of_the_same_key_takes_the_place_of_the_older() -> None:
    """Signing again added up, until there were too many to add another one."""
    first, second = signed(RECORD, KEY), signed(RECORD, OTHER)
    both, fresh = dsse.merged(first, second), dsse.encode([dsse.seal("a/b", b"new", KEY)])
    kept = dsse.decode(dsse.renewed(both, fresh))

    assert kept == (*dsse.decode(second), *dsse.decode(fresh))
    assert dsse.renewed(b"", fresh) == dsse.renewed(b"no signatures", fresh) == fresh
    full = dsse.encode([dsse.seal("a/b", b"%d" % n, OTHER) for n in range(dsse.MAX_ENVELOPES)])
    kept = dsse.decode(dsse.renewed(full, fresh))
    assert kept == (*dsse.decode(full)[1:], *dsse.decode(fresh))


def _bad_envelopes() -> list[object]:
    good = dsse.seal("a/b", b"payload", KEY).to_json()
    signature = good["signatures"][0]
    return [
        None,
        {},
        good | {"more": 1},
        good | {"payload": "?"},
        good | {"payload": 1},
        good | {"payloadType": 1},
        good | {"payloadType": "\udc80"},
        good | {"signatures": []},
        good | {"signatures": [signature] * (dsse.MAX_SIGNATURES + 1)},
        good | {"signatures": [{}]},
        good | {"signatures": [signature | {"keyid": "x" * 64}]},
        good | {"signatures": [signature | {"sig": ""}]},
    ]


@pytest.mark.parametrize("bad", _bad_envelopes())
def test_bad_envelopes_are_refused(bad: object) -> None:
    with pytest.raises(SigningError):
        dsse.decode(json.dumps({"envelopes": [bad]}).encode())


@pytest.mark.parametrize(
    "bad",
    [
        b"x",
        b"[]",
        b'{"envelopes": 1}',
        b'{"envelopes": [], "more": 1}',
        b" " * (dsse.MAX_BYTES + 1),
        b'{"envelopes": [' + b"{}," * dsse.MAX_ENVELOPES + b"{}]}",
    ],
)
def test_bad_files_of_envelopes_are_refused(bad: bytes) -> None:
    with pytest.raises(SigningError):
        dsse.decode(bad)


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader_of_envelopes(data: bytes) -> None:
    try:
        dsse.decode(data)
    except SigningError:
        return
    assert data.strip() in (b"", b'{"envelopes":[]}')


def test_statement_is_written_and_read() -> None:
    statement = Statement.of(RECORD, "ci of the fleet", NOW)

    assert Statement.decode(statement.encode()) == statement
    assert statement.key == ENTRY.key
    assert statement.toolchain == ENTRY.meta.key_document["toolchain"]
    assert json.loads(statement.encode())["signed_at"] == "2026-06-01T12:00:00+00:00"


@pytest.mark.parametrize(
    "change",
    [
        {"type": "another"},
        {"key": "x"},
        {"meta_sha256": None},
        {"builder": ""},
        {"builder": "\x1b[2J"},
        {"toolchain": [1]},
        {"toolchain": {"a": 1}},
        {"signed_at": "2026-06-01"},
        {"signed_at": "2026-06-01T12:00:00+02:00"},
        {"signed_at": "2026-13-01T12:00:00+00:00"},
        {"signed_at": "٢٠٢٦-06-01T12:00:00+00:00"},
        {"more": 1},
    ],
)
def test_bad_statements_are_refused(change: dict[str, object]) -> None:
    document = json.loads(Statement.of(RECORD, "ci", NOW).encode()) | change

    with pytest.raises(SigningError):
        Statement.decode(json.dumps(document).encode())


@pytest.mark.parametrize("record", [b"", b"{}", b"[]", b'{"key": 1}', RECORD[:-10]])
def test_nothing_is_said_of_what_is_no_record(record: bytes) -> None:
    with pytest.raises(SigningError, match=r"meta\.json is no record"):
        Statement.of(record, "ci", NOW)
