# SPDX-License-Identifier: Apache-2.0
"""Two services that share a bucket of S3: moto's server, as real as one gets without an account."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import urllib3

from jitgen.config import Arch
from jitgen.runtime.spec import spec_of
from tests.service.running import Running
from tests.service.test_stampede import compiled, configs

MOTO = shutil.which("moto_server")
pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(MOTO is None, reason="needs moto_server: pip install 'moto[server]'"),
]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty bucket."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    for name, value in {
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "y",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    command = [str(MOTO), "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    http = urllib3.PoolManager(retries=False)
    for _ in range(600):
        try:
            assert http.request("PUT", f"{url}/kernels").status == 200
            break
        except urllib3.exceptions.HTTPError:
            time.sleep(0.1)
    yield "s3://kernels/fleet"
    process.terminate()
    process.wait(10)


def test_each_kernel_is_compiled_by_one_of_them(tmp_path: Path, bucket: str) -> None:
    """Both are asked for all at once, and no lease gives trouble."""
    services = [
        Running(tmp_path / name, {"replicas": {"shared": bucket, "name": name}})
        for name in ("one", "two")
    ]
    wanted = configs(6)
    for service in services:
        service.start()
    try:
        with ThreadPoolExecutor(12) as threads:
            asked = [threads.submit(each.compile, config) for config in wanted for each in services]
            answers = [one.result() for one in asked]
        keys = {spec_of(config, Arch.CPU).key for config in wanted}
        leases = [
            service.request("GET", "/metrics").data.decode().count('{outcome="trouble"}')
            for service in services
        ]

        assert {answer.status for answer in answers} == {200}
        assert len({answer.headers["ETag"] for answer in answers}) == len(wanted)
        assert compiled(*services) == dict.fromkeys(keys, 1)
        assert leases == [0, 0]
    finally:
        for service in services:
            service.stop()
