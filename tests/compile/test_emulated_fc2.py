# SPDX-License-Identifier: Apache-2.0
"""`moe_fc2_dense` on an emulated GPU: every edge, as on cpu, and no word of memory that spills."""

from __future__ import annotations

import pytest

import jitgen
from jitgen.codegen.render import render
from jitgen.compile import compiler, inspect
from jitgen.config import Arch, DType
from jitgen.config.grouped_gemm import Cluster, Operands, Schedule, Tile
from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig, MoEFc2DenseProblem
from jitgen.errors import InputError
from jitgen.ops.moe_fc2_dense.samples import BLOCKS, Sizes, make, of_sizes
from jitgen.targets.legality import rules
from jitgen.verify import device, verify
from tests import needs

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

CONFIG = MoEFc2DenseConfig(tile=Tile(m=64, n=64, k=128))
SIZES = [
    Sizes(tokens=1, experts=1, n=8, k=16, top_k=1, num_sms=4),
    Sizes(tokens=65, experts=11, n=136, k=400, top_k=3, num_sms=1),
    Sizes(tokens=16, experts=3, n=72, k=128, top_k=1, num_sms=4),
    Sizes(tokens=3, experts=2, n=8, k=4224, top_k=1, num_sms=1),
    Sizes(tokens=40, experts=9, n=64, k=16, top_k=0, num_sms=2),
    Sizes(tokens=64, experts=76, n=8, k=16, top_k=9, num_sms=1),
]
"""One of everything; tails; whole blocks; an expert of more k-blocks than a chunk; tokens without
experts; more experts than a list holds."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("is_exact", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_right(sizes: Sizes, is_exact: bool) -> None:
    """Through the public function; the second call is a warm one."""
    with device("sm_90a", num_sms=sizes.num_sms):
        for seed in (0, 1):
            case = make(CONFIG, sizes, is_exact=is_exact, seed=seed)
            jitgen.moe_fc2_dense(**case.arguments, config=CONFIG)

            assert case.wrong() == 0


@pytest.mark.nightly
@pytest.mark.parametrize(
    "config",
    [
        MoEFc2DenseConfig(
            operands=Operands(out_dtype=DType.F32),
            tile=Tile(m=64, n=48, k=128),
            cluster=Cluster(m=2),
        ),
        pytest.param(
            MoEFc2DenseConfig(
                operands=Operands(out_dtype=DType.F32),
                tile=Tile(m=128, n=144, k=128),
                cluster=Cluster(m=2),
            ),
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            MoEFc2DenseConfig(
                operands=Operands(out_dtype=DType.F16),
                tile=Tile(m=128, n=128, k=128),
                schedule=Schedule(split_k=4, use_pdl=False),
            ),
            marks=pytest.mark.nightly,
        ),
    ],
    ids=lambda config: config.to_name(),
)
def test_what_no_menu_has(config: MoEFc2DenseConfig) -> None:
    """Clean, and everything reached: verified as `jitgen verify` does."""
    found = verify(config, Arch.SM_90A)

    assert found.is_right, found.to_json()


def test_any_order_of_scales_serves() -> None:
    """By a copy: the TMA unit reads tokens that lie together."""
    sizes = Sizes(tokens=10, experts=4, n=16, k=144, top_k=2)
    case = of_sizes(BLOCKS, sizes, is_exact=True)
    given = case.arguments
    given["a_scale"], given["router_weights"] = (
        given["a_scale"].contiguous(),
        given["router_weights"].contiguous(),
    )
    given["a"] = given["a"].transpose(0, 1).contiguous().transpose(0, 1)
    with device("sm_90a", num_sms=1):
        jitgen.moe_fc2_dense(**given, config=CONFIG)

    assert case.wrong() == 0


def test_sizes_that_no_vector_covers_are_refused() -> None:
    case = of_sizes(BLOCKS, Sizes(tokens=2, experts=2, n=12, k=16, top_k=1), is_exact=True)
    with device("sm_90a", num_sms=1), pytest.raises(InputError, match="N a multiple of 8"):
        jitgen.moe_fc2_dense(**case.arguments)


MENU = rules(Arch.SM_90A, "moe_fc2_dense").candidates(
    MoEFc2DenseProblem(groups=256, m=64, n=7168, k=256)
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, marks=pytest.mark.nightly if number % 5 else (), id=config.to_name())
        for number, config in enumerate(MENU)
    ],
)
def test_no_spills_and_no_waits_between_matrix_instructions(config: MoEFc2DenseConfig) -> None:
    made = compiler.compile_source(render(config, Arch.SM_90A))
    library = made.files[made.library]
    disassembly = inspect.sass(library)

    assert inspect.resources(library).stack_bytes == inspect.spills(disassembly) == 0
    assert not inspect.wgmma_serialised(disassembly)
