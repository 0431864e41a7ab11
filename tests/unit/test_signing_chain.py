# SPDX-License-Identifier: Apache-2.0
"""Which of several trust documents is the latest, and what is kept of those that led to it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise, permutations

import pytest

from jitgen.errors import SigningError
from jitgen.signing import chain, dsse
from jitgen.signing.chain import newest
from jitgen.signing.keys import PrivateKey, PublicKey
from jitgen.signing.trust import MAX_BEFORE, SealedTrust, joined, opened

from .trust_fakes import R1, R2, R3, THIEF, V1, V2, V3, V4, document

ONE, TWO, THREE, FOUR = map(opened, (V1, V2, V3, V4))


def versions(found: SealedTrust) -> list[int]:
    """Return its version, after those of what led to it."""
    return [one.version for one in (*found.before, found)]


@pytest.mark.parametrize("order", list(permutations([ONE, TWO, THREE, FOUR])))
def test_the_latest_is_found_in_any_order(order: tuple[SealedTrust, ...]) -> None:
    """Of those before it, the one stays in which the old root vouches for the new one."""
    found = newest(*order)

    assert versions(found) == [2, 4]
    assert opened(found.data) == found
    assert all(found.comes_from(one) for one in order)


def test_it_keeps_its_bytes_where_nothing_is_to_be_added() -> None:
    assert newest(ONE).data == V1
    assert newest(THREE, FOUR).data == V4
    whole = newest(TWO, FOUR)
    assert newest(ONE, THREE, whole) is whole


def test_what_is_not_in_line_is_refused() -> None:
    for documents, complaint in (
        ((ONE, THREE), "version 1 does not lead to version 3"),
        ((ONE, opened(document(2, (R3,)))), "version 1 does not lead to version 2"),
        ((TWO, opened(document(2, (R1,)))), "two documents of version 2"),
        ((FOUR, TWO, opened(document(3, (R1,)))), "version 3 does not lead to version 4"),
    ):
        with pytest.raises(SigningError, match=complaint):
            newest(*documents)


def test_a_signature_of_an_unknown_root_is_kept() -> None:
    """A host may still be configured with a document of that root."""
    handed_over = opened(document(2, (R1,), (R1, R3)))
    later = opened(document(3, (R1,)))
    found = newest(handed_over, later)

    assert versions(found) == [2, 3]
    assert found.comes_from(opened(document(1, (R3,))))
    assert versions(newest(opened(document(2, (R1,))), later)) == [3]


def test_signatures_of_one_document_add_up() -> None:
    """A place may have put out the latest without the signature of the root before."""
    bare = joined(
        TWO.trust,
        dsse.Envelope.from_json(
            TWO.envelope.to_json() | {"signatures": [json.loads(V2)["signatures"][1]]}
        ),
        (),
    )
    assert not (bare.is_signed_by(R1.public) and bare.is_signed_by(R2.public))
    found = newest(bare, TWO)

    assert found.is_signed_by(R1.public)
    assert found.is_signed_by(R2.public)
    assert newest(ONE, bare, TWO).version == 2


def test_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A history has an end; who is beyond it must be given a new document by hand."""
    roots = [PrivateKey.generate() for _ in range(MAX_BEFORE + 4)]
    found = opened(document(1, (roots[0],)))
    first = found
    for number, (old, new) in enumerate(pairwise(roots), 2):
        found = newest(found, opened(document(number, (new,), (old, new))))
    assert len(found.before) == MAX_BEFORE
    assert versions(found)[-1] == len(roots)
    assert opened(found.data) == found
    assert not found.comes_from(first)
    assert found.comes_from(opened(document(4, (roots[3],))))

    monkeypatch.setattr(chain, "MAX_BYTES", len(found.data) // 2)
    assert 0 < len(newest(found).before) < MAX_BEFORE
    assert len(newest(found).data) <= len(found.data) // 2


def test_what_did_not_lead_to_a_document_is_refused_in_it() -> None:
    """Else who is configured with one of them would take the document."""
    envelope = json.loads(document(9, (THIEF,)))
    for earlier in (
        [V1],
        [V1, V2],
        [V2, document(8, (R2, THIEF), (THIEF,))],
        [document(9, (R1,))],
        [document(10, (THIEF,))],
    ):
        data = envelope | {"before": [json.loads(one) for one in earlier]}
        with pytest.raises(SigningError, match="as one that led to it, and that does not"):
            opened(json.dumps(data).encode())


@pytest.mark.parametrize(
    "before",
    [{}, "x", [1], [{}], [json.loads(V1) | {"before": []}], [json.loads(V1)] * (MAX_BEFORE + 1)],
)
def test_what_is_no_history_is_refused(before: object) -> None:
    with pytest.raises(SigningError):
        opened(json.dumps(json.loads(V2) | {"before": before}).encode())


def test_no_file_asks_for_more_work_than_it_has_signatures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of a stranger's documents could ask for each of its signatures again at every step."""
    roots = tuple(PrivateKey.generate() for _ in range(8))
    others = [opened(document(2 + number, roots, (roots[0],))) for number in range(MAX_BEFORE)]
    junk = tuple(
        dsse.Signature(keyid=root.keyid, sig=bytes(64)) for root in roots for _ in range(2)
    )[:15]
    padded = [
        replace(one.envelope, signatures=(*junk[1:], *one.envelope.signatures)) for one in others
    ]
    last = opened(document(99, (THIEF,)))
    data = joined(last.trust, last.envelope, ()).envelope.to_json()
    data["before"] = [envelope.to_json() for envelope in padded]
    counted = []
    real = PublicKey.verifies

    def verifies(self: PublicKey, signature: bytes, message: bytes) -> bool:
        counted.append(message)
        return real(self, signature, message)

    monkeypatch.setattr(PublicKey, "verifies", verifies)
    with pytest.raises(SigningError):
        opened(json.dumps(data).encode())

    assert len(counted) <= 2 * sum(len(envelope.signatures) for envelope in padded)
