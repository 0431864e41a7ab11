# SPDX-License-Identifier: Apache-2.0
"""What torch's dispatcher would have done, for kernels of the GPU; and threads, streams, graphs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compile import test_dispatcher as rows
from tests.crowd import Crowd
from tests.gpu.configs import ARCH

pytestmark = [
    pytest.mark.skipif(ARCH != "sm_90a", reason="all operations have kernels for sm_90a alone"),
    pytest.mark.filterwarnings("ignore:.*deterministic.*:UserWarning"),
]


@pytest.fixture(autouse=True)
def _on_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    callspec = getattr(request.node, "callspec", None)
    call = callspec.params.get("call") if callspec else None
    if call is not None and not call.is_on_hopper:
        pytest.skip("sm_90a has no kernels for these types")
    monkeypatch.setattr(rows, "DEVICE", "cuda")


filled = rows._filled
TESTS: dict[str, Any] = {
    name: test
    for name, test in vars(rows).items()
    if name.startswith("test_") and name != "test_no_public_function_is_left_out"
}
globals().update(TESTS)


@pytest.mark.parametrize("form", ["bf16", "block128", "wide1"])
def test_threads_streams_and_graphs(form: str) -> None:
    """``python -m tests.crowd --seconds 600`` does it for longer."""
    found = Crowd(form, "cuda").run(5.0)

    assert found["calls"] > 50
    assert found["replays"] > 20
    assert not found["wrong calls"]
    assert not found["wrong replays"]
