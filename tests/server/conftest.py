# SPDX-License-Identifier: Apache-2.0
"""One service for the tests that only ask, as a process of its own behind real HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jitgen.cache import Store
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.runtime.spec import spec_of
from tests.service.running import Running
from tests.service.trusting import sealed

REFUSED = spec_of(GroupedGemmConfig(layout="masked", tile=Tile(m=64, n=128, k=128)), Arch.CPU)
"""A kernel that the service remembers to have been refused."""

UNLOVED = spec_of(GroupedGemmConfig(layout="masked", tile=Tile(m=32, n=128, k=128)), Arch.CPU)
"""A kernel that the trust document revokes."""


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with tokens of each scope, one signing key, and uploads that are rebuilt."""
    folder = tmp_path_factory.mktemp("service")
    bundles = tmp_path_factory.mktemp("bundles")
    running = Running(
        folder,
        {
            "uploads": {"accept": "rebuild"},
            "store": {"bundles": str(bundles)},
            "signing": {"trust": str(folder / "trust.json")},
        },
    )
    running.bundles = bundles
    index = Store(running.folder / "cache", "rw").index
    index.remember_failure(REFUSED.key, REFUSED.name, "the compiler did not like it", 3600)
    index.close()
    trust = sealed(running.key, revoked={UNLOVED.key: "no longer wanted"})
    (folder / "trust.json").write_bytes(trust)
    running.start()
    yield running
    running.stop()
    running.http.clear()
