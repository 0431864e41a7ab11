# SPDX-License-Identifier: Apache-2.0
"""The library as a client: a pod with an empty cache is served by the service, and calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jitgen.signing.keys import PrivateKey
from tests.service.running import Running
from tests.service.trusting import sealed

pytestmark = pytest.mark.service

POD = """
import json, sys, torch, jitgen
from jitgen import quantize
a, a_scale = quantize.per_token_group(torch.randn(48, 256))
b, b_scale = quantize.per_block(torch.randn(2, 128, 256))
offs = torch.tensor([20, 48], dtype=torch.int32)
tiers = []
jitgen.on_event(lambda event: tiers.append(f"{event.kind} {event.tier}".strip()))
out = jitgen.grouped_gemm(a, b, a_scale, b_scale, offs=offs)
right = jitgen.reference.grouped_gemm(a, b, a_scale, b_scale, offs=offs)
print(json.dumps({
    "error": float((out.double() - right.double()).abs().max() / right.double().abs().max()),
    "events": tiers,
    "compiler": "cutlass" in sys.modules,
}))
"""


def pod(folder: Path, service: Running, trust: bytes, **settings: str) -> dict[str, Any]:
    """Run one call in a process with a cache of its own."""
    folder.mkdir()
    (folder / "trust.json").write_bytes(trust)
    (folder / "token").write_text(service.tokens["all"])
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("JITGEN_")},
        "JITGEN_CACHE_DIR": str(folder / "cache"),
        "JITGEN_SERVICE": service.url,
        "JITGEN_TOKEN_FILE": str(folder / "token"),
        "JITGEN_TRUST": str(folder / "trust.json"),
        "JITGEN_ARCH": "cpu",
        **settings,
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", POD],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_pods_call_what_the_service_compiled(tmp_path: Path) -> None:
    """The first has it compiled there, the second may not compile at all; a third trusts others."""
    service = Running(tmp_path / "service", {"log": {"requests": "all"}})
    service.start()
    trust = sealed(service.key)
    try:
        first = pod(tmp_path / "first", service, trust)
        frozen = pod(tmp_path / "frozen", service, trust, JITGEN_ON_MISS="error")
        stranger = pod(tmp_path / "stranger", service, sealed(PrivateKey.generate()))
        compiled = [e for e in service.events() if e["event"] == "compile"]
    finally:
        service.stop()

    assert max(each["error"] for each in (first, frozen, stranger)) < 0.02
    assert [each["compiler"] for each in (first, frozen, stranger)] == [False, False, True]
    assert len(compiled) == 1
    asked = [
        e["resource"]
        for e in service.events()
        if e.get("trace") == compiled[0]["trace"] and e["event"] == "request"
    ]
    assert {"entry", "compile"} <= set(asked)
    assert any("reject" in event for event in stranger["events"])
