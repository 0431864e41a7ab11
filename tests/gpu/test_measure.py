# SPDX-License-Identifier: Apache-2.0
"""Device clocks, and the suites in small, on the GPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from jitgen.autotune.measure.clock import Batch, compete, compete_in_batches, sustain
from jitgen.autotune.measure.rotation import rotation
from jitgen.autotune.measure.workload import Workload
from jitgen.bench import grouped, peers
from jitgen.bench.cases import Case
from jitgen.bench.grouped_records import Section
from jitgen.bench.report import OURS
from jitgen.config import Layout
from jitgen.targets.legality import target
from tests.gpu.configs import ARCH

RATE = target(ARCH).devices[0].dram_gbps * 1e9
"""Bytes a second that the data sheet of the device which stands for the target has."""

CASE = Case(layout=Layout.MASKED, groups=32, rows_per_group=8, n=4096, k=7168, max_rows=256)
CASES = (
    CASE,
    replace(CASE, layout=Layout.CONTIGUOUS, groups=8, rows_per_group=128, max_rows=None),
    replace(CASE, layout=Layout.RAGGED, groups=32, rows_per_group=32, max_rows=None, spread=0.3),
)


def test_clocks_agree_on_a_kernel() -> None:
    """A pass over 1 GB takes the time that the memory's rate says, whichever clock looks."""
    source = torch.ones(2**30, dtype=torch.uint8, device="cuda")
    targets = [torch.empty_like(source) for _ in range(2)]
    calls = [partial(torch.bitwise_not, source, out=target) for target in targets]
    (single,) = compete(calls[:1], on_gpu=True)
    (batch,) = compete_in_batches([Batch.capture(calls)])
    (loop,) = sustain(calls[:1], seconds=0.1)

    for times in (single, batch, loop):
        assert 0.2 * RATE < 2 * 2**30 / times.median < 1.25 * RATE
        assert times.median == pytest.approx(single.median, rel=0.2)


def test_a_replayed_batch_computes_every_set() -> None:
    first = Workload.random(CASES[1].problem, CASES[1].row_counts)
    sets = rotation(first)
    batch = Batch.capture([each.call for each in sets])
    for each in sets:
        each.out.fill_(float("nan"))
    batch.replay()

    assert len(sets) > 1
    for each in sets:
        each.check("a replayed kernel")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_case_beside_its_peers(case: Case) -> None:
    """Every peer that is installed computes what jitgen does, or says why it is left out."""
    found, _ = peers.find_all()
    measured = grouped.cold(Section.PUBLIC, case, found)

    assert OURS in measured.times, measured.missing
    assert {*measured.times, *measured.missing} >= {peer.name for peer in found}
    assert not any("WrongResult" in reason for reason in measured.missing.values())
    rate = measured.rate(measured.num_bytes)
    assert rate is not None
    assert 0.2 * RATE < rate < 1.25 * RATE
