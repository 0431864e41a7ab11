# SPDX-License-Identifier: Apache-2.0
"""Eight processes with one lock: the same choices everywhere, or an error before the first call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jitgen.cache import Store
from jitgen.plans import configs
from jitgen.plans.lock import locked
from tests.unit.coverage_fakes import GPU, H100, H200, filled, small
from tests.unit.test_lock import winning

pytestmark = pytest.mark.service

RANK = """
import json, sys
import jitgen
from jitgen.errors import LockError
from jitgen.runtime.lock import read
from jitgen.plans.lock import plans_of

try:
    jitgen.freeze(lock=sys.argv[1])
except LockError as error:
    print(json.dumps({"error": str(error)}))
else:
    (plan,) = plans_of(read(sys.argv[1]))
    chosen = [jitgen.select(each, "sm_90a").config for each in plan.problems("sm_90a")]
    print(json.dumps([config.name("sm_90a") for config in chosen]))
"""


def run(ranks: list[tuple[str, Path]], file: Path) -> list[object]:
    """Run the ranks, each a device and a cache, at once; returns what each of them prints."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(file)],
            env={
                **os.environ,
                "JITGEN_DEVICE": device,
                "JITGEN_CACHE_DIR": str(root),
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for device, root in ranks
    ]
    return [json.loads(each.communicate(timeout=120)[0]) for each in started]


def test_eight_ranks_on_two_devices(tmp_path: Path) -> None:
    """Seven agree with the lock, device by device; the one that was tuned says so and ends."""
    plan, store = small(tmp_path), Store.open(tmp_path / "job")
    filled(store, configs(plan, GPU, devices=(H200, H100)))
    file = tmp_path / "jitgen.lock"
    file.write_bytes(locked([plan], [GPU], store, (H200, H100)).encode())
    other = filled(Store.open(tmp_path / "tuned"), configs(plan, GPU, devices=(H200, H100)))
    winning(plan, other, H200)
    job = [((H200, H100)[number % 2], store.root) for number in range(7)]
    *agreeing, tuned = run([*job, (H200, other.root)], file)

    assert all(isinstance(each, list) for each in agreeing)
    assert len({str(each) for each in agreeing[::2]}) == 1
    assert len({str(each) for each in agreeing[1::2]}) == 1
    assert isinstance(tuned, dict)
    assert "by measurements: here are some" in tuned["error"]
