# SPDX-License-Identifier: Apache-2.0
"""The tables that come with jitgen hold what today's selector can use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jitgen.config import Arch
from jitgen.ops.grouped_gemm.config import KernelConfig, Operands
from jitgen.runtime.session import select
from jitgen.targets.legality import target
from jitgen.tuning import device
from jitgen.tuning import known as tuned
from jitgen.tuning.choice import bucket
from jitgen.tuning.record import Table
from tests.candidates import candidates

SHIPPED = sorted(tuned.TARGETS.glob("*/tables/*.json"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_entry_counts(path: Path) -> None:
    """Its problem stands for a bucket, and its winner is in the menu."""
    table = Table.from_json(json.loads(path.read_text(encoding="utf-8")))

    assert path.parts[-3:] == (table.arch, "tables", f"{device.slug(table.device)}.json")
    assert len({record.problem.slug for record in table.records}) == len(table.records) > 0
    for record in table.records:
        problem = record.problem
        assert bucket(problem, table.arch) == problem
        config, arch = KernelConfig.parse(record.winner)
        operands = Operands(
            a_dtype=problem.a_dtype,
            b_dtype=problem.a_dtype,
            out_dtype=problem.out_dtype,
            scale_granularity=problem.scale_granularity,
        )
        assert arch is table.arch
        assert config in candidates(arch, problem.layout, operands)
        assert record.times_us[record.winner] == min(record.times_us.values())


def test_reference_gpus_decide_where_nothing_was_measured() -> None:
    """A machine without a GPU chooses what the reference GPU's table says."""
    for arch in Arch:
        name = target(arch).devices[0].name
        path = tuned.TARGETS / arch / "tables" / f"{device.slug(name)}.json"
        if not path.exists():
            continue
        for record in Table.from_json(json.loads(path.read_text(encoding="utf-8"))).records:
            choice = select(record.problem, arch)
            assert (choice.source, choice.config.name(arch)) == ("shipped", record.winner)
