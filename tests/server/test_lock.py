# SPDX-License-Identifier: Apache-2.0
"""A service with a lock: it compares its store before it listens, and says what is missing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from jitgen.cache import Store
from jitgen.errors import LockError
from jitgen.plans import configs
from jitgen.plans.lock import locked
from jitgen.runtime.lock import Lock
from jitgen.server.check import checked
from jitgen.server.entry_store import EntryStore
from jitgen.server.lock import require_locked
from jitgen.server.revocations import Revocations
from jitgen.server.service import Service
from jitgen.server.settings import Access, ServiceSettings, Storage
from tests.unit.coverage_fakes import GPU, H200, filled, small
from tests.unit.store_fakes import fake_files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "served"


@pytest.fixture
def lock(tmp_path: Path, root: Path) -> Lock:
    plan, store = small(tmp_path), Store(root, "rw")
    filled(store, configs(plan, GPU, devices=(H200,)))
    found = locked([plan], [GPU], store, (H200,))
    (tmp_path / "jitgen.lock").write_bytes(found.encode())
    return found


def started(tmp_path: Path, root: Path) -> None:
    """Start a service; one that does not start raises."""
    storage = Storage(root=root, state=tmp_path / "state", lock=tmp_path / "jitgen.lock")
    settings = ServiceSettings(store=storage, access=Access(anonymous=("read",)))

    async def run() -> None:
        service = Service(settings)
        try:
            await service.start()
        finally:
            await service.close()

    asyncio.run(run())


def test_a_store_with_every_locked_kernel(tmp_path: Path, root: Path, lock: Lock) -> None:
    (tmp_path / "state").mkdir()
    entries = EntryStore(Store(root, "rw"), Storage(), Revocations(tmp_path / "state", None))

    assert asyncio.run(require_locked(tmp_path / "jitgen.lock", entries)) == lock


def test_it_does_not_start_without_a_kernel(tmp_path: Path, root: Path, lock: Lock) -> None:
    gone = lock.targets[0].kernels[0]
    Store(root, "rw").remove(gone.key)

    with pytest.raises(LockError) as raised:
        started(tmp_path, root)
    said = str(raised.value)
    assert f"{gone.name} is not in {root}; run: JITGEN_CACHE_DIR={root} jitgen prewarm" in said


def test_it_does_not_start_with_other_bytes_or_a_revoked_kernel(
    tmp_path: Path, root: Path, lock: Lock
) -> None:
    first, second, *_ = lock.targets[0].kernels
    store = Store(root, "rw")
    entry = store.read(first.key)
    assert entry is not None
    store.remove(first.key)
    store.publish(entry.meta, {**entry.files, "kernel.so": fake_files(77)["kernel.so"]})
    (tmp_path / "state").mkdir()
    revocations = Revocations(tmp_path / "state", None)
    revocations.add({second.key: "wrong"}, "test")

    with pytest.raises(LockError) as raised:
        started(tmp_path, root)
    assert f"{first.name} has another kernel.so" in str(raised.value)
    assert any(second.name in each and "revoked" in each for each in raised.value.differences)


def test_check_config_says_what_is_missing(tmp_path: Path, root: Path, lock: Lock) -> None:
    file = tmp_path / "service.toml"
    file.write_text(
        f'[access]\nanonymous = ["read"]\n[store]\nroot = "{root}"\n'
        f'lock = "{tmp_path / "jitgen.lock"}"\n'
    )
    assert not [line for line in checked(file)[0] if line.startswith("store.lock")]
    Store(root, "rw").remove(lock.targets[0].kernels[0].key)

    (line,) = [line for line in checked(file)[0] if line.startswith("store.lock")]
    assert "is not in" in line
