# SPDX-License-Identifier: Apache-2.0
"""Entries on the wire: equal bytes for equal entries, and nothing else is read."""

from __future__ import annotations

import io
import random
import tarfile
from dataclasses import replace

import pytest
import zstandard

from jitgen.cache import Damaged, Entry
from jitgen.remote import wire

from .store_fakes import fake_files, fake_meta

ENTRY = Entry.of(fake_meta(1), fake_files(1))
RECORD = ENTRY.meta.encode()
PACKED = wire.pack(RECORD, ENTRY.files, b"{}")


def test_entry_is_packed_and_unpacked() -> None:
    found = wire.unpack(PACKED, ENTRY.key)

    assert found == wire.Packed(meta=ENTRY.meta, record=RECORD, files=ENTRY.files, signatures=b"{}")
    assert wire.unpack(wire.pack(RECORD, ENTRY.files), ENTRY.key).signatures == b""


def test_packing_is_the_same_each_time() -> None:
    backwards = dict(reversed(ENTRY.files.items()))

    assert wire.pack(RECORD, backwards, b"{}") == PACKED


def test_archive_is_a_tar_that_people_can_read() -> None:
    with tarfile.open(fileobj=io.BytesIO(PACKED)) as tar:
        names = [member.name for member in tar.getmembers()]
        assert {member.mode for member in tar.getmembers()} == {0o444}
        library = tar.extractfile("kernel.so")
        assert library is not None
        assert library.read() == ENTRY.library

    assert names == ["meta.json", "signatures.json", "kernel.py", "kernel.so"]


def test_no_flipped_byte_gets_through() -> None:
    """What changes only signatures is for the judgement; everything else is refused here."""
    for position in range(0, len(PACKED), 3):
        data = bytearray(PACKED)
        data[position] ^= 1 << random.Random(position).randrange(8)
        try:
            found = wire.unpack(bytes(data), ENTRY.key)
        except Damaged:
            continue
        assert found.signatures != b"{}"


def test_entry_of_another_key_is_refused() -> None:
    with pytest.raises(Damaged, match="belongs to another key"):
        wire.unpack(PACKED, "0" * 64)


def _tar(*names: str, kind: bytes = tarfile.REGTYPE) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.type = kind
            member.linkname = "/etc/passwd"
            tar.addfile(member)
    return target.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(1024),
        b"x" * 2000,
        _tar("../meta.json"),
        _tar("/meta.json"),
        _tar("kernel.o"),
        _tar("meta.json", "meta.json"),
        _tar("meta.json", kind=tarfile.SYMTYPE),
        _tar("meta.json", kind=tarfile.LNKTYPE),
        _tar("meta.json", kind=tarfile.DIRTYPE),
        PACKED[:-1],
        PACKED + bytes(512),
        PACKED[: len(PACKED) // 2],
        PACKED[512:],
    ],
)
def test_other_archives_are_refused(data: bytes) -> None:
    with pytest.raises(Damaged):
        wire.unpack(data, ENTRY.key)


def test_parts_have_limits() -> None:
    with pytest.raises(Damaged, match=r"signatures\.json has 65537 bytes"):
        wire.unpack(wire.pack(RECORD, ENTRY.files, b"x" * (2**16 + 1)), ENTRY.key)
    with pytest.raises(Damaged, match="the most that travel"):
        wire.pack(RECORD, {"kernel.so": bytes(wire.MAX_BYTES)})
    with pytest.raises(Damaged, match="may not travel"):
        wire.pack(RECORD, {"kernel.o": b""})
    with pytest.raises(Damaged, match="more than"):
        wire.unpack(bytes(wire.MAX_BYTES + 1), ENTRY.key)


@pytest.mark.parametrize(
    "files",
    [
        {"kernel.py": ENTRY.files["kernel.py"]},
        ENTRY.files | {"kernel.so": ENTRY.library + b"x"},
        ENTRY.files | {"kernel.so": ENTRY.library[:-1] + b"x"},
    ],
)
def test_other_files_are_refused(files: dict[str, bytes]) -> None:
    with pytest.raises(Damaged):
        wire.unpack(wire.pack(RECORD, files), ENTRY.key)


def test_object_file_does_not_travel() -> None:
    """It is for a process without a linker, and lies in no store; bundles and buckets agree."""
    files = {"kernel.py": ENTRY.files["kernel.py"], "kernel.o": ENTRY.files["kernel.so"]}
    entry = Entry.of(replace(ENTRY.meta, library="kernel.o"), files)
    with pytest.raises(Damaged, match=r"'kernel\.o' may not travel"):
        wire.checked(entry.meta.encode(), entry.files, entry.key)


def test_record_in_other_words_is_refused() -> None:
    """A record that means the same would be another one as soon as it is written again."""
    other = (
        replace(ENTRY.meta, compile_s=1.5)
        .encode()
        .replace(b'"compile_s": 1.5', b'"compile_s": 1.50')
    )

    with pytest.raises(Damaged):
        wire.unpack(wire.pack(other, ENTRY.files), ENTRY.key)


def test_compressing_goes_both_ways() -> None:
    small = wire.compress(PACKED)

    assert len(small) < len(PACKED) // 3
    assert wire.decompress(small) == PACKED
    assert wire.decompress(wire.compress(b"")) == b""


def _frame_without_size() -> bytes:
    writer = zstandard.ZstdCompressor().compressobj()
    return writer.compress(b"abc") + writer.flush()


def _lying_frame() -> bytes:
    """A frame of 64 MiB that says that it holds 4 KiB."""
    frame = bytearray(zstandard.ZstdCompressor().compress(bytes(2**26)))
    assert frame[4] >> 6 == 2  # four bytes of size, behind a byte that tells the window
    frame[6:10] = (4096).to_bytes(4, "little")
    return bytes(frame)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no frame",
        wire.compress(PACKED)[:-1],
        wire.compress(PACKED) + b"x",
        wire.compress(PACKED) + wire.compress(PACKED),
        wire.compress(bytes(wire.MAX_BYTES + 1)),
        _frame_without_size(),
        _lying_frame(),
    ],
)
def test_bombs_and_odd_frames_are_refused(data: bytes) -> None:
    with pytest.raises(Damaged):
        wire.decompress(data)
