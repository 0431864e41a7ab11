# SPDX-License-Identifier: Apache-2.0
"""
`moe_fc2_dense` on an emulated B200: `test_emulated_fc2` does the same on sm_90a, and
`test_emulator_kernels` verifies the menu.
"""

from __future__ import annotations

from functools import cache

import pytest

import jitgen
from jitgen.codegen.render import render
from jitgen.compile import compiler, inspect
from jitgen.config import Arch, DType
from jitgen.errors import InputError
from jitgen.ops.grouped_gemm.config import Cluster, Operands, Pipeline, Schedule, Tile
from jitgen.ops.moe_fc2_dense.config import MoeFc2DenseConfig, MoeFc2DenseProblem
from jitgen.ops.moe_fc2_dense.samples import BLOCKS, Sizes, make, of_sizes
from jitgen.targets.legality import rules
from jitgen.verify import device, verify
from tests import needs
from tests.sass import k_loop, wrapped

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

SM_100A = Arch("sm_100a")
CONFIG = MoeFc2DenseConfig(tile=Tile(m=128, n=64, k=128), pipeline=Pipeline(num_acc_stage=2))
PAIR = MoeFc2DenseConfig(
    tile=Tile(m=256, n=64, k=128),
    cluster=Cluster(m=2),
    pipeline=Pipeline(num_acc_stage=3),
    schedule=Schedule(two_cta=True),
)
SIZES = [
    Sizes(tokens=1, experts=1, n=8, k=16, top_k=1, num_sms=4),
    Sizes(tokens=129, experts=11, n=136, k=400, top_k=3, num_sms=2),
    Sizes(tokens=32, experts=3, n=72, k=128, top_k=1, num_sms=4),
    Sizes(tokens=3, experts=2, n=8, k=4224, top_k=1, num_sms=2),
    Sizes(tokens=40, experts=9, n=64, k=16, top_k=0, num_sms=2),
    Sizes(tokens=128, experts=76, n=8, k=16, top_k=9, num_sms=2),
]
"""One of everything; tails; whole blocks, and a whole part of a; an expert of more k-blocks than a
chunk; tokens without experts; more experts than a list holds."""


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(
    "config", [CONFIG, pytest.param(PAIR, marks=pytest.mark.nightly)], ids=["one CTA", "a pair"]
)
def test_right(config: MoeFc2DenseConfig, sizes: Sizes) -> None:
    """Through the public function; the second call is a warm one."""
    with device(SM_100A, num_sms=sizes.num_sms):
        for seed in (0, 1):
            case = make(config, sizes, is_exact=seed == 0, seed=seed)
            jitgen.moe_fc2_dense(**case.arguments, config=config)

            assert case.wrong() == 0


@pytest.mark.nightly
@pytest.mark.parametrize(
    "config",
    [
        MoeFc2DenseConfig(
            operands=Operands(out_dtype=DType.F32),
            tile=Tile(m=128, n=64, k=128),
            cluster=Cluster(n=2),
            pipeline=Pipeline(num_acc_stage=2),
        ),
        MoeFc2DenseConfig(
            operands=Operands(out_dtype=DType.F16),
            tile=Tile(m=128, n=128, k=128),
            cluster=Cluster(m=2),
        ),
        MoeFc2DenseConfig(
            tile=Tile(m=128, n=128, k=128),
            pipeline=Pipeline(num_acc_stage=3),
            schedule=Schedule(split_k=4, use_pdl=False),
        ),
        PAIR,
    ],
    ids=lambda config: config.words(),
)
def test_what_no_menu_has(config: MoeFc2DenseConfig) -> None:
    """Clean, and everything reached: verified as `jitgen verify` does."""
    found = verify(config, SM_100A)

    assert found.is_right, found.to_json()


def test_sizes_that_no_vector_covers_are_refused() -> None:
    case = of_sizes(BLOCKS, Sizes(tokens=2, experts=2, n=12, k=16, top_k=1), is_exact=True)
    with device(SM_100A, num_sms=1), pytest.raises(InputError, match="N a multiple of 8"):
        jitgen.moe_fc2_dense(**case.arguments)


MENU = rules(SM_100A, "moe_fc2_dense").candidates(
    MoeFc2DenseProblem(groups=256, m=64, n=7168, k=256)
)
MULTIPLY, LOAD = 49, 96
"""Instructions of the multiply warp and of the load warp for each k-block."""

UPDATE = {64: 68, 128: 106}
"""Those of an update warp, by the columns of a tile."""


@cache
def _library(config: MoeFc2DenseConfig) -> bytes:
    made = compiler.compile_source(render(config, SM_100A), links=False)
    return made.files[made.library]


@pytest.mark.skipif(inspect._nvdisasm() is None, reason="needs nvdisasm: jitgen[inspect]")
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, marks=pytest.mark.nightly if number != 3 else (), id=config.words())
        for number, config in enumerate(MENU)
    ],
)
def test_no_spills_and_few_instructions(config: MoeFc2DenseConfig) -> None:
    """And no loop around a single asynchronous instruction."""
    library = _library(config)
    text = inspect.sass(library)

    assert inspect.resources(library).stack_bytes == inspect.spills(text) == 0
    assert wrapped(text) == []
    assert len(k_loop(text, "UTCQMMA")) <= MULTIPLY
    assert len(k_loop(text, "UTMALDG")) <= LOAD
    assert len(k_loop(text, "LDTM")) <= UPDATE[config.tile.n]
