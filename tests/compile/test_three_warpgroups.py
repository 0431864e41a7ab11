# SPDX-License-Identifier: Apache-2.0
"""
Tiles of 192 rows on sm_90a, three warpgroups of 160 registers: none spills, whatever else a kernel
does, and a group's rows beyond 128 are computed as all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

import jitgen
from jitgen.codegen.render import render
from jitgen.compile import inspect
from jitgen.config import Arch
from jitgen.config.grouped_gemm import Cluster, Epilogue, GroupedGemmConfig, Operands, Tile
from jitgen.targets.legality import require
from jitgen.verify import device
from jitgen.verify.artifacts import compiled
from tests import needs
from tests.problems import make_for, verify_exact

pytestmark = [needs.compiler, needs.linker]

BLOCKS = GroupedGemmConfig(layout="ragged", tile=Tile(m=192, n=128, k=128))
ROWS = replace(
    BLOCKS,
    operands=Operands(scale_granularity="row"),
    cluster=Cluster(m=2),
    epilogue=Epilogue(bias=True),
)
PLAIN = GroupedGemmConfig(
    layout="masked",
    operands=Operands(a_dtype="bf16", b_dtype="bf16", scale_granularity="tensor"),
    tile=Tile(m=192, n=192, k=64),
    cluster=Cluster(n=2),
)
COLUMNS = replace(
    PLAIN,
    layout="ragged",
    operands=replace(PLAIN.operands, b_layout="nmajor", scale_granularity="row"),
    tile=Tile(m=192, n=192, k=64),
    epilogue=Epilogue(bias=True),
)
WIDE = replace(BLOCKS, operands=Operands(out_dtype="f32"), cluster=Cluster(n=2))
NAMES = {"blocks": BLOCKS, "rows": ROWS, "plain": PLAIN, "columns": COLUMNS, "wide": WIDE}


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=name, marks=() if name == "rows" else pytest.mark.nightly)
        for name, config in NAMES.items()
    ],
)
def test_no_spill(config: GroupedGemmConfig, shared_cache: None) -> None:
    """As many accumulators as the rules allow, and what takes registers beside them."""
    found = inspect.resources(compiled(render(config, Arch.SM_90A)).library)

    assert require(config, "sm_90a").derived.math_registers == 160
    assert (found.stack_bytes, found.spill_instructions) == (0, 0)


@pytest.fixture
def emulated_gpu(shared_cache: None) -> Iterator[None]:
    with device("sm_90a", num_sms=4):
        yield


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [[150, 0, 129], [192, 193, 65], [385, 191]])
def test_rows(rows: list[int], emulated_gpu: None) -> None:
    """One, two and three warpgroups have rows, in one tile of a group or in its last."""
    case = make_for(ROWS, rows, 200, 144, is_exact=True)

    verify_exact(case, jitgen.grouped_gemm(**case.arguments, config=ROWS))
