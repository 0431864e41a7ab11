# SPDX-License-Identifier: Apache-2.0
"""What is revoked is not made anew, though the compiler makes the same bytes again."""

from __future__ import annotations

import asyncio
import base64
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jitgen.cache import Entry, Store
from jitgen.server.entry_store import EntryStore
from jitgen.server.jobs import Job, JobFailed, Order
from jitgen.server.leases import Leases
from jitgen.server.log import Log
from jitgen.server.metrics import Metrics
from jitgen.server.revocations import Revocations
from jitgen.server.settings import Replicas, Storage
from jitgen.server.work import Worker
from tests.unit.store_fakes import fake_files, fake_meta

ENTRY = Entry.of(fake_meta(1), fake_files(1))


class Bench:
    """A worker whose compiler, signer and gate are fakes that say when they are asked."""

    def __init__(self, folder: Path, revoked: dict[str, str], refusal: str = "") -> None:
        self.done: list[str] = []
        self.refusal = refusal
        folder.chmod(0o700)
        metrics, log = Metrics(), Log(io.StringIO())
        revocations = Revocations(folder, None)
        revocations.add(revoked, "admin")
        fakes: Any = {
            "pools": {"default": SimpleNamespace(compile=self._compile, python=None)},
            "signer": SimpleNamespace(of=self._sign),
            "validator": SimpleNamespace(refusal=self._gate),
        }
        self.entry_store = EntryStore(
            Store.open(folder / "root", mode="rw"), Storage(), revocations
        )
        self.worker = Worker(
            **fakes,
            entry_store=self.entry_store,
            leases=Leases(Replicas(), None, metrics, log),
            metrics=metrics,
            log=log,
            failures=cast("Any", None),
        )

    async def _compile(self, *_: Any) -> dict[str, Any]:
        self.done.append("compiled")
        files = {name: base64.b64encode(data).decode() for name, data in ENTRY.files.items()}
        return {"kind": "ok", "result": {"meta": ENTRY.meta.encode().decode(), "files": files}}

    async def _sign(self, record: bytes) -> bytes:
        self.done.append("signed")
        return b""

    async def _gate(self, *_: Any) -> str:
        self.done.append("gate")
        return self.refusal


def order() -> Order:
    meta = ENTRY.meta
    named = {"key": meta.key, "name": meta.name, "arch": meta.arch, "pool": "default"}
    return Order(**named, config=meta.config, token="", trace="")


@pytest.mark.parametrize(
    ("digest", "is_compiled"),
    [(ENTRY.key, False), (ENTRY.meta.files["kernel.so"]["sha256"], True)],
    ids=["the key", "the library"],
)
def test_revoked_is_not_signed_again(tmp_path: Path, digest: str, is_compiled: bool) -> None:
    """A prewarm of it was compiled, signed, shared, and then reported as a bug."""
    bench = Bench(tmp_path, {digest: "wrong numbers"})

    with pytest.raises(JobFailed, match="revoked: wrong numbers") as failed:
        asyncio.run(bench.worker(Job(order())))

    assert failed.value.code == "E_REVOKED"
    assert bench.done == (["compiled"] if is_compiled else [])
    assert bench.entry_store.store.read(ENTRY.key) is None


def test_whatever_is_kept_passes_the_gate_first(tmp_path: Path) -> None:
    """What was compiled to rebuild an upload was signed without it."""
    bench = Bench(tmp_path, {}, refusal="it adds up badly")

    with pytest.raises(JobFailed, match="does not pass the gate: it adds up badly"):
        asyncio.run(bench.worker.sign_and_publish(ENTRY, order()))

    assert bench.done == ["gate"]
    assert bench.entry_store.store.read(ENTRY.key) is None
