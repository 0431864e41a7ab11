# SPDX-License-Identifier: Apache-2.0
"""Ten thousand answers that are not quite what was published: none of them is loaded."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from jitgen.cache import Damaged, Entry
from jitgen.remote import layout, wire
from jitgen.remote.outcomes import Corrupt, NotFound, Untrusted
from jitgen.signing.policy import judge
from jitgen.signing.trust import opened

from .remote_stand import KEY, THIEF, entry_of, trusting

TRUST = opened(trusting(KEY)).trust
GOOD, OTHER, EVIL = entry_of(1, KEY), entry_of(2, KEY), entry_of(1, THIEF, name="evil")


class Bucket(dict[str, bytes]):
    """Objects in memory."""

    def read(self, path: str, max_bytes: int) -> bytes:
        if path not in self:
            raise NotFound("not there")
        return self[path]

    def create(self, path: str, data: bytes) -> bool:
        return self.setdefault(path, data) is data

    def replace(self, path: str, data: bytes) -> bool:
        self[path] = data
        return True


def _bucket() -> Bucket:
    bucket = Bucket()
    for entry in (GOOD, OTHER):
        layout.push(bucket, entry)
    return bucket


def _packed(entry: Entry) -> bytes:
    return wire.pack(entry.meta.encode(), entry.files, entry.signatures)


def _judged(record: bytes, signatures: bytes) -> str:
    return judge(record, signatures, TRUST).reason


def _flip(draw: random.Random, data: bytes, _: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 8))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _cut(draw: random.Random, data: bytes, _: bytes) -> bytes:
    return data[: draw.randrange(len(data))]


def _lose(draw: random.Random, data: bytes, _: bytes) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + data[at + draw.choice((1, 2, 512)) :]


def _insert(draw: random.Random, data: bytes, _: bytes) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.randbytes(draw.choice((1, 2, 512))) + data[at:]


def _splice(draw: random.Random, data: bytes, other: bytes) -> bytes:
    at = draw.randrange(min(len(data), len(other)))
    return data[:at] + other[at:]


def _overwrite(draw: random.Random, data: bytes, other: bytes) -> bytes:
    length = draw.choice((4, 64, 512))
    source, at = draw.randrange(len(other)), draw.randrange(len(data))
    return data[:at] + other[source : source + length] + data[at + length :]


_MUTATIONS: tuple[Callable[[random.Random, bytes, bytes], bytes], ...] = (
    *(_flip, _flip, _cut, _lose, _insert, _splice, _overwrite),
)


def _from_service(draw: random.Random) -> wire.Packed:
    """What a service answers, changed before or after it was compressed."""
    good, other = _packed(GOOD), _packed(draw.choice((OTHER, EVIL)))
    mutate = draw.choice(_MUTATIONS)
    if draw.random() < 0.5:
        data = wire.decompress(mutate(draw, wire.compress(good), wire.compress(other)))
    else:
        data = mutate(draw, good, other)
    packed = wire.unpack(data, GOOD.key)
    if reason := _judged(packed.record, packed.signatures):
        raise Untrusted(reason)
    return packed


def _from_bucket(draw: random.Random) -> wire.Packed:
    """What a bucket holds, of which one object was changed or put in the place of another."""
    bucket = _bucket()
    if draw.random() < 0.2:
        layout.push(bucket, EVIL, replaces=True)
    path, other = draw.sample(sorted(bucket), 2)
    mutate = draw.choice((*_MUTATIONS, lambda _draw, _data, other: other))
    bucket[path] = mutate(draw, bucket[path], bucket[other])
    return layout.fetch(bucket, GOOD.key, _judged)


def _count_refused(num_tries: int) -> int:
    refused = 0
    for seed in range(num_tries):
        draw = random.Random(seed)
        try:
            found = draw.choice((_from_service, _from_bucket))(draw)
        except (Damaged, Untrusted, Corrupt, NotFound):
            refused += 1
            continue
        # What got through is the very entry: the change was in what says nothing.
        assert found.record == GOOD.meta.encode(), seed
        assert found.files == GOOD.files, seed
    return refused


def test_some_mutated_answers_load_nothing() -> None:
    assert _count_refused(300) > 200


@pytest.mark.nightly
def test_mutated_answers_load_nothing() -> None:
    assert _count_refused(10_000) > 7_000
