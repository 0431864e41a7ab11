# SPDX-License-Identifier: Apache-2.0
"""
The bucket or folder that services share: leases, and entries in the layout of remote tiers.

Any process with write access can put anything there. A service with a trust document therefore
takes only entries whose signatures the document accepts; clients check them again in any case.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from jitgen.cache import Damaged, Entry
from jitgen.errors import SettingError
from jitgen.remote import layout
from jitgen.remote.objects import Objects
from jitgen.remote.outcomes import Corrupt, NotFound, Untrusted
from jitgen.server.revocations import Revocations
from jitgen.signing.policy import judge

MAX_BYTES = 4096
"""Largest lease; an ordinary one has a hundred bytes."""


def check_url(url: str) -> None:
    """Raise SettingError unless `url` is the URL of an object store, or empty."""
    if not url:
        return
    parts = urlsplit(url)
    path = parts.path.strip("/")
    wrong = {
        "s3": "it must name a bucket, as s3://bucket/prefix" * (not parts.netloc),
        "gs": "it must name a bucket, as gs://bucket/prefix" * (not parts.netloc),
        "az": "it must name a container, as az://account/container" * (not (parts.netloc and path)),
        "file": "it must name a folder by its absolute path, as file:///shared/kernels"
        * bool(parts.netloc or not path),
    }
    if parts.scheme not in wrong:
        known = ", ".join(f"{scheme}://" for scheme in wrong)
        raise SettingError(f"replicas.shared: {url} is no URL of a store; allowed: {known}")
    if wrong[parts.scheme]:
        raise SettingError(f"replicas.shared: {url} is no store: {wrong[parts.scheme]}")


class SharedBucket:
    """
    A shared bucket or folder. Its methods block and raise as `jitgen.remote.objects.Objects`.

    Args:
        url: Its URL.
        revocations: The revocations, whose trust document decides which entries are accepted.
        refusal: Decides that instead, if given.
    """

    def __init__(
        self, url: str, revocations: Revocations, refusal: layout.Judge | None = None
    ) -> None:
        self._patient = Objects(url, is_patient=True)
        # A request waits for everything but the final upload. A folder may have to be created.
        self._objects = self._patient if url.startswith("file:") else Objects(url)
        self._revocations = revocations
        self._refusal = refusal

    def create(self, name: str, data: bytes) -> bool:
        """Write an object unless there is one; returns whether there was none."""
        return self._objects.create(name, data)

    def write(self, name: str, data: bytes) -> None:
        """Write an object."""
        self._objects.replace(name, data)

    def read(self, name: str) -> bytes | None:
        """Return an object; None where there is none."""
        try:
            return self._objects.read(name, MAX_BYTES)
        except NotFound:
            return None

    def remove(self, name: str) -> None:
        """Remove an object, if there is one."""
        self._objects.remove(name)

    def entry(self, key: str) -> Entry | None:
        """Return entry `key`, every digest checked; None if there is no accepted one."""
        try:
            found = layout.fetch(self._objects, key, self._judge)
        except (NotFound, Untrusted, Corrupt):
            return None
        return Entry(key=key, meta=found.meta, files=found.files, signatures=found.signatures)

    def keep(self, entry: Entry) -> None:
        """
        Upload an entry with its signatures, unless the bucket has an accepted one; raises
        ValueError if it must not leave the host or is too large.
        """
        try:
            layout.push(self._patient, entry, replaces=self.entry(entry.key) is None)
        except Damaged as error:
            raise ValueError(f"the entry may not travel: {error}") from error

    def _judge(self, record: bytes, signatures: bytes) -> str:
        if self._refusal is not None:
            return self._refusal(record, signatures)
        trust = self._revocations.trust
        return "" if trust is None else judge(record, signatures, trust.trust).reason


def open_bucket(
    url: str, revocations: Revocations, refusal: layout.Judge | None = None
) -> SharedBucket | None:
    """Return the bucket at `url`, None for an empty URL; raises SettingError for a wrong one."""
    check_url(url)
    return SharedBucket(url, revocations, refusal) if url else None
