# SPDX-License-Identifier: Apache-2.0
"""The gate before the signature: a planted wrong kernel does not pass, the right one does."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest

from jitgen.cache import Entry
from jitgen.compile import workers
from jitgen.remote import wire
from jitgen.server.confine import Confinement, probe
from jitgen.server.settings import Signing
from jitgen.server.validator import Validator

NAME = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t64x64x128_c1x1_acc1_sm_90a"


@pytest.mark.service
@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_wrong_kernel_is_not_signed(*, is_wrong: bool) -> None:
    """Every digest of it is right, and so is its source's config; only its sums are wrong."""
    tasks = [{"name": NAME, "is_wrong": is_wrong}]
    function = "tests.service.planted:compile_task"
    (outcome,) = workers.run(function, tasks, jobs=1, timeout_s=300)
    assert outcome.error is None, outcome.log
    files = {name: base64.b64decode(data) for name, data in outcome.result["files"].items()}
    record = outcome.result["meta"].encode("ascii")
    meta = wire.Meta.decode(record)
    found = wire.checked(record, files, meta.key)
    gate = Validator(
        Signing(key=Path("/unused"), gate="emulator"), Confinement(is_on=not probe(), hidden=())
    )
    reason = asyncio.run(gate.refusal(Entry(key=meta.key, meta=found.meta, files=found.files)))

    assert bool(reason) == is_wrong
    if is_wrong:
        assert "wrong values" in reason
