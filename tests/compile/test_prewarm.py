# SPDX-License-Identifier: Apache-2.0
"""Prewarming with real compile processes, into a store of one's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jitgen
from jitgen.cache import Store
from jitgen.config import Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, Schedule, Tile
from jitgen.plans.prewarm import PrewarmState, prewarm
from jitgen.plans.task import build_task
from jitgen.runtime.loader import KernelLoader

CONFIG = GroupedGemmConfig(layout=Layout.RAGGED, tile=Tile(m=8, n=32, k=128))


def test_what_was_prewarmed_is_served_without_a_compiler(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "other")
    first = prewarm([CONFIG], arch="cpu", store=store, jobs=1)
    second = prewarm([CONFIG], arch="cpu", store=store, jobs=1)

    assert [row.state for row in first.rows] == [PrewarmState.COMPILED]
    assert [row.state for row in second.rows] == [PrewarmState.CACHED]
    assert first.ok
    assert first.rows[0].bytes == second.rows[0].bytes > 0
    assert first.rows[0].seconds > 0
    with jitgen.settings.scope(on_miss="error"):
        assert KernelLoader(store).get(CONFIG, "cpu").tier == "disk"


def test_an_error_that_jitgen_raises_is_a_result(tmp_path: Path) -> None:
    """In a worker, errors raised on purpose come back as their message, without a traceback."""
    task = {
        "root": str(tmp_path / "cache"),
        "mode": "rw",
        "config": replace(CONFIG, schedule=Schedule(raster=1)).to_json(),
        "arch": "cpu",
        "settings": {"failure_ttl": 60.0, "lock_timeout": 5.0},
    }
    wrong = task | {"config": replace(CONFIG, tile=Tile(m=5, n=32, k=128)).to_json()}

    assert "E_TILE_M" in build_task(wrong)["error"]
