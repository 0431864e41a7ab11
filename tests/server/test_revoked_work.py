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
from jitgen.server.jobs import Job, JobFailed, Order
from jitgen.server.leases import Leases
from jitgen.server.log import Log
from jitgen.server.metrics import Metrics
from jitgen.server.revocations import Revocations
from jitgen.server.settings import Replicas, Storage
from jitgen.server.shelf import Shelf
from jitgen.server.work import Worker
from tests.unit.store_fakes import fake_files, fake_meta

ENTRY = Entry.of(fake_meta(1), fake_files(1))


@pytest.mark.parametrize(
    ("digest", "is_compiled"),
    [(ENTRY.key, False), (ENTRY.meta.files["kernel.so"]["sha256"], True)],
    ids=["the key", "the library"],
)
def test_revoked_is_not_signed_again(tmp_path: Path, digest: str, is_compiled: bool) -> None:
    """A prewarm of it was compiled, signed, shared, and then said to be a mistake of ours."""
    done: list[str] = []

    async def compile_(*_: Any) -> dict[str, Any]:
        done.append("compiled")
        files = {name: base64.b64encode(data).decode() for name, data in ENTRY.files.items()}
        return {"kind": "ok", "result": {"meta": ENTRY.meta.encode().decode(), "files": files}}

    async def sign(record: bytes) -> bytes:
        done.append("signed")
        return b""

    async def passed(*_: Any) -> str:
        return ""

    tmp_path.chmod(0o700)
    metrics, log = Metrics(), Log(io.StringIO())
    revocations = Revocations(tmp_path, None)
    revocations.add({digest: "wrong numbers"}, "admin")
    fakes: Any = {
        "pools": {"default": SimpleNamespace(compile=compile_, python=None)},
        "signatures": SimpleNamespace(of=sign),
        "gate": SimpleNamespace(refusal=passed),
    }
    shelf = Shelf(Store.open(tmp_path / "root", mode="rw"), Storage(), revocations)
    worker = Worker(
        **fakes,
        shelf=shelf,
        leases=Leases(Replicas(), None, metrics, log),
        metrics=metrics,
        log=log,
        failures=cast("Any", None),
    )
    meta = ENTRY.meta
    order = Order(
        key=meta.key,
        name=meta.name,
        arch=meta.arch,
        config=meta.config,
        pool="default",
        token="",
        trace="",
    )

    with pytest.raises(JobFailed, match="revoked: wrong numbers") as failed:
        asyncio.run(worker(Job(order)))

    assert failed.value.code == "E_REVOKED"
    assert done == (["compiled"] if is_compiled else [])
    assert shelf.store.read(ENTRY.key) is None
