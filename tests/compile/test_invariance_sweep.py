# SPDX-License-Identifier: Apache-2.0
"""
200 random batches through every Hopper kernel that invariant numerics allow, in the emulator.

Where `test_invariance` has a few rows for each kind of operands, here batches are as large as tiles
are: some have none, some one row, some fill several tiles of 256 rows, so that a CTA takes several,
and takes them in another order where tiles are dealt by their rows. Every kernel gets every batch.
Split K, which is not allowed, goes along and has to be found; so does a kernel that was edited to
begin elsewhere in K, but only for rows that few batches have.

It takes most of an hour on one core: `-s` shows what was compared.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from jitgen.codegen.render import render
from jitgen.config import Arch, DType, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, Operands
from jitgen.support.frozen import frozen
from jitgen.verify import device
from tests import needs
from tests.compile.test_invariance import BLOCK128, PLAIN
from tests.invariance import Pool, allowed, departing, draws, mistakes

pytestmark = [
    needs.compiler,
    needs.linker,
    pytest.mark.nightly,
    pytest.mark.usefixtures("shared_cache"),
]

ARCH = Arch.SM_90A
NUM_SMS = 4
MOST_ROWS = 300  # of a group in a batch: more than any tile has
SEED = 5


@frozen
class Sweep:
    """
    Attributes:
        types: Of the operands.
        n: Columns: no whole number of tiles of any width.
        k: Length of the sums; no whole number of k-blocks.
        batches: How many there are for each kernel.
    """

    types: Operands
    n: int
    k: int
    batches: int

    @property
    def pool(self) -> Pool:
        """Rows and weights of three groups."""
        return Pool.draw(self.types, 3, 24, self.n, self.k, "cpu")

    @property
    def sizes(self) -> list[list[int]]:
        """The rows of each group in each batch: those that `mistakes` draws."""
        chance, pool = random.Random(SEED), self.pool
        return [[len(each) for each in draws(chance, pool, MOST_ROWS)] for _ in range(self.batches)]


DEEP = Sweep(types=Operands(), n=200, k=912, batches=200)
"""8 k-blocks: as many as ragged and masked kernels want to deal their tiles by their rows."""

SWEEPS = {
    "block128": DEEP,
    "block128-f32": Sweep(types=BLOCK128, n=264, k=288, batches=50),
    "bf16": Sweep(types=replace(PLAIN, out_dtype=DType.BF16), n=264, k=288, batches=50),
}


@pytest.mark.parametrize("sweep", [pytest.param(each, id=name) for name, each in SWEEPS.items()])
def test_every_batch(sweep: Sweep) -> None:
    """All kernels, all layouts, all batches: no value differs, but for split K."""
    configs = allowed(ARCH, sweep.types)
    splits = [each for layout in Layout for each in departing(ARCH, sweep.types, layout)]
    with device(ARCH, num_sms=NUM_SMS) as launches:
        found = list(
            mistakes(sweep.pool, [*configs, *splits], sweep.batches, most=MOST_ROWS, seed=SEED)
        )
    wrong = {config: count for config, count, _ in found}
    compared = {values for _, _, values in found}
    print(f"\n{len(launches)} launches, {len(configs)} kernels, {sweep.batches} batches")
    print(f"{sum(not any(each) for each in sweep.sizes)} of them empty; each compared {compared}")
    print(f"differ: {sum(map(wrong.get, configs))}; split K: {[wrong[each] for each in splits]}")

    assert {config.layout for config in configs} == set(Layout)
    assert compared == {sum(map(sum, sweep.sizes)) * sweep.n}
    assert min(compared) > 0
    assert not [config.name(ARCH) for config in configs if wrong[config]]
    assert all(wrong[each] for each in splits)


def test_batches_are_of_all_sizes() -> None:
    """A sweep over empty batches would find nothing."""
    rows = [sum(each) for each in DEEP.sizes]
    highest = [max(each) for each in DEEP.sizes]

    assert sum(map(bool, rows)) >= 0.9 * DEEP.batches
    assert 0 in rows
    assert 1 in rows
    assert sum(each > 256 for each in highest) >= 5
    assert sum(0 in each and any(each) for each in DEEP.sizes) >= 20


SHIFT = "cutlass.min(work.row // 192, 1)"
EDITS = {
    "    for k in cutlass.range(num_blocks, unroll=1):\n": (
        "    for step in cutlass.range(num_blocks, unroll=1):\n"
        f"        k = (step + {SHIFT}) % num_blocks\n"
    ),
    "k = cutlass.min(schedule.first_k_block + first + slot, last_k)": (
        f"k = (cutlass.min(first + slot, last_k) + {SHIFT}) % (last_k + 1)"
    ),
}
"""Tiles from row 192 of the batch on begin with their second k-block and end with their first."""


@pytest.mark.parametrize(("most", "is_found"), [(12, False), (MOST_ROWS, True)])
def test_an_order_that_hangs_on_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, is_found: bool
) -> None:
    """Such a kernel in the place of an allowed one is found, but not by batches of a few rows."""
    whole, changed = (
        config
        for config in allowed(ARCH, BLOCK128, (Layout.RAGGED,))
        if (config.tile.m, config.cluster.size) in {(64, 1), (192, 1)} and config.tile.n == 128
    )
    pool = replace(DEEP, types=BLOCK128).pool
    (tmp_path / "edited.py").write_text(edited(changed), encoding="utf-8")
    monkeypatch.setenv("JITGEN_OVERRIDE", str(tmp_path))
    with device(ARCH, num_sms=NUM_SMS):
        found = {each: wrong for each, wrong, _ in mistakes(pool, [whole, changed], 12, most, SEED)}

    assert found[whole] == 0
    assert (found[changed] > 0) is is_found


def edited(config: GroupedGemmConfig) -> str:
    """Return its source with the edits."""
    text = render(config, ARCH).text
    for before, after in EDITS.items():
        assert text.count(before) == 1
        text = text.replace(before, after)
    return text
