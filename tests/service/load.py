# SPDX-License-Identifier: Apache-2.0
"""
What a warm GET costs: ``python -m tests.service.load``.

Clients in other processes fetch one entry over connections that they keep, and what the server's
process used of a CPU meanwhile is divided by the number of requests. That is the figure that is
promised: it depends little on how busy the machine is. Latencies are printed too; they depend on
the machine, and on whether clients and server share its cores.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

from jitgen.cache import Meta, Store
from jitgen.ops.grouped_gemm.config import KernelConfig, Tile
from tests.service.running import Running, cpu_seconds, resident_bytes

TAR_BYTES = 113 * 1000
"""The size of a usual entry of a GPU kernel, packed."""


def filled(running: Running) -> str:
    """Put an entry of `TAR_BYTES` into a service that does not run yet; returns its key."""
    from jitgen.config import Arch
    from jitgen.runtime.spec import spec_of

    spec = spec_of(KernelConfig(layout="ragged", tile=Tile(m=128, n=128, k=128)), Arch.SM_90A)
    noise = b"".join(number.to_bytes(4, "little") * 3 for number in range(2**16))
    meta = Meta(
        key=spec.key,
        key_document=spec.document,
        name=spec.name,
        arch=str(spec.arch),
        config=spec.config.to_json(),
        symbol=spec.name,
        library="kernel.so",
        files={},
        created="2026-01-01T00:00:00+00:00",
        compile_s=1.0,
        link_s=0.0,
        host_isa=("x86-64",),
        jitgen="0",
    )
    files = {"kernel.py": b"# " + b"x" * 20000, "kernel.so": noise[: TAR_BYTES - 27000]}
    assert not Store(running.folder / "cache", "rw").publish(meta, files).why_private
    return spec.key


def fetch(
    port: int, path: str, token: str, encoding: str, requests: int, connections: int, answer: Any
) -> None:
    """Fetch `path` again and again over `connections`, in turn, and answer with latencies."""
    request = (
        f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
        f"accept-encoding: {encoding}\r\n"
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n"
    ).encode()
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
    took = []
    length = 0
    buffer = bytearray(2**20)
    for number in range(requests):
        connection = sockets[number % connections]
        start = time.perf_counter()
        connection.sendall(request)
        received = 0
        while not length or received < length:
            received += connection.recv_into(memoryview(buffer)[received:])
            if not length:
                head = bytes(buffer[:received]).partition(b"\r\n\r\n")[0]
                assert head.startswith(b"HTTP/1.1 200"), head
                lines = dict(line.split(b": ") for line in head.split(b"\r\n")[1:])
                length = len(head) + 4 + int(lines[b"content-length"])
        assert received == length
        assert buffer.startswith(b"HTTP/1.1 200")
        took.append(time.perf_counter() - start)
    for connection in sockets:
        connection.close()
    answer.put(took)


def measure(
    running: Running, path: str, encoding: str, requests: int, clients: int, connections: int
) -> dict[str, Any]:
    """Return what `requests` GETs by each of `clients` processes cost."""
    assert running.process is not None
    pid, port = running.process.pid, int(running.url.rpartition(":")[2])
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    token = running.tokens["read"]
    arguments = (port, path, token, encoding, requests, connections, answers)
    processes = [context.Process(target=fetch, args=arguments) for _ in range(clients)]
    before, start = cpu_seconds(pid), time.perf_counter()
    for process in processes:
        process.start()
    took = sorted(each for _ in processes for each in answers.get(timeout=600))
    wall_s, used_s = time.perf_counter() - start, cpu_seconds(pid) - before
    for process in processes:
        process.join()
    return {
        "encoding": encoding,
        "requests": len(took),
        "cpu_us_per_request": round(used_s / len(took) * 1e6, 1),
        "requests_per_s": round(len(took) / wall_s),
        "p50_ms": round(took[len(took) // 2] * 1e3, 3),
        "p99_ms": round(took[len(took) * 99 // 100] * 1e3, 3),
        "resident_mib": round(resident_bytes(pid) / 2**20, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20000, help="of each client")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--connections", type=int, default=8, help="of each client")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        running = Running(Path(folder, "service"))
        key = filled(running)
        running.start()
        try:
            for encoding in ("identity", "zstd"):
                wanted = {"accept-encoding": encoding}
                answer = running.request("HEAD", f"/v1/entries/{key}", headers=wanted)
                assert answer.status == 200, answer.data
                path = f"/v1/entries/{key}"
                row = measure(
                    running, path, encoding, chosen.requests, chosen.clients, chosen.connections
                )
                print(json.dumps({"bytes": int(answer.headers["content-length"]), **row}))
        finally:
            running.stop()


if __name__ == "__main__":
    main()
