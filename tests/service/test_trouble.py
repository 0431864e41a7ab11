# SPDX-License-Identifier: Apache-2.0
"""Processes killed at any moment, a full disk, rotation: a service that goes on, and never lies."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jitgen.compile.processes import children_of, descendants_of
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.remote import wire
from jitgen.runtime.spec import spec_of
from jitgen.server.tokens import new_token
from jitgen.signing.keys import PrivateKey
from jitgen.signing.policy import judge
from tests.service.running import Running
from tests.service.trusting import sealed, trust_in

pytestmark = pytest.mark.service

SIZES = [(m, n) for n in (32, 64, 128) for m in (8, 16, 32, 64)]
CONFIGS = [GroupedGemmConfig(layout="ragged", tile=Tile(m=m, n=n, k=128)) for m, n in SIZES]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    service = Running(tmp_path / "service")
    service.start()
    yield service
    if service.process is not None and service.process.poll() is None:
        service.stop()


def processes(running: Running, what: str) -> list[int]:
    """Return the service's children whose command line holds `what`."""
    assert running.process is not None
    found = []
    for pid in children_of(running.process.pid):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode("latin-1")
        if what in command:
            found.append(pid)
    return found


def until(is_so: Any, seconds: float = 60) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.02)


def is_signed(running: Running, answer: Any, config: GroupedGemmConfig) -> bool:
    packed = wire.unpack(answer.data, spec_of(config, Arch.CPU).key)
    return bool(judge(packed.record, packed.signatures, trust_in(running.key)))


def test_killed_signer_is_started_anew(running: Running) -> None:
    """What is compiled after its death is signed, too."""
    (signer,) = processes(running, "jitgen.server.signer")
    os.kill(signer, signal.SIGKILL)
    answer = running.compile(CONFIGS[0])

    assert answer.status == 200
    assert is_signed(running, answer, CONFIGS[0])
    assert processes(running, "jitgen.server.signer") != [signer]


def test_killed_foreman_costs_a_retry(running: Running) -> None:
    """The kernels under way are compiled by the next one."""
    answers: dict[int, Any] = {}

    def ask(number: int) -> None:
        answers[number] = running.compile(CONFIGS[number])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: any(e["event"] == "compile" for e in running.events()))
    (supervisor,) = processes(running, "jitgen.server.supervisor")
    os.kill(supervisor, signal.SIGKILL)
    for thread in threads:
        thread.join(120)

    assert {answer.status for answer in answers.values()} == {200}
    assert any(e["event"] == "pool ended" for e in running.events())


def test_killed_worker_fails_its_kernel_only(running: Running) -> None:
    """It is not remembered: the next to ask gets the kernel."""
    (supervisor,) = processes(running, "jitgen.server.supervisor")
    statuses = []

    def ask() -> None:
        statuses.append(running.compile(CONFIGS[0]).status)

    thread = threading.Thread(target=ask)
    thread.start()
    until(lambda: descendants_of(supervisor))
    for pid in descendants_of(supervisor):
        os.kill(pid, signal.SIGKILL)
    thread.join(120)

    assert statuses == [503]
    assert running.compile(CONFIGS[0]).status == 200


def test_killed_server_leaves_nothing_behind(running: Running) -> None:
    """No process outlives it, no half entry is served, and the next start goes on."""
    assert running.process is not None
    assert running.compile(CONFIGS[0]).status == 200
    family = descendants_of(running.process.pid)
    running.request("POST", "/v1/compile", json=_body(CONFIGS[1]))
    until(lambda: len(descendants_of(running.process.pid)) > len(family))  # type: ignore[union-attr]
    family = descendants_of(running.process.pid)
    running.stop(signal.SIGKILL)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))
    running.start()
    answers = [running.compile(config) for config in CONFIGS[:2]]

    assert [answer.status for answer in answers] == [200, 200]
    assert all(is_signed(running, a, c) for a, c in zip(answers, CONFIGS, strict=False))
    compiled = [e["key"] for e in running.events() if e["event"] == "compile"]
    assert compiled.count(spec_of(CONFIGS[0], Arch.CPU).key) == 1


