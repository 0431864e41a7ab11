# SPDX-License-Identifier: Apache-2.0
"""A thousand sockets that say nothing, and hundreds of streams that are not read."""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import urllib3

from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.runtime.spec import spec_of
from tests.service.running import Running, order, resident_bytes
from tests.service.test_listeners import certificate
from tests.service.test_trouble import processes, until

pytestmark = pytest.mark.service

SOCKETS, STREAMS = 1000, 300
MOST_GROWN = 64 * 2**20
CONFIG = GroupedGemmConfig(layout="ragged", tile=Tile(m=16, n=64, k=128))
SLOW = GroupedGemmConfig(layout="ragged", tile=Tile(m=8, n=32, k=128))


@pytest.fixture(autouse=True)
def descriptors() -> None:
    """As many as these tests open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    service = Running(tmp_path / "service", {"log": {"requests": "errors"}})
    service.start()
    assert service.compile(CONFIG).status == 200
    yield service
    service.stop(signal.SIGKILL)


@contextmanager
def crowd(service: Running, count: int, said: bytes = b"") -> Iterator[list[socket.socket]]:
    """Hold so many sockets that have sent `said`, and never read."""
    host, port = service.url.partition("://")[2].split(":")
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            client = stack.enter_context(socket.create_connection((host, int(port)), 10))
            with suppress(ConnectionError):
                client.sendall(said)
            found.append(client)
        yield found


def head(service: Running, path: str, scope: str, *lines: str) -> bytes:
    said = [f"GET {path} HTTP/1.1", "Host: a", f"Authorization: Bearer {service.tokens[scope]}"]
    return "\r\n".join([*said, *lines, "", ""]).encode()


def asked(service: Running, rounds: int = 5) -> tuple[Counter[tuple[str, int]], float]:
    """Return how often each path had which status, asked by new clients, and the longest time."""
    counts: Counter[tuple[str, int]] = Counter()
    key = spec_of(CONFIG, Arch.CPU).key
    paths = {"/livez": "", "/readyz": "", "/metrics": "read", f"/v1/entries/{key}": "read"}
    longest = 0.0
    for _ in range(rounds):
        service.http.clear()
        for path, scope in paths.items():
            begin = time.monotonic()
            answer = service.request("GET", path, scope, timeout=10)
            longest = max(longest, time.monotonic() - begin)
            counts[path.partition(key)[0], answer.status] += 1
    return counts, longest


def all_served(rounds: int = 5) -> dict[tuple[str, int], int]:
    return {(path, 200): rounds for path in ("/livez", "/readyz", "/metrics", "/v1/entries/")}


@pytest.mark.parametrize(
    "said",
    [b"", b"\r\n", b"POST /v1/compile HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc"],
    ids=["nothing", "an empty line", "a body without an end"],
)
def test_sockets_that_say_nothing(tmp_path: Path, said: bytes) -> None:
    """
    A thousand of one address, and twice as many as there are places: health and metrics answer,
    others are served, a swarm too, and memory stays. 310 of them gave 503 to all, /livez too.
    """
    service = Running(
        tmp_path / "service",
        {"limits": {"connections": SOCKETS // 2}, "log": {"requests": "errors"}},
    )
    service.start()
    try:
        assert service.compile(CONFIG).status == 200
        assert service.process is not None
        before = resident_bytes(service.process.pid)
        with crowd(service, SOCKETS, said):
            counts, longest = asked(service)
            assert counts == all_served()
            with ThreadPoolExecutor(32) as threads:
                swarm = list(threads.map(lambda _: fresh(service), range(320)))
            assert Counter(swarm) == {200: 320}
            grown = resident_bytes(service.process.pid) - before
        print(
            f"{SOCKETS} sockets: the longest answer {longest:.3f} s, {grown / 2**20:.1f} MiB more"
        )
        assert grown < MOST_GROWN
    finally:
        service.stop()


def fresh(service: Running) -> int:
    """Return the status of one GET of a client of its own."""
    key = spec_of(CONFIG, Arch.CPU).key
    headers = {"Authorization": f"Bearer {service.tokens['read']}"}
    with urllib3.PoolManager(retries=False, timeout=20) as http:
        return http.request("GET", f"{service.url}/v1/entries/{key}", headers=headers).status


def test_streams_without_a_reader(running: Running) -> None:
    """
    300 of one token, on a kernel that does not come: a hundred are given, the others are told 429;
    health and metrics answer, and others are served, beside a thousand sockets that say nothing.
    """
    assert running.process is not None
    (supervisor,) = processes(running, "jitgen.server.supervisor")
    assert running.request("POST", "/v1/compile", json=order(SLOW)).status == 202
    os.kill(supervisor, signal.SIGSTOP)  # so that the kernel stays under way for 40 s
    key = spec_of(SLOW, Arch.CPU).key
    before = resident_bytes(running.process.pid)
    said = head(running, f"/v1/jobs/{key}", "compile", "Accept: text/event-stream")
    with crowd(running, SOCKETS), crowd(running, STREAMS, said) as streams:
        statuses = Counter(client.recv(12) for client in streams)
        counts, longest = asked(running)
        grown = resident_bytes(running.process.pid) - before
        text = running.request("GET", "/metrics").data.decode()
        own = running.request("GET", f"/v1/jobs/{key}", "compile").status
    print(
        f"{SOCKETS} sockets, {STREAMS} streams: {dict(statuses)}, {dict(counts)}, the longest "
        f"answer {longest:.3f} s, {grown >> 10} KiB more"
    )

    assert statuses == {b"HTTP/1.1 200": 100, b"HTTP/1.1 429": 200}
    assert counts == all_served()
    assert own == 200
    assert "jitgen_service_streams 100.0" in text
    assert grown < MOST_GROWN
    until(lambda: b"jitgen_service_streams 0.0" in running.request("GET", "/metrics").data)


def test_sockets_that_begin_no_handshake(tmp_path: Path) -> None:
    """With TLS they were no connections yet, and were not counted: a minute each."""
    certificate_file, key_file = certificate(tmp_path, "server")
    service = Running(
        tmp_path / "service",
        {
            "listen": {"certificate": str(certificate_file), "certificate_key": str(key_file)},
            "limits": {"connections": SOCKETS // 2},
        },
    )
    service.scheme = "https"
    service.http = urllib3.PoolManager(retries=False, ca_certs=str(certificate_file))
    service.start()
    try:
        assert service.compile(CONFIG).status == 200
        assert service.process is not None
        with crowd(service, SOCKETS, b"\x16\x03"):
            counts, longest = asked(service)
            opened = len(list(Path(f"/proc/{service.process.pid}/fd").iterdir()))
        print(f"{SOCKETS} sockets before TLS: {opened} open, the longest answer {longest:.3f} s")

        assert counts == all_served()
        assert opened < SOCKETS // 2 + 128
    finally:
        service.stop()


def test_a_process_of_few_descriptors(tmp_path: Path) -> None:
    """It takes fewer connections, says so, and serves: it stopped to accept for a second a time."""
    service = Running(tmp_path / "service", {"log": {"requests": "errors"}})
    service.start(descriptors=512)
    try:
        assert service.compile(CONFIG).status == 200
        with crowd(service, SOCKETS):
            counts, _ = asked(service)

        assert counts == all_served()
        (event,) = [e for e in service.events() if e["event"] == "fewer connections"]
        assert event["most"] == 192
        assert "LimitNOFILE" in event["reason"]
    finally:
        service.stop()
