# SPDX-License-Identifier: Apache-2.0
"""The tables that come with jitgen hold what today's selector can use."""

from __future__ import annotations

from pathlib import Path

import pytest

from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.runtime.session import select
from jitgen.selection import device, packed
from jitgen.selection import measurements as tuned
from jitgen.selection.choice import bucket
from jitgen.targets.legality import target

SHIPPED = sorted(tuned.TARGETS.glob("*/tables/*.json"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_entry_counts(path: Path) -> None:
    """Its problem stands for a bucket, and its winner is in the menu."""
    found = packed.read(path)
    table = found.shell

    assert path.parts[-3:] == (table.arch, "tables", f"{device.slug(table.device)}.json")
    assert len(found) > 0
    for slug, record in found.items():  # which raises where one is damaged
        problem = record.problem
        assert problem.slug == slug
        assert bucket(problem, table.arch) == problem
        config, arch = GroupedGemmConfig.parse(record.winner)
        assert arch is table.arch
        assert config in [
            each.config for each in select(problem, arch, use_measured=False).candidates
        ]
        assert record.times_us[record.winner] == min(record.times_us.values())


def test_reference_gpus_decide_where_nothing_was_measured() -> None:
    """
    A machine without a GPU chooses what the reference GPU's table says, or nearly; or a candidate
    younger than the table, if the table agrees with the model about the next one.
    """
    for arch in Arch:
        name = target(arch).devices[0].name
        path = tuned.TARGETS / arch / "tables" / f"{device.slug(name)}.json"
        if not path.exists():
            continue
        for record in packed.read(path).values():
            choice = select(record.problem, arch)
            by_model = select(record.problem, arch, use_measured=False)
            chosen = choice.config.name(arch)
            is_younger = chosen not in record.times_us
            if is_younger:
                assert choice.config == by_model.config
                names = (candidate.config.name(arch) for candidate in by_model.candidates)
                chosen = next(name for name in names if name in record.times_us)
            time = record.times_us[chosen]
            assert choice.source == ("model" if is_younger else "shipped")
            assert time <= record.times_us[record.winner] * (1 + max(tuned.MARGINS.values()))
