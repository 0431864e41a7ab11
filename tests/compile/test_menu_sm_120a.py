# SPDX-License-Identifier: Apache-2.0
"""
Everything that may be chosen for ragged rows on sm_120a, compiled: how large it is, and how many
instructions the simulation has to count.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from jitgen.cache import Store
from jitgen.compile import inspect
from jitgen.config import Arch, Layout
from jitgen.plans.prewarm import prewarm
from jitgen.runtime.spec import key
from tests import needs
from tests.menus import MAX_BYTES, kinds, menu
from tests.sass import k_loop
from tests.simulation import INSTRUCTIONS, kind_of

pytestmark = [needs.compiler, needs.linker]

SM_120A = Arch("sm_120a")


def test_there_is_no_explosion() -> None:
    """A model takes one kind of operands, and at most seven kernels of a layout with it."""
    sizes = {kind: len(menu(SM_120A, Layout.RAGGED, kind)) for kind in kinds(SM_120A)}

    assert len(sizes) == len(INSTRUCTIONS)
    assert max(sizes.values()) <= 7
    assert sum(sizes.values()) <= 41


@pytest.mark.nightly
@pytest.mark.parametrize("kind", kinds(SM_120A), ids=lambda kind: str(kind.scale_granularity))
def test_sizes_and_instructions(kind: object, kernel_root: Path) -> None:
    """What `tests.simulation` says that a warp issues for a tile of K is what SASS has."""
    configs = menu(SM_120A, Layout.RAGGED, kind)  # type: ignore[arg-type]
    store = Store.open(kernel_root)
    report = prewarm(configs, arch=SM_120A, store=store, jobs=2)

    assert report.ok
    assert max(row.bytes for row in report.rows) <= MAX_BYTES
    for config in configs:
        entry = store.read(key(config, SM_120A))
        assert entry is not None
        sass = inspect.sass(entry.library)
        name = next(name for name in ("QMMA", "OMMA", "HMMA") if name in sass)
        loop = k_loop(sass, name)
        tile = config.tile
        expected = INSTRUCTIONS[kind_of(config)][tile.m, tile.n, tile.k]
        assert len(loop) == pytest.approx(expected, rel=0.03), config.short
