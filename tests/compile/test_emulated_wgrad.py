# SPDX-License-Identifier: Apache-2.0
"""`grouped_gemm_wgrad` and gradients on an emulated GPU: every edge, and no word that spills."""

from __future__ import annotations

import pytest
import torch

import jitgen
from jitgen.codegen.render import render
from jitgen.compile import compiler, inspect
from jitgen.config import Arch, DType
from jitgen.config.grouped_gemm import Cluster, Tile
from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig, GroupedGemmWgradProblem
from jitgen.errors import InputError
from jitgen.ops.grouped_gemm_wgrad.samples import Sizes, make
from jitgen.targets.legality import rules
from jitgen.verify import device, verify
from tests import needs
from tests.arguments import int32

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

CONFIG = GroupedGemmWgradConfig(layout="ragged", tile=Tile(m=64, n=64, k=64))
SIZES = [
    Sizes(rows=(1,), n=8, k=8, num_sms=4),
    Sizes(rows=(0, 0), n=72, k=8, num_sms=1),
    Sizes(rows=(65, 0, 63, 64, 1), n=136, k=72, num_sms=1),
    Sizes(rows=(3,) * 9, n=64, k=64, num_sms=2),
    Sizes(rows=(900,), n=8, k=64, num_sms=1),
]
"""One of everything; no rows; around a k-block; more tiles than are handed over at once; many."""


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("is_exact", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_right(sizes: Sizes, is_exact: bool) -> None:
    """Through the public function; the second call is a warm one."""
    with device("sm_90a", num_sms=sizes.num_sms):
        for seed in (0, 1):
            case = make(CONFIG, sizes, is_exact=is_exact, seed=seed)
            jitgen.grouped_gemm_wgrad(**case.arguments, config=CONFIG)

            assert case.wrong() == 0


@pytest.mark.nightly
@pytest.mark.parametrize(
    "config",
    [
        GroupedGemmWgradConfig(
            layout="masked", out_dtype=DType.F32, tile=Tile(m=64, n=128, k=64), cluster=Cluster(n=2)
        ),
        GroupedGemmWgradConfig(
            layout="ragged", a_dtype=DType.F16, out_dtype=DType.F16, tile=Tile(m=64, n=64, k=64)
        ),
        GroupedGemmWgradConfig(
            layout="ragged", tile=Tile(m=128, n=256, k=64), cluster=Cluster(m=2)
        ),
        GroupedGemmWgradConfig(
            layout="ragged", out_dtype=DType.F32, tile=Tile(m=256, n=192, k=64), use_pdl=False
        ),
        GroupedGemmWgradConfig(
            layout="masked",
            tile=Tile(m=256, n=128, k=64),
            cluster=Cluster(n=2),
            num_ab_stage=3,
            raster=1,
        ),
    ],
    ids=lambda config: config.to_name(),
)
def test_verified(config: GroupedGemmWgradConfig) -> None:
    """Clean, and everything reached: as `jitgen verify` does it."""
    found = verify(config, Arch.SM_90A)

    assert found.is_right, found.to_json()


def test_what_is_no_vector_is_refused() -> None:
    with (
        device("sm_90a", num_sms=1),
        pytest.raises(InputError, match="dy: must have N a multiple of 8 on sm_90a"),
    ):
        jitgen.grouped_gemm_wgrad(
            torch.zeros(9, 12).bfloat16(), torch.zeros(9, 16).bfloat16(), offs=int32(9)
        )


@pytest.mark.nightly
def test_autograd_on_a_gpu() -> None:
    """Both gradients come from kernels of sm_90a."""
    torch.manual_seed(0)
    a, b = torch.randn(70, 64).bfloat16(), torch.randn(2, 72, 64).bfloat16()
    offs, dy = int32(3, 67), torch.randn(70, 72).bfloat16()
    a.requires_grad_(), b.requires_grad_()
    with device("sm_90a", num_sms=2):
        y = jitgen.grouped_gemm(a, b, offs=offs)
        da, db = torch.autograd.grad(y, (a, b), dy)
    y = jitgen.grouped_gemm(a, b, offs=offs)
    expected = torch.autograd.grad(y, (a, b), dy)

    for found, wanted in zip((da, db), expected, strict=True):
        assert torch.allclose(found.float(), wanted.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("dtype", "out_dtype"),
    [(DType.BF16, DType.BF16), (DType.BF16, DType.F32), (DType.F16, DType.F16)],
)
@pytest.mark.parametrize("layout", ["ragged", "masked"])
def test_what_may_be_chosen_neither_spills_nor_waits(
    layout: str, dtype: DType, out_dtype: DType
) -> None:
    problem = GroupedGemmWgradProblem(
        layout=layout, groups=8, m=2048, n=4096, k=2048, a_dtype=dtype, out_dtype=out_dtype
    )
    for config in rules(Arch.SM_90A, problem.op).candidates(problem):
        made = compiler.compile_source(render(config, Arch.SM_90A))
        library = made.files[made.library]
        disassembly = inspect.sass(library)

        assert inspect.resources(library).stack_bytes == inspect.spills(disassembly) == 0, config
        assert not inspect.wgmma_serialised(disassembly), config
