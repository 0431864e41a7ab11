# SPDX-License-Identifier: Apache-2.0
"""A fleet's trust documents through changes of root keys, and hosts that go by them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jitgen.cache import Store, trusted
from jitgen.cache.trusted import Trusted
from jitgen.settings import settings
from jitgen.signing import times
from jitgen.signing.keys import PrivateKey
from jitgen.signing.trust import MAX_BYTES, SealedTrust, Trust, TrustedKey, opened

from .remote_stand import entry_of

DAY = timedelta(days=1)
R1, R2, R3, K1, K2, THIEF = (PrivateKey.generate() for _ in range(6))
RECORD = entry_of(1).meta.encode()


def document(
    version: int,
    roots: tuple[PrivateKey, ...] = (R1,),
    signers: tuple[PrivateKey, ...] = (),
    keys: tuple[PrivateKey, ...] = (K1,),
    **changes: Any,
) -> bytes:
    """Return a trust document whose `roots` are its signers, too, where none are named."""
    now = times.now().replace(microsecond=0)
    values: dict[str, Any] = {
        "version": version,
        "issued": now,
        "expires": now + 300 * DAY,
        "roots": tuple(root.public for root in roots),
        "keys": {
            key.keyid: TrustedKey(public=key.public, not_before=now - DAY, not_after=now + DAY)
            for key in keys
        },
    }
    return Trust(**(values | changes)).sealed(*(signers or roots))


STOLEN = {K1.keyid: "stolen"}
V1 = document(1)
V2 = document(2, (R1, R2))
"""The new root arrives; both sign."""
V3 = document(3, (R2,), keys=(K2,), revoked_keys=STOLEN)
"""The old root has gone, and K1 is revoked."""
V4 = document(4, (R2,), keys=(K2,), revoked_keys=STOLEN)


def signed_by(key: PrivateKey) -> bytes:
    """Return the signatures of the entry by `key`, made now."""
    from jitgen.signing import dsse
    from jitgen.signing.statement import PAYLOAD_TYPE, Statement

    statement = Statement.of(RECORD, "a test").encode()
    return dsse.encode([dsse.seal(PAYLOAD_TYPE, statement, key)])


SIGNED = signed_by(K1)


@dataclass
class Host:
    """
    A machine with a root and a configured document.

    Attributes:
        folder: Folder of all files of the host.
        mode: Mode in which its root is opened.
    """

    folder: Path
    mode: str = "rw"

    @property
    def file(self) -> Path:
        """The file of JITGEN_TRUST."""
        return self.folder / "trust.json"

    @property
    def memory(self) -> Path:
        """The file in which the root remembers a trust document."""
        return self.folder / "root" / "v1" / "trust.json"

    @property
    def kept(self) -> SealedTrust:
        """The trust document that the root remembers."""
        return opened(self.memory.read_bytes())

    def configure(self, data: bytes) -> None:
        """Let `data` be the configured document."""
        self.file.unlink(missing_ok=True)
        self.file.write_bytes(data)

    def process(self) -> Trusted:
        """Return what a new process of the host sees."""
        trusted._seen.clear()
        trusted._looked.clear()
        return Store.open(self.folder / "root", mode=self.mode).trusted  # type: ignore[arg-type]


@contextmanager
def hosting(folder: Path, configured: bytes = V1, mode: str = "rw") -> Iterator[Host]:
    """Yield a host in `folder` that is configured with a document, for this process."""
    folder.chmod(0o700)
    host = Host(folder, mode)
    host.configure(configured)
    with settings.scope(trust=host.file, verify="remote"):
        yield host
    trusted._seen.clear()
    trusted._looked.clear()


def is_accepted(process: Trusted) -> bool:
    """Return whether an entry that K1 signed is accepted."""
    return not process.refusal(RECORD, SIGNED)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host that is configured with version 1 and has seen 2 and 3, which revoke K1."""
    with hosting(tmp_path) as found:
        process = found.process()
        assert is_accepted(process)
        process.accept(V2)
        process.accept(V3)
        yield found


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flipped(path: Path) -> None:
    path.write_bytes(re.sub(rb'"sig": ?"', rb"\g<0>AAAA", path.read_bytes()))


def too_large(path: Path) -> None:
    os.truncate(path, MAX_BYTES + 1)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def opened_up(path: Path) -> None:
    path.chmod(0o666)


def strangers(path: Path) -> None:
    os.chown(path, 12345, 12345)


def of_a_stranger(path: Path) -> None:
    path.write_bytes(document(9, (R3,)))


DAMAGE = (emptied, torn, flipped, too_large, folder, link, pipe, opened_up, of_a_stranger)
