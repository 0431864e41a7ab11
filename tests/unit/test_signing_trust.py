# SPDX-License-Identifier: Apache-2.0
"""Trust documents, and the judgement of entries by them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from jitgen.cache import Entry
from jitgen.errors import SigningError
from jitgen.signing import dsse, edit
from jitgen.signing.keys import PrivateKey
from jitgen.signing.policy import SKEW, judge
from jitgen.signing.statement import PAYLOAD_TYPE, Statement
from jitgen.signing.trust import PAYLOAD_TYPE as TRUST_TYPE
from jitgen.signing.trust import Trust, TrustedKey, opened

from .signing_fakes import NOW, YEAR, sealed, signed, trust_of
from .store_fakes import fake_files, fake_meta

ENTRY = Entry.of(fake_meta(1), fake_files(1))
RECORD = ENTRY.meta.encode()
OTHER_RECORD = Entry.of(fake_meta(2), fake_files(2)).meta.encode()
ROOT, ROOT_2, KEY, KEY_2, THIEF = (PrivateKey.generate() for _ in range(5))
SECOND = timedelta(seconds=1)


def test_trust_is_written_and_read() -> None:
    trust = trust_of(
        ROOT,
        KEY,
        KEY_2,
        revoked_keys={THIEF.keyid: "stolen"},
        revoked={ENTRY.key: ""},
        min_signed_at=NOW,
    )

    assert opened(trust.sealed(ROOT)).trust == trust


def test_trust_is_signed_by_a_root_it_names() -> None:
    with pytest.raises(SigningError, match="one of the roots it names"):
        trust_of(ROOT, KEY).sealed(THIEF)

    payload = opened(trust_of(ROOT, KEY).sealed(ROOT)).trust.to_json()
    forged = dsse.seal(TRUST_TYPE, json.dumps(payload).encode(), THIEF)
    with pytest.raises(SigningError, match="no root that the trust document names signed it"):
        opened(json.dumps(forged.to_json()).encode())


def test_a_root_that_is_revoked_signs_no_document_any_more() -> None:
    """Neither the next one, by which its thief would trust himself, nor the one that revokes it."""
    both = trust_of(ROOT, KEY, roots=(ROOT.public, ROOT_2.public))
    taken = edit.revoked(both, (ROOT.keyid,), reason="stolen")
    with pytest.raises(SigningError, match="and does not revoke"):
        taken.sealed(ROOT)

    before = opened(taken.sealed(ROOT_2), before=opened(both.sealed(ROOT)))
    thiefs = replace(both, version=taken.version + 1).sealed(ROOT)
    with pytest.raises(SigningError, match="no root of the trust document in use signed this one"):
        opened(thiefs, before=before)


def test_statement_is_no_trust_document() -> None:
    envelope = dsse.seal(PAYLOAD_TYPE, json.dumps(trust_of(ROOT).to_json()).encode(), ROOT)

    with pytest.raises(SigningError, match="no trust document"):
        opened(json.dumps(envelope.to_json()).encode())


def test_old_trust_file_is_not_taken_for_news() -> None:
    old, new = (sealed(ROOT, KEY, version=version) for version in (3, 4))

    assert opened(new.data, before=old).trust.version == 4
    for replayed in (old, new):
        with pytest.raises(SigningError, match=r"is not later than 4"):
            opened(replayed.data, before=new)


def test_new_root_arrives_in_a_document_that_both_sign() -> None:
    old = sealed(ROOT, KEY)
    new = trust_of(ROOT_2, KEY, version=2)
    with pytest.raises(SigningError, match="no root of the trust document in use"):
        opened(new.sealed(ROOT_2), before=old)

    both = opened(new.sealed(ROOT_2, ROOT), before=old)
    assert opened(trust_of(ROOT_2, version=3).sealed(ROOT_2), before=both).trust.version == 3


@pytest.mark.parametrize(
    "change",
    [
        {"version": 0},
        {"version": True},
        {"version": 1.0},
        {"roots": []},
        {"roots": ["?"]},
        {"roots": ["AAAA"]},
        {"keys": [1]},
        {"keys": {}},
        {"revoked": {"x": ""}},
        {"revoked": {"a" * 64: 1}},
        {"revoked_keys": []},
        {"expires": "never"},
        {"min_signed_at": ""},
        {"type": "another"},
        {"more": 1},
    ],
)
def test_bad_trust_documents_are_refused(change: dict[str, object]) -> None:
    document = trust_of(ROOT, KEY).to_json() | change
    envelope = dsse.seal(TRUST_TYPE, json.dumps(document).encode(), ROOT)

    with pytest.raises(SigningError):
        opened(json.dumps(envelope.to_json()).encode())


def test_key_of_another_name_is_refused() -> None:
    document = trust_of(ROOT, KEY).to_json()
    document["keys"][0]["keyid"] = KEY_2.keyid
    envelope = dsse.seal(TRUST_TYPE, json.dumps(document).encode(), ROOT)

    with pytest.raises(SigningError, match="bad keyid"):
        opened(json.dumps(envelope.to_json()).encode())


def test_entry_with_a_good_signature_is_accepted() -> None:
    found = judge(RECORD, signed(RECORD, KEY), trust_of(ROOT, KEY), NOW)

    assert found
    assert found.statements[KEY.keyid].builder == "a test"


def test_every_flipped_byte_is_refused() -> None:
    """Of the signatures, as of the record: no flip leaves an entry accepted that is another."""
    signatures, trust = signed(RECORD, KEY), trust_of(ROOT, KEY)
    for position in range(len(RECORD)):
        flipped = bytearray(RECORD)
        flipped[position] ^= 1
        assert not judge(bytes(flipped), signatures, trust, NOW)
    accepted = 0
    for position in range(len(signatures)):
        bits = bytearray(signatures)
        bits[position] ^= 1
        accepted += bool(judge(RECORD, bytes(bits), trust, NOW))
    assert accepted == 0


def _by(*keys: PrivateKey) -> bytes:
    return signed(RECORD, *keys)


_DIGEST = hashlib.sha256(RECORD).hexdigest()
_LIBRARY = ENTRY.meta.files["kernel.so"]["sha256"]
_CASES: dict[str, tuple[Callable[[], bytes], dict[str, object], str]] = {
    "unsigned": (lambda: b"", {}, "it is not signed"),
    "stranger": (lambda: _by(THIEF), {}, "is not in trust document 1"),
    "other entry": (lambda: signed(OTHER_RECORD, KEY), {}, "it signed another key"),
    "revoked key": (
        lambda: _by(KEY),
        {"revoked_keys": {KEY.keyid: "stolen"}},
        "is revoked: stolen",
    ),
    "revoked entry": (lambda: _by(KEY), {"revoked": {ENTRY.key: "slow"}}, "is revoked: slow"),
    "revoked record": (lambda: _by(KEY), {"revoked": {_DIGEST: ""}}, "no reason given"),
    "revoked library": (lambda: _by(KEY), {"revoked": {_LIBRARY: "wrong"}}, "is revoked: wrong"),
    "too old": (lambda: _by(KEY), {"min_signed_at": NOW + SECOND}, "before min_signed_at"),
    "expired": (lambda: _by(KEY), {"expires": NOW}, "trust document 1 expired"),
    "from the future": (
        lambda: signed(RECORD, KEY, at=NOW + SKEW + SECOND),
        {},
        "it signed in the future",
    ),
    "after its time": (
        lambda: signed(RECORD, KEY, at=NOW - YEAR - SECOND),
        {},
        "outside of its time",
    ),
    "garbage": (lambda: b"{", {}, "signatures.json cannot be read"),
    "root": (lambda: _by(ROOT), {}, "is not in trust document 1"),
}


@pytest.mark.parametrize("case", _CASES)
def test_refusals_say_why(case: str) -> None:
    make, changes, reason = _CASES[case]

    found = judge(RECORD, make(), trust_of(ROOT, KEY, **changes), NOW)
    assert not found
    assert reason in found.reason


def _restated(**changes: object) -> bytes:
    statement = replace(Statement.of(RECORD, "ci", NOW), **changes)  # type: ignore[arg-type]
    return dsse.encode([dsse.seal(PAYLOAD_TYPE, statement.encode(), KEY)])


@pytest.mark.parametrize(
    ("signatures", "reason"),
    [
        (_restated(meta_sha256="0" * 64), "another meta.json"),
        (_restated(toolchain={"nvidia-cutlass-dsl": "4.8.0"}), "another toolchain"),
        (dsse.encode([dsse.seal(PAYLOAD_TYPE, b"{}", KEY)]), "missing or unknown fields"),
        (
            dsse.encode([dsse.seal(TRUST_TYPE, Statement.of(RECORD, "ci", NOW).encode(), KEY)]),
            "something else than an entry",
        ),
    ],
)
def test_statements_of_something_else_are_refused(signatures: bytes, reason: str) -> None:
    assert reason in judge(RECORD, signatures, trust_of(ROOT, KEY), NOW).reason


def test_one_good_signature_of_several_is_enough() -> None:
    trust = trust_of(ROOT, KEY_2, revoked_keys={KEY.keyid: "stolen"})

    for signatures in (_by(KEY, KEY_2), dsse.merged(_by(KEY), _by(KEY_2), _by(THIEF))):
        assert set(judge(RECORD, signatures, trust, NOW).statements) == {KEY_2.keyid}


def test_key_whose_time_is_over_vouches_for_what_it_signed_then() -> None:
    key = TrustedKey(public=KEY.public, not_before=NOW - YEAR, not_after=NOW - SECOND)
    trust: Trust = trust_of(ROOT, keys={KEY.keyid: key})

    assert judge(RECORD, signed(RECORD, KEY, at=NOW - 2 * SECOND), trust, NOW)
    assert not judge(RECORD, signed(RECORD, KEY, at=NOW), trust, NOW)