def test_a_shutdown_finishes_what_is_compiled(running: Running) -> None:
    """Who waits gets the kernel; the process ends by itself with 0."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(running.compile(CONFIGS[0])))
    thread.start()
    until(lambda: any(e["event"] == "compile" for e in running.events()))
    code = running.stop(signal.SIGTERM)
    thread.join(60)

    assert code == 0
    assert answers[0].status == 200


def test_tokens_and_trust_are_read_again(running: Running, tmp_path: Path) -> None:
    """A rotated token holds at once; a file with a mistake changes nothing, and is told."""
    assert running.process is not None
    file = running.folder / "tokens.toml"
    before = file.read_text()
    secret, table = new_token("fresh", ("read",))
    file.write_text(table)
    running.process.send_signal(signal.SIGHUP)
    running.tokens["fresh"] = secret
    until(lambda: running.request("GET", "/v1/info", "fresh").status == 200)

    assert running.request("GET", "/v1/info", "read").status == 401
    file.write_text("[[token]\n")
    running.process.send_signal(signal.SIGHUP)
    until(lambda: any(e["event"] == "tokens not read" for e in running.events()))
    assert running.request("GET", "/v1/info", "fresh").status == 200
    file.write_text(before)
    running.process.send_signal(signal.SIGHUP)
    until(lambda: running.request("GET", "/v1/info", "read").status == 200)


def test_a_trust_document_is_read_again_and_never_an_older_one(tmp_path: Path) -> None:
    """What a newer one revokes is gone at once; an older one in its place changes nothing."""
    file = tmp_path / "trust.json"
    service = Running(tmp_path / "service", {"signing": {"trust": str(file)}})
    key = spec_of(CONFIGS[0], Arch.CPU).key
    file.write_bytes(sealed(service.key))
    service.start()
    try:
        assert service.compile(CONFIGS[0]).status == 200
        first = file.read_bytes()
        file.write_bytes(sealed(service.key, version=2, revoked={key: "bad"}))
        os.kill(service.process.pid, signal.SIGHUP)  # type: ignore[union-attr]
        until(lambda: service.request("GET", f"/v1/entries/{key}").status == 410)
        file.write_bytes(first)
        os.kill(service.process.pid, signal.SIGHUP)  # type: ignore[union-attr]
        until(lambda: any(e["event"] == "trust not read" for e in service.events()))

        assert service.request("GET", f"/v1/entries/{key}").status == 410
        assert service.request("GET", "/v1/trust").data != first
    finally:
        service.stop()


def test_a_rotated_signing_key_signs_from_then_on(running: Running) -> None:
    """SIGHUP is enough; what the old key signed stays as it is."""
    assert running.process is not None
    old = running.compile(CONFIGS[0])
    file = running.folder / "key.pem"
    file.unlink()
    key = PrivateKey.generate()
    key.save(file)
    running.process.send_signal(signal.SIGHUP)
    until(lambda: running.request("GET", "/v1/info").json()["signing"]["keyid"] == key.keyid)
    new = wire.unpack(running.compile(CONFIGS[1]).data, spec_of(CONFIGS[1], Arch.CPU).key)

    assert judge(new.record, new.signatures, trust_in(key))
    assert not judge(new.record, new.signatures, trust_in(running.key))
    assert is_signed(running, old, CONFIGS[0])


def test_a_full_disk_costs_the_cache_and_no_kernel(tmp_path: Path) -> None:
    """Who asks is served from memory, readyz tells why, and there is no half entry."""
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(mount)],
        check=False,
        capture_output=True,
    )
    if made.returncode:
        pytest.skip(f"nothing can be mounted here: {made.stderr.decode().strip()}")
    service = Running(
        tmp_path / "service",
        {"store": {"root": f"{mount}/cache", "state": str(tmp_path / "state")}},
    )
    try:
        service.start()
        fill(mount / "ballast")
        answer = service.compile(CONFIGS[0])

        assert answer.status == 200
        assert is_signed(service, answer, CONFIGS[0])
        key = spec_of(CONFIGS[0], Arch.CPU).key
        assert service.request("GET", f"/v1/entries/{key}").status == 200
        assert any(e["event"] == "not kept" for e in service.events())
        until(lambda: service.request("GET", "/readyz").status == 503)
        (mount / "ballast").unlink()
        until(lambda: service.request("GET", "/readyz").status == 200)
        assert service.compile(CONFIGS[1]).status == 200
        assert list(mount.glob("cache/v1/entries/*/*"))
    finally:
        if service.process is not None and service.process.poll() is None:
            service.stop()
        subprocess.run(["umount", "-l", str(mount)], check=False)


def fill(path: Path) -> None:
    """Write a file until there is no room for another page."""
    with path.open("wb", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(bytes(4096))


def _body(config: GroupedGemmConfig) -> dict[str, Any]:
    from tests.service.running import order

    return order(config)
