# SPDX-License-Identifier: Apache-2.0
"""A service whose trust document and key change while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jitgen.config import Arch
from jitgen.remote import wire
from jitgen.runtime.spec import spec_of
from jitgen.signing.keys import PrivateKey
from jitgen.signing.policy import judge
from jitgen.signing.trust import opened
from tests.service.running import Running
from tests.service.trusting import sealed


class Story:
    """One service whose trust document and key change."""

    def __init__(self, folder: Path) -> None:
        self.trust = folder / "trust.json"
        self.running = Running(folder / "service", {"signing": {"trust": str(self.trust)}})
        self.version = 0

    def trusts(self, *keys: PrivateKey, **changes: Any) -> None:
        """Put the next trust document in place."""
        self.version += 1
        self.trust.write_bytes(sealed(*keys, version=self.version, **changes))

    def signs_with(self, key: PrivateKey) -> None:
        """Put another key in place."""
        file = self.running.folder / "key.pem"
        file.unlink()
        key.save(file)

    def accepts(self, data: bytes, config: Any) -> str:
        """Return why a client that has the document refuses an answer; empty if it does not."""
        found = wire.unpack(data, spec_of(config, Arch.CPU).key)
        return judge(found.record, found.signatures, opened(self.trust.read_bytes()).trust).reason

    def get(self, config: Any) -> bytes:
        answer = self.running.request("GET", f"/v1/entries/{spec_of(config, Arch.CPU).key}")
        assert answer.status == 200, answer.data
        return answer.data

    def compiled(self, config: Any) -> int:
        key = spec_of(config, Arch.CPU).key
        return sum(e["event"] == "compile" and e["key"] == key for e in self.running.events())
