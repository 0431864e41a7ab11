# SPDX-License-Identifier: Apache-2.0
"""
What a warm GET costs, and what a swarm of pods gets: ``python -m tests.service.load``.

Clients in other processes fetch entries over connections that they keep, and what the server's
process used of a CPU meanwhile is divided by the number of requests. That is the figure that is
promised: it depends little on how busy the machine is. Latencies are printed too; they depend on
the machine, and on whether clients and server share its cores. With ``--swarm N``, N clients with a
connection each want every kernel at once, and every byte that they get is compared.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import multiprocessing
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from jitgen.cache import Store
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.runtime.spec import spec_of
from tests.server.forging import meta_of, signed
from tests.service.running import Running, cpu_seconds, resident_bytes

TAR_BYTES = 113 * 1000
"""The size of a usual entry of a GPU kernel, packed."""

KERNELS = 18
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def filled(running: Running) -> list[str]:
    """Put entries of `TAR_BYTES` into a service that does not run yet; returns their keys."""
    store = Store(running.folder / "cache", "rw")
    keys = []
    for number in range(KERNELS):
        config = GroupedGemmConfig(layout="ragged", tile=Tile(m=64, n=64, k=128))
        spec = spec_of(config, Arch.SM_90A)
        document = spec.document | {"options": [str(number)]}
        # As well as a real one is compressed: to some 33 KB.
        library = random.Random(number).randbytes(31000) + bytes(TAR_BYTES - 58000)
        files = {"kernel.py": b"# " + b"x" * 20000, "kernel.so": library}
        meta = meta_of(spec, document).with_files(files)
        assert not store.publish(meta, files, signed(meta, running.key)).why_private
        keys.append(meta.key)
    return keys


async def fetch(
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    key: str,
    token: str,
    encoding: str,
) -> tuple[bytes, float]:
    """Return an entry's body, and the seconds until it was there."""
    reader, writer = connection
    start = time.perf_counter()
    writer.write(
        f"GET /v1/entries/{key} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
        f"accept-encoding: {encoding}\r\ntraceparent: {TRACE}\r\n\r\n".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return await reader.readexactly(length), time.perf_counter() - start


def client(plan: dict[str, Any], answer: Any) -> None:
    """Do what one process of clients does: `connections` at a time, each `rounds` times."""

    async def one(barrier: asyncio.Event) -> list[float]:
        connection = await asyncio.open_connection("127.0.0.1", plan["port"], limit=2**20)
        await barrier.wait()
        took = []
        for _ in range(plan["rounds"]):
            for key in plan["keys"]:
                body, seconds = await fetch(connection, key, plan["token"], plan["encoding"])
                assert hashlib.sha256(body).hexdigest() == plan["bodies"][key]
                took.append(seconds)
        connection[1].close()
        return took

    async def all_of_them() -> list[float]:
        barrier = asyncio.Event()
        running = [asyncio.create_task(one(barrier)) for _ in range(plan["connections"])]
        await asyncio.sleep(0.5)
        barrier.set()
        return [each for took in await asyncio.gather(*running) for each in took]

    try:
        answer.put(asyncio.run(all_of_them()))
    except BaseException as error:
        answer.put(repr(error))
        raise


def measure(
    running: Running, keys: list[str], encoding: str, processes: int, connections: int, rounds: int
) -> dict[str, Any]:
    """
    Return the cost of `connections` connections, each of which fetches every key `rounds` times.
    """
    assert running.process is not None
    pid = running.process.pid
    bodies, size = {}, 0
    for key in keys:
        headers = {"accept-encoding": encoding}
        path = f"/v1/entries/{key}"
        found = running.request("GET", path, headers=headers, decode_content=False)
        assert found.status == 200, found.data
        bodies[key], size = hashlib.sha256(found.data).hexdigest(), len(found.data)
    plan = {
        "port": int(running.url.rpartition(":")[2]),
        "token": running.tokens["read"],
        "keys": keys,
        "bodies": bodies,
        "encoding": encoding,
        "connections": connections // processes,
        "rounds": rounds,
    }
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    clients = [context.Process(target=client, args=(plan, answers)) for _ in range(processes)]
    before, start = cpu_seconds(pid), time.perf_counter()
    for each in clients:
        each.start()
    found_all = [answers.get(timeout=600) for _ in clients]
    assert not any(isinstance(found, str) for found in found_all), found_all
    took = sorted(seconds for found in found_all for seconds in found)
    wall_s, used_s = time.perf_counter() - start, cpu_seconds(pid) - before
    for each in clients:
        each.join()
    return {
        "encoding": encoding,
        "bytes": size,
        "connections": connections,
        "requests": len(took),
        "cpu_us_per_request": round(used_s / len(took) * 1e6, 1),
        "requests_per_s": round(len(took) / wall_s),
        "p50_ms": round(took[len(took) // 2] * 1e3, 3),
        "p99_ms": round(took[len(took) * 99 // 100] * 1e3, 3),
        "resident_mib": round(resident_bytes(pid) / 2**20, 1),
        "cores": len(os.sched_getaffinity(0)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20000, help="of the measurement")
    parser.add_argument("--processes", type=int, default=1, help="of clients")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--swarm", type=int, default=0, help="clients that want every kernel once")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        running = Running(
            Path(folder, "service"), {"limits": {"connections": 5000, "per_address": 0}}
        )
        keys = filled(running)
        running.start()
        try:
            rounds = max(1, chosen.requests // chosen.connections)
            for encoding in ("identity", "zstd"):
                row = measure(
                    running, keys[:1], encoding, chosen.processes, chosen.connections, rounds
                )
                print(json.dumps(row), flush=True)
            if chosen.swarm:
                row = measure(running, keys, "zstd", chosen.processes, chosen.swarm, 1)
                print(json.dumps(row), flush=True)
        finally:
            running.stop()


if __name__ == "__main__":
    main()
