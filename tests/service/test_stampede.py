# SPDX-License-Identifier: Apache-2.0
"""Many hosts want the same kernels at once, from nothing: each is compiled once."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jitgen.cache import Store
from jitgen.config import Arch, Config
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.remote import wire
from jitgen.runtime.spec import spec_of
from jitgen.signing.dsse import decode
from jitgen.targets.legality import check
from tests.service.running import Running, pool

HOSTS, PROCESSES, KERNELS = 8, 8, 20


def configs(count: int) -> list[Config]:
    """Return small kernels for the CPU."""
    sizes = [(m, n) for n in (32, 64, 128) for m in (8, 16, 32, 64)]
    layouts = ("ragged", "masked", "contiguous")
    found = [
        GroupedGemmConfig(layout=layout, tile=Tile(m=m, n=n, k=128))
        for layout in layouts
        for m, n in sizes
    ]
    legal = [config for config in found if check(config, "cpu")]
    assert len(legal) >= count
    return list(legal[:count])


def compiled(*services: Running) -> Counter[str]:
    """Return how often each key was compiled, by all of the services."""
    return Counter(e["key"] for s in services for e in s.events() if e["event"] == "compile")


def client(service: Running, root: Path, count: int, first: int, answer: Any) -> None:
    """Want every kernel, beginning with another one than others; keep them below `root`."""
    try:
        service.http = pool()
        store = Store(root, "rw")
        wanted = configs(count)
        for config in wanted[first:] + wanted[:first]:
            key = spec_of(config, Arch.CPU).key
            if store.read(key) is not None:
                continue
            found = service.compile(config)
            assert found.status == 200, found.data
            packed = wire.unpack(found.data, key)
            (envelope,) = decode(packed.signatures)
            assert envelope.signatures
            store.publish(packed.meta, packed.files, packed.signatures)
        read = [store.read(spec_of(config, Arch.CPU).key) for config in wanted]
        answer.put(sum(entry is not None and bool(entry.signatures) for entry in read))
    except BaseException as error:
        answer.put(repr(error))
        raise


def stampede(services: list[Running], folder: Path, hosts: int, processes: int, count: int) -> None:
    """Let all processes want all kernels, and see that each has them."""
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    running = [
        context.Process(
            target=client,
            args=(
                services[number % len(services)],
                folder / f"host{number % hosts}",
                count,
                number % count,
                answers,
            ),
        )
        for number in range(hosts * processes)
    ]
    for process in running:
        process.start()
    found = [answers.get(timeout=600) for _ in running]
    for process in running:
        process.join(60)

    assert found == [count] * len(running)


def test_a_few_want_the_same(service: Running) -> None:
    """The small one, for every push: a dozen requests at a time, for two kernels."""
    wanted = [GroupedGemmConfig(layout="masked", tile=Tile(m=m, n=32, k=128)) for m in (8, 16)]
    keys = {spec_of(config, Arch.CPU).key for config in wanted}
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(service.compile, wanted * 6))

    assert {answer.status for answer in answers} == {200}
    assert len({answer.headers["ETag"] for answer in answers}) == 2
    assert {key: n for key, n in compiled(service).items() if key in keys} == dict.fromkeys(keys, 1)


@pytest.mark.service
def test_one_service(tmp_path: Path) -> None:
    """Eight hosts of eight processes each want twenty kernels: twenty compiles."""
    service = Running(tmp_path / "service", {"limits": {"wait_s": 600}})
    service.start()
    try:
        stampede([service], tmp_path, HOSTS, PROCESSES, KERNELS)

        assert sorted(compiled(service).values()) == [1] * KERNELS
    finally:
        service.stop()


@pytest.mark.service
def test_two_replicas(tmp_path: Path) -> None:
    """The same through two services that share a folder: no kernel is compiled by both."""
    shared = {"shared": f"file://{tmp_path}/shared"}
    services = [
        Running(tmp_path / name, {"replicas": shared | {"name": name}}) for name in ("one", "two")
    ]
    for service in services:
        service.start()
    try:
        stampede(services, tmp_path, HOSTS, PROCESSES, KERNELS)

        assert sorted(compiled(*services).values()) == [1] * KERNELS
        assert all(compiled(service) for service in services)
    finally:
        for service in services:
            service.stop()
