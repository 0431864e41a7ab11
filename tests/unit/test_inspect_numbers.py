# SPDX-License-Identifier: Apache-2.0
"""Maps of memory and occupancy: that they agree with what the rules derive, kernel by kernel."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from jitgen.cache import Store
from jitgen.codegen.render import render
from jitgen.config import Arch, Config
from jitgen.inspect import hardware, memory
from jitgen.inspect.kernel import numbers
from jitgen.inspect.measured import speed_of
from jitgen.runtime.session import select
from jitgen.selection import measurements
from jitgen.targets.legality import require, target
from tests.pinned import NAMES

WITH_MAPS = [
    name
    for name in sorted(NAMES)
    if name.startswith(("grouped_gemm", "moe_fc2_dense")) and not name.endswith("_cpu")
]
GRAIN = 1024
"""What rules round shared memory up to."""


@pytest.mark.parametrize("name", WITH_MAPS)
def test_the_map_of_shared_memory_is_what_the_rules_derive(name: str) -> None:
    """The source's struct and the checker's sum are two accounts of the same bytes."""
    config, arch = Config.parse(name)
    check_map(config, arch, render(config, arch).text)


@pytest.mark.parametrize("stages", [3, 4, 5])
@pytest.mark.parametrize("operation", ["grouped_gemm_ragged", "moe_fc2_dense"])
def test_what_lies_between_two_rings_of_scales_counts(operation: str, stages: int) -> None:
    """An odd number of atoms ends within 1024 bytes, and the next pipeline begins at whole ones."""
    name = f"{operation}_e4m3_e4m3_mx32_bf16_t128x128x128_c1x1_acc1_ab{stages}_sm_100a"
    config, arch = Config.parse(name)
    text = render(config, arch).text
    between = check_map(config, arch, text)

    assert between["b_scale"] == 512 * (stages % 2)


def check_map(config: Config, arch: Arch, text: str) -> dict[str, int]:
    """Check the map of a source; return the unused bytes before each region."""
    derived = require(config, arch).derived
    total = derived.smem_bytes  # type: ignore[union-attr]
    sm = hardware.MULTIPROCESSORS[target(arch).family]
    found = memory.shared(text, total, sm.cta_shared_bytes)

    assert found is not None
    assert found.total == total <= found.limit
    assert 0 <= total - found.regions[-1].end < GRAIN
    between = {b.name: b.start - a.end for a, b in pairwise(found.regions)}
    assert min(between.values()) >= 0
    return between


@pytest.mark.parametrize("name", WITH_MAPS)
def test_the_map_of_tensor_memory_fits_what_is_allocated(name: str) -> None:
    config, arch = Config.parse(name)
    derived = require(config, arch).derived
    found = memory.tensor(render(config, arch).text, 512)

    columns = getattr(derived, "tmem_columns", None)
    if columns is None:
        assert found is None
        return
    assert found is not None
    assert found.total == columns
    assert columns // 2 < found.regions[-1].end <= columns or columns == 32


def test_a_source_that_computes_something_else_has_no_map() -> None:
    """Nothing of a source is run to draw it."""
    struct = "class SharedStorage:\n    a: cute.struct.MemRange[Int32, {}]\n"
    for length in ("open('/etc/passwd')", "UNKNOWN", "1 // 0", "'x'", "2 ** 99"):
        assert memory.shared(struct.format(length), 0, 0) is None
    assert memory.shared("a = 1\n", 0, 0) is None
    found = memory.shared(f"N = min(4, 3) * 2\n{struct.format('N + 1')}", 0, 0)
    assert found is not None
    assert [(x.name, x.size, x.detail) for x in found.regions] == [("a", 28, "7 x Int32")]


@pytest.mark.parametrize(
    ("family", "registers", "threads", "shared_bytes", "ctas"),
    [
        ("sm90", 32, 128, 0, 16),  # warps
        ("sm90", 32, 32, 0, 32),  # CTAs
        ("sm90", 168, 384, 0, 1),  # registers
        ("sm90", 128, 128, 0, 4),  # 16,384 registers each
        ("sm90", 32, 128, 100_000, 2),  # shared memory
        ("sm90", 32, 128, 232_448, 1),
        ("sm120", 32, 128, 0, 12),
        ("sm120", 32, 128, 101_376, 1),
    ],
)
def test_occupancy(family: str, registers: int, threads: int, shared_bytes: int, ctas: int) -> None:
    found = hardware.occupancy(
        family, registers=registers, threads=threads, shared_bytes=shared_bytes
    )

    assert found is not None
    assert found.ctas == ctas
    assert 0 < found.share <= 1


def test_tensor_memory_limits_ctas_too() -> None:
    found = hardware.occupancy(
        "sm100", registers=32, threads=128, shared_bytes=0, tensor_columns=256
    )

    assert found is not None
    assert found.ctas == 2
    assert hardware.occupancy("unknown", registers=1, threads=1, shared_bytes=0) is None


@pytest.mark.parametrize("name", WITH_MAPS[:: len(WITH_MAPS) // 8])
def test_every_number_has_a_meaning(name: str) -> None:
    config, arch = Config.parse(name)

    assert all(number.meaning for number in numbers(require(config, arch).derived))


def test_what_is_known_of_speed(cache_root: Path) -> None:
    """Of the winner of a shipped measurement: the problem, its time, and that it is chosen."""
    arch, store = Arch.SM_90A, Store.open()
    device = target(arch).devices[0].name
    record = next(
        each
        for each in measurements.shipped(arch, device).values()
        if _is_gemm(each.problem) and select(each.problem, arch).config.name(arch) == each.winner
    )
    config, _ = Config.parse(record.winner)
    found = speed_of(config, arch, store, ())
    (mine,) = (
        each
        for each in found.measurements
        if (each.problem, each.device) == (record.problem, device)
    )
    roofs = {roof.device: roof.flop_rate for roof in found.roofs}

    assert mine.time_us == mine.best_us == record.times_us[record.winner]
    assert mine.source == "shipped"
    assert mine.flop == 2 * record.problem.m * record.problem.n * record.problem.k
    assert mine.byte_rate > 0
    assert record.problem in [reason.problem for reason in found.reasons]
    assert roofs.keys() == {each.device for each in found.measurements}
    # nothing that was measured is beyond the roof of the tensor cores
    assert all(each.flop_rate < roofs[each.device] for each in found.measurements)


def _is_gemm(problem: Any) -> bool:
    return bool(problem.op == "grouped_gemm" and problem.a_dtype.bits == 8 and not problem.b_dtype)
