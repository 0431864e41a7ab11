# SPDX-License-Identifier: Apache-2.0
"""One service for the tests that only ask, as a process of its own behind real HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.running import Running


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with tokens of each scope, one signing key, and uploads that are rebuilt."""
    bundles = tmp_path_factory.mktemp("bundles")
    running = Running(
        tmp_path_factory.mktemp("service"),
        {"uploads": {"accept": "rebuild"}, "store": {"bundles": str(bundles)}},
    )
    running.bundles = bundles
    running.start()
    yield running
    running.stop()
    running.http.clear()
