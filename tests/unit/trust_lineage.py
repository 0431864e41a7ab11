# SPDX-License-Identifier: Apache-2.0
"""
Random trust documents, with what is true of them by construction: who signed, who may sign next.

`leading` says in ten lines which of several documents is the latest that all lead to. It knows
nothing of how the product finds that, of what it leaves out, or of signatures.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from jitgen.signing.keys import PrivateKey

from .trust_fakes import document

ROOTS = [PrivateKey.generate() for _ in range(8)]
KEYS = [PrivateKey.generate() for _ in range(4)]
_KEYIDS = {root.keyid: number for number, root in enumerate(ROOTS)}


@dataclass(frozen=True)
class Doc:
    """
    One document.

    Attributes:
        version: Its version.
        standing: Roots that may sign the next one.
        good: Keys whose signatures count.
        signers: Roots whose signatures it has, in this copy.
        envelope: The signed document, as JSON.
    """

    version: int
    standing: frozenset[int]
    good: frozenset[int]
    signers: frozenset[int]
    envelope: dict[str, object] = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        """The payload of the document, which is the same in all copies."""
        return str(self.envelope["payload"])

    def stripped(self, signers: frozenset[int]) -> Doc:
        """Return a copy with the signatures of `signers` only."""
        left = [x for x in self.envelope["signatures"] if _KEYIDS[x["keyid"]] in signers]  # type: ignore[attr-defined]
        return replace(self, signers=signers, envelope=self.envelope | {"signatures": left})

    def data(self, history: Iterable[Doc] = ()) -> bytes:
        """
        Return the bytes of the document, with `history`, documents that are said to lead to it.
        """
        before = [one.envelope for one in history]
        return json.dumps(self.envelope | ({"before": before} if before else {})).encode()


Known = Mapping[str, Doc]
"""Documents by name; each copy has the signatures of all copies that were seen."""


def known(*documents: Doc) -> dict[str, Doc]:
    """Return these documents, each once."""
    found: dict[str, Doc] = {}
    for one in documents:
        before = found.get(one.name)
        signers = one.signers if before is None else before.signers | one.signers
        found[one.name] = replace(one, signers=signers)
    return found


def leading(documents: Known) -> Doc | None:
    """Return the latest of `documents`; None where not all of them lead to it."""
    ranked = sorted(documents.values(), key=lambda one: -one.version)
    proven = ranked[:1]
    for one in ranked[1:]:
        if not any(x.version > one.version and x.signers & one.standing for x in proven):
            return None
        proven.append(one)
    return proven[0]


def is_sound(one: Doc, history: Iterable[Doc] = ()) -> bool:
    """Return whether these may be one file: each is signed by itself, each leads to the latest."""
    parts = [one, *history]
    return (
        all(x.signers & x.standing for x in parts)
        and all(x.version < one.version for x in history)
        and leading({str(number): x for number, x in enumerate(parts)}) is not None
    )


def comes_from(one: Doc, history: Iterable[Doc], earlier: Doc) -> bool:
    """Return whether a file of these documents may take the place of `earlier`."""
    return one.version > earlier.version and any(
        x.name == earlier.name or (x.version > earlier.version and x.signers & earlier.standing)
        for x in (one, *history)
    )


def of_bytes(data: bytes) -> list[tuple[str, frozenset[int]]]:
    """Return name and signers of each document in a file, the latest first."""
    whole = json.loads(data)
    return [
        (one["payload"], frozenset(_KEYIDS[x["keyid"]] for x in one["signatures"]))
        for one in (whole, *reversed(whole.pop("before", [])))
    ]


def lineage(chance: random.Random, length: int, first: int = 0) -> list[Doc]:
    """
    Return documents of which each follows from the one before, through changes of roots.

    What was revoked stays so; roots are added, handed over, dropped and revoked.
    """
    roots, revoked = [first], set()
    taken: set[int] = set()
    made: list[Doc] = []
    version = 0
    for _ in range(length):
        before = [root for root in roots if root not in revoked]
        signers = {chance.choice(before)}
        fresh = [root for root in range(len(ROOTS)) if root not in roots and root not in revoked]
        what = chance.choice(["plain", "plain", "hand over", "add", "drop", "revoke"])
        if made and fresh and what == "hand over":
            roots = [chance.choice(fresh)]
            signers |= {roots[0]}
        elif made and fresh and what == "add" and len(roots) < 4:
            roots = [*roots, chance.choice(fresh)]
            signers |= {roots[-1]} if chance.random() < 0.5 else set()
        elif made and len(before) > 1 and what in ("drop", "revoke"):
            gone = chance.choice([root for root in before if root not in signers])
            if what == "drop":
                roots = [root for root in roots if root != gone]
            else:
                revoked = {*revoked, gone}
        if chance.random() < 0.4:
            taken = {*taken, chance.randrange(len(KEYS))}
        version += chance.randint(1, 2)
        made.append(_made(version, roots, signers, taken, revoked))
    return made


def fork(chance: random.Random, base: Doc) -> Doc:
    """Return what the thief of a root of `base` signs: every key is valid again."""
    thief = chance.choice(sorted(base.standing))
    return _made(base.version + chance.randint(1, 6), [thief], {thief}, set(), set())


def _made(
    version: int, roots: list[int], signers: set[int], taken: set[int], revoked: set[int]
) -> Doc:
    gone = {ROOTS[root].keyid: "" for root in revoked} | {KEYS[key].keyid: "" for key in taken}
    data = document(
        version,
        tuple(ROOTS[root] for root in roots),
        tuple(ROOTS[root] for root in sorted(signers)),
        tuple(KEYS),
        revoked_keys=gone,
    )
    envelope = json.loads(data)
    assert base64.b64decode(envelope["payload"])
    return Doc(
        version=version,
        standing=frozenset(roots) - revoked,
        good=frozenset(range(len(KEYS))) - taken,
        signers=frozenset(signers),
        envelope=envelope,
    )
