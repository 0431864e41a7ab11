# SPDX-License-Identifier: Apache-2.0
"""Keys that are replaced, revoked or broken while a service runs, and what becomes of entries."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from jitgen.cache import Store
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.remote import wire
from jitgen.runtime.spec import spec_of
from jitgen.signing import dsse
from jitgen.signing.keys import PrivateKey
from tests.server.forging import signed
from tests.server.story import Story
from tests.service.test_trouble import processes, until

pytestmark = pytest.mark.service

CONFIG = GroupedGemmConfig(layout="masked", tile=Tile(m=8, n=64, k=128))
LATER = GroupedGemmConfig(layout="masked", tile=Tile(m=16, n=64, k=128))


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    made = Story(tmp_path)
    yield made
    if made.running.process is not None and made.running.process.poll() is None:
        made.running.stop()


def test_own_entries_are_signed_again_when_the_key_is_replaced(story: Story) -> None:
    """
    A revoked key's entries were handed out as they were, from memory and from the disk: 200, and
    refused by every client.
    """
    running, new = story.running, PrivateKey.generate()
    story.trusts(running.key)
    running.start()
    assert story.accepts(running.compile(CONFIG).data, CONFIG) == ""
    story.trusts(running.key, new, revoked_keys={running.key.keyid: "stolen"})
    running.reload()
    assert "is revoked by trust document 2" in running.request("GET", "/readyz", "").data.decode()
    assert "is revoked" in story.accepts(story.get(CONFIG), CONFIG)

    story.signs_with(new)
    running.reload()
    assert running.request("GET", "/readyz", "").status == 200
    assert story.accepts(story.get(CONFIG), CONFIG) == ""
    assert story.accepts(running.compile(CONFIG).data, CONFIG) == ""
    assert story.compiled(CONFIG) == 1
    assert [e["keyid"] for e in running.events() if e["event"] == "signed again"] == [new.keyid]
    running.stop()
    running.start()
    assert story.accepts(story.get(CONFIG), CONFIG) == ""


def test_what_is_disowned_is_compiled_again(story: Story) -> None:
    """``revoke --before`` disowns what is old: a new signature would bring it back."""
    running = story.running
    story.trusts(running.key)
    running.start()
    assert running.compile(CONFIG).status == 200
    time.sleep(1.1)
    story.trusts(running.key, min_signed_at=timedelta())
    running.reload()
    time.sleep(1)

    assert running.request("GET", f"/v1/entries/{spec_of(CONFIG, Arch.CPU).key}").status == 404
    assert story.accepts(running.compile(CONFIG).data, CONFIG) == ""
    assert story.compiled(CONFIG) == 2


def test_what_changes_on_the_disk_is_handed_out(story: Story) -> None:
    """Memory had the entry as it was once read, until the service ended."""
    running, other = story.running, PrivateKey.generate()
    story.trusts(running.key)
    running.start()
    assert running.compile(CONFIG).status == 200
    store, key = Store(running.folder / "cache", "rw"), spec_of(CONFIG, Arch.CPU).key
    entry = store.read(key)
    assert entry is not None
    store.add_signatures(key, signed(entry.meta, other))
    until(lambda: len(dsse.decode(wire.unpack(story.get(CONFIG), key).signatures)) == 2)
    store.remove(key)
    until(lambda: running.request("GET", f"/v1/entries/{key}").status == 404)

    assert running.compile(CONFIG).status == 200
    assert story.compiled(CONFIG) == 2


def test_a_key_that_cannot_be_read_leaves_the_one_before(story: Story) -> None:
    """SIGHUP ended the signer first, and the service could sign nothing any more."""
    running = story.running
    story.trusts(running.key)
    running.start()
    (running.folder / "key.pem").write_text("half of a")
    running.reload()
    assert any(e["event"] == "signer not started" for e in running.events())
    assert running.request("GET", "/readyz", "").status == 200
    assert story.accepts(running.compile(LATER).data, LATER) == ""


def test_a_service_that_cannot_sign_is_not_ready(story: Story) -> None:
    """It was, and each compile failed."""
    running = story.running
    story.trusts(running.key)
    running.start()
    file = running.folder / "key.pem"
    text = file.read_text()
    file.write_text("half of a")
    (signer,) = processes(running, "jitgen.server.signer")
    os.kill(signer, signal.SIGKILL)
    until(lambda: running.request("GET", "/readyz", "").status == 503)
    ready = running.request("GET", "/readyz", "")
    assert "nothing can be signed" in ready.json()["reason"]
    file.write_text(text)
    running.reload()
    assert running.request("GET", "/readyz", "").status == 200
