# SPDX-License-Identifier: Apache-2.0
"""The tables that come with jitgen hold what today's selector can use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jitgen.model import KernelConfig, Operands
from jitgen.select import bucket, device, menu, select, tuned
from jitgen.select.record import Table, slug

SHIPPED = sorted(tuned.TABLES.glob("*.json"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_entry_counts(path: Path) -> None:
    """Its problem stands for a bucket, and its winner is in the menu."""
    table = Table.from_json(json.loads(path.read_text(encoding="utf-8")))

    assert path.name == f"{table.arch}_{device.slug(table.device)}.json"
    assert len({slug(record.problem) for record in table.records}) == len(table.records) > 0
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
        assert config in menu(arch, problem.layout, operands)
        assert record.times_us[record.winner] == min(record.times_us.values())


def test_reference_gpus_decide_where_nothing_was_measured() -> None:
    """A machine without a GPU chooses what the reference GPU's table says."""
    for arch, name in device.REFERENCE_GPU.items():
        path = tuned.TABLES / f"{arch}_{device.slug(name)}.json"
        if not path.exists():
            continue
        for record in Table.from_json(json.loads(path.read_text(encoding="utf-8"))).records:
            choice = select(record.problem, arch)
            assert (choice.source, choice.config.name(arch)) == ("shipped", record.winner)
