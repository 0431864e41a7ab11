# SPDX-License-Identifier: Apache-2.0
"""What a service writes down, it can read at its next start."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jitgen.cache.failures import failure
from jitgen.server import failures as failures_module
from jitgen.server import leases, revocations, status_handlers
from jitgen.server.config_errors import MAX_NAME
from jitgen.server.request import HTTPError
from jitgen.server.revocations import MOST, Revocations, TooMany
from jitgen.server.settings import parse_settings
from jitgen.signing.statement import MAX_BUILDER

OPEN = {"access": {"anonymous": ["read"]}}


def digests(first: int, count: int) -> dict[str, str]:
    return {f"{number:064x}": "wrong numbers" for number in range(first, first + count)}


def test_revocations_that_a_start_could_not_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were written, answered with 200, and the service did not start any more."""
    monkeypatch.setattr(revocations, "_MAX_BYTES", 2000)
    found = Revocations(tmp_path, None)
    found.add(digests(0, 10), "admin")
    with pytest.raises(TooMany, match="2000 are the most that a start reads; revoke by the trust"):
        found.add(digests(10, 10), "admin")

    assert list(found.all()) == list(Revocations(tmp_path, None).all()) == list(digests(0, 10))
    assert found.add(digests(5, 6), "admin") == 1, "what fits is taken still"


def test_the_most_that_requests_can_ask_for_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reasons of 200 characters, six bytes each as they are written."""
    monkeypatch.setattr(revocations, "_MAX_BYTES", 2**22)
    found, rows = Revocations(tmp_path, None), 0
    with suppress(TooMany):
        while True:
            new = dict.fromkeys(digests(rows, MOST), "\u00e9" * 200)
            rows += found.add(new, "a" * MAX_NAME)

    assert len(Revocations(tmp_path, None).all()) == rows >= 2 * MOST


def test_a_full_list_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do instead."""
    monkeypatch.setattr(revocations, "_MAX_BYTES", 2000)
    full: Any = SimpleNamespace(
        entry_store=SimpleNamespace(revocations=Revocations(tmp_path, None)),
        revoking=asyncio.Lock(),
    )

    async def body() -> bytes:
        return json.dumps({"revoked": digests(0, 50)}).encode()

    request: Any = SimpleNamespace(body=body, token=SimpleNamespace(name="admin"))
    with pytest.raises(HTTPError, match="revoke by the trust document") as refused:
        asyncio.run(status_handlers.revoke(full, request))

    assert (refused.value.status, refused.value.code) == (507, "E_FULL")


@pytest.mark.parametrize(
    "settings",
    [
        {"signing": {"builder": "b" * (MAX_NAME + 1)}},
        {"replicas": {"name": "r" * (MAX_NAME + 1)}},
        {"toolchains": [{"name": "t\n"}]},
    ],
)
def test_names_fit_where_they_are_written(settings: dict[str, object]) -> None:
    """A long one was reported by the first compile, or never: such a lease is not readable."""
    _, lines = parse_settings(OPEN | settings)

    assert len(lines) == 1
    assert "must be a text of 1 to 200 printable characters" in lines[0]
    assert MAX_NAME <= MAX_BUILDER
    assert 6 * MAX_NAME + 100 < leases.MAX_BYTES


def test_remembered_failures_are_bounded_at_the_start_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of an earlier run were taken over whole."""
    monkeypatch.setattr(failures_module, "_MOST", 10)
    rows = {key: failure("kernel", "no", 100.0) for key in digests(0, 30)}
    store: Any = SimpleNamespace(index=SimpleNamespace(failures=lambda: rows))
    found = failures_module.Failures(store, 100.0)
    asyncio.run(found.load())

    assert len(found) == 10
