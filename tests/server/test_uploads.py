# SPDX-License-Identifier: Apache-2.0
"""Entries of others never take the place of those that the service vouches for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from jitgen.cache import Store
from jitgen.compile import toolchain
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.remote import wire
from jitgen.remote.layout import fetch, push
from jitgen.remote.objects import Objects
from jitgen.runtime.spec import spec_of
from jitgen.server.supervisor import expand
from jitgen.signing.keys import PrivateKey
from jitgen.signing.policy import judge
from tests.server.forging import forged, packed
from tests.service.running import Running
from tests.service.trusting import sealed, trust_in

LAID, SHARED, STRANGE, GIVEN = (
    GroupedGemmConfig(layout="masked", tile=Tile(m=m, n=64, k=128)) for m in (8, 16, 32, 64)
)
PLAN = {
    "problems": [
        {
            "layout": "masked",
            "dtype": "e4m3",
            "scale_granularity": "block128",
            "groups": 2,
            "rows_per_group": [8],
            "matrix": {"n": 64, "k": 128},
        }
    ]
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One that keeps uploads, and shares a folder; forged entries lie in its root and there."""
    folder = tmp_path_factory.mktemp("uploads")
    bucket = f"file://{folder}/shared"
    running = Running(
        folder / "service",
        {
            "uploads": {"accept": "unattested"},
            "replicas": {"shared": bucket},
            "signing": {"trust": f"{folder}/trust.json"},
        },
    )
    (folder / "trust.json").write_bytes(sealed(running.key))
    laid = forged(LAID)
    assert not Store(running.folder / "cache", "rw").publish(laid.meta, laid.files).why_private
    place = Objects(bucket, is_patient=True, is_written=True)
    push(place, forged(SHARED))
    push(place, forged(STRANGE, PrivateKey.generate()))
    running.start()
    yield running
    running.stop()


def path(config: Any) -> str:
    return f"/v1/entries/{spec_of(config, Arch.CPU).key}"


def is_own(service: Running, data: bytes, config: Any) -> bool:
    """Return whether an answer is the service's build of a kernel, signed by it."""
    found = wire.unpack(data, spec_of(config, Arch.CPU).key)
    verdict = judge(found.record, found.signatures, trust_in(service.key))
    return bool(verdict) and found.files["kernel.so"] != b"malicious"


@pytest.mark.parametrize("config", [LAID, SHARED, STRANGE, GIVEN])
def test_a_forged_entry_keeps_no_client_from_a_kernel(service: Running, config: Any) -> None:
    """
    One that a client gave, or that lay in the root or the shared folder, answered for the compile:
    every client refused it, and none could have the kernel, for ever.
    """
    key = spec_of(config, Arch.CPU).key
    if config is GIVEN:
        put = service.request("PUT", path(config), "write", body=packed(forged(config)))
        assert (put.status, put.json()["attested"]) == (201, False)
    assert service.request("GET", path(config)).status == 404
    assert service.request("HEAD", path(config)).status == 404
    missing = service.request("POST", "/v1/entries:missing", json={"keys": [key]})
    assert missing.json() == {"missing": [key]}

    assert is_own(service, service.compile(config).data, config)
    assert is_own(service, service.request("GET", path(config)).data, config)
    states = [
        e["outcome"] for e in service.events() if e["event"] == "job over" and e["key"] == key
    ]
    assert states == ["compiled"]
    place = Objects(f"file://{service.folder.parent}/shared", is_patient=True, is_written=True)
    shared = fetch(place, key, lambda *_: "")
    assert shared.files["kernel.so"] != b"malicious", "others are given the right one"


def test_what_was_in_the_way_is_set_aside_and_told(service: Running) -> None:
    assert service.compile(LAID).status == 200
    key = spec_of(LAID, Arch.CPU).key

    assert [e["key"] for e in service.events() if e["event"] == "set aside"] == [key]
    store = Store(service.folder / "cache", "ro")
    assert key in {damage.key for damage in store.quarantined()}


def test_a_client_that_asks_for_uploads_gets_them(service: Running) -> None:
    """By name, without a signature, and only as long as the service has no build of its own."""
    config = GroupedGemmConfig(layout="masked", tile=Tile(m=8, n=32, k=128))
    given = forged(config, PrivateKey.generate())
    put = service.request("PUT", path(config), "write", body=packed(given))
    again = service.request("PUT", path(config), "write", body=packed(given))
    asked = service.request("GET", f"{path(config)}?unattested=1")
    found = wire.unpack(asked.data, given.key)

    assert (put.status, again.status) == (201, 200)
    assert again.json()["state"] == "kept before"
    assert (found.files["kernel.so"], found.signatures) == (b"malicious", b"")
    assert service.compile(config).status == 200
    asked = service.request("GET", f"{path(config)}?unattested=1")
    assert is_own(service, asked.data, config)
    put = service.request("PUT", path(config), "write", body=packed(given))
    assert (put.status, put.json()["state"]) == (200, "kept before")


def test_a_prewarm_does_not_take_an_upload_for_the_kernel(service: Running) -> None:
    """It said ``cached``, and nothing was compiled."""
    planned = expand({"plan": PLAN, "arch": "cpu"})["configs"]
    configs = [GroupedGemmConfig.from_json(each) for each in planned]
    for config in configs:
        service.request("PUT", path(config), "write", body=packed(forged(config)))
    body = {"plan": PLAN, "arch": "cpu", "toolchain": toolchain.versions()}
    begun = service.request("POST", "/v1/prewarm", json=body)
    events = {"Accept": "text/event-stream"}
    text = service.request("GET", begun.headers["Location"], headers=events).data.decode()
    rows = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]

    assert [row["state"] for row in rows if "kernel" in row] == ["compiled"] * len(configs)
    for config in configs:
        assert is_own(service, service.request("GET", path(config)).data, config)
