# SPDX-License-Identifier: Apache-2.0
"""`grouped_gemm` with N contiguous in b, as the transpose of weights (G, K, N) has it."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

import jitgen
from jitgen.config import BLayout, DType, Layout
from jitgen.config.grouped_gemm import Cluster, GroupedGemmConfig, Operands, Tile
from jitgen.errors import InputError
from jitgen.ops.grouped_gemm import call as calling
from jitgen.ops.grouped_gemm.samples import Solved, random_call
from jitgen.runtime.session import current
from jitgen.targets.legality import check
from jitgen.verify import device, verify
from tests import needs
from tests.arguments import int32
from tests.problems import make_for, verify_exact
from tests.problems import verify as near

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

ROWS = [0, 5, 0, 19, 1]
_SMALL = Tile(m=16, n=32, k=128)


def config(
    layout: Layout = Layout.RAGGED,
    *,
    dtype: DType = DType.BF16,
    scales: str = "tensor",
    out_dtype: DType = DType.BF16,
    tile: Tile = _SMALL,
    **parts: Any,
) -> GroupedGemmConfig:
    operands = Operands(
        a_dtype=dtype,
        b_dtype=dtype,
        out_dtype=out_dtype,
        scale_granularity=scales,
        b_layout=BLayout.N_MAJOR,
    )
    return GroupedGemmConfig(layout=layout, operands=operands, tile=tile, **parts)


def weights(n: int = 40, k: int = 64, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """(G, N, K), N contiguous."""
    chance = torch.Generator().manual_seed(n * k)
    return torch.randn(3, k, n, generator=chance).to(dtype).mT


def rows(k: int = 64, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(24, k, generator=torch.Generator().manual_seed(k)).to(dtype)


OFFS = int32(5, 5, 24)


@pytest.mark.parametrize(
    ("layout", "dtype", "scales"),
    [
        (Layout.RAGGED, DType.BF16, "tensor"),
        (Layout.MASKED, DType.F32, "row"),
        (Layout.CONTIGUOUS, DType.BF16, "row"),
        (Layout.RAGGED, DType.F16, "tensor"),
        *(
            pytest.param(*kind, marks=pytest.mark.nightly)
            for kind in product(Layout, (DType.BF16, DType.F32), ("tensor", "row", "block128"))
        ),
    ],
)
@pytest.mark.parametrize(("n", "k"), [(136, 272), (33, 129), (1, 5)])
def test_every_bit(layout: Layout, dtype: DType, scales: str, n: int, k: int) -> None:
    """Tails of N and K, empty groups, padding rows, and NaN in weights that must not be read."""
    forced = config(layout, dtype=dtype, scales=scales)
    problem = jitgen.GroupedGemmProblem(
        **forced.operands.to_json(), layout=layout, groups=len(ROWS), m=sum(ROWS), n=n, k=k
    )
    call = random_call(problem, ROWS, is_exact=True, has_spare=True, spoils_idle=True)

    assert n == 1 or call.b.stride(1) == 1
    if n == 1:  # of one column nothing is contiguous but K, too
        return
    jitgen.grouped_gemm(**call.arguments, config=forced)
    assert Solved.of(call, is_exact=True).wrong() == 0


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize(("n", "k"), [(40, 64), (64, 64), (130, 129)])
def test_as_with_k_contiguous(dtype: torch.dtype, n: int, k: int) -> None:
    """Without a copy, and the same bits, called in turn: K = N makes no difference."""
    a, b = rows(k, dtype), weights(n, k, dtype)
    results = [jitgen.grouped_gemm(a, w, offs=OFFS) for w in (b, b.contiguous(), b, b.contiguous())]

    assert all(torch.equal(each, results[0]) for each in results)
    configs = [each.config for launches in current.get().memo.values() for each in launches]
    layouts = {each.operands.b_layout for each in configs}  # type: ignore[attr-defined]
    assert layouts == {BLayout.PLAIN, BLayout.N_MAJOR}


def test_both_ways_are_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward of one layer have equal shapes where K = N."""
    a, b = rows(), weights(64, 64)
    both = (b, b.contiguous())
    expected = [jitgen.grouped_gemm(a, w, offs=OFFS) for w in both]

    def run(*_: Any) -> Any:
        raise AssertionError("a warm call was validated")

    monkeypatch.setattr(type(calling.CALL), "run", run)
    for w, result in zip(both, expected, strict=True):
        assert torch.equal(jitgen.grouped_gemm(a, w, offs=OFFS), result)


def test_part_of_a_matrix() -> None:
    """Columns of a larger matrix, and groups that do not lie one after the other."""
    a, every = rows(), torch.randn(6, 64, 96).bfloat16()
    b = every[::2, :, 8:48].mT

    expected = jitgen.grouped_gemm(a, b.contiguous(), offs=OFFS)
    assert torch.equal(jitgen.grouped_gemm(a, b, offs=OFFS), expected)


def test_parameters_of_gpt_oss() -> None:
    """(G, K, N) as transformers keeps them, with interleaved ups: a view is enough."""
    w = torch.nn.Parameter(torch.randn(3, 64, 80).bfloat16(), requires_grad=False)
    found = jitgen.torch.grouped_mm(rows(), w, OFFS)

    assert torch.equal(found, jitgen.grouped_gemm(rows(), w.mT.contiguous(), offs=OFFS))


def test_tracers_keep_the_strides() -> None:
    a, b = rows(), weights()
    expected = jitgen.grouped_gemm(a, b, offs=OFFS)
    compiled = torch.compile(
        lambda a, w: jitgen.grouped_gemm(a, w.mT, offs=OFFS), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(a, b.mT), expected)
    mode = FakeTensorMode()
    with mode:
        a_fake, b_fake, offs = (mode.from_tensor(x) for x in (a, b, OFFS))
        fake = jitgen.grouped_gemm(a_fake, b_fake, offs=offs)
    assert fake.shape == expected.shape
    torch.library.opcheck(torch.ops.jitgen.grouped_gemm.default, (a, b), {"offs": OFFS})


@pytest.mark.parametrize(
    ("b", "words"),
    [
        (
            torch.ones(3, 64, 80).bfloat16()[:, :, ::2].mT,
            r"b: must have K or N contiguous \(got strides \(5120, 2, 80\)\)",
        ),
        (
            torch.ones(3, 64, 40).half().mT,
            r"b: must be bfloat16 .*\(got torch.float16\)",
        ),
    ],
)
def test_refusals(b: Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words):
        jitgen.grouped_gemm(rows(), b, offs=OFFS)


def test_other_types_are_refused() -> None:
    """Of a byte matrix instructions read K alone: a copy is the caller's to make."""
    a, a_scale = jitgen.quantize.per_row(torch.randn(24, 64))
    b, b_scale = jitgen.quantize.per_row(torch.randn(3, 40, 64))
    with pytest.raises(InputError, match="b: must be contiguous in its last dimension"):
        jitgen.grouped_gemm(a, b.mT.contiguous().mT, a_scale, b_scale, offs=OFFS)


class TestLegality:
    @pytest.mark.parametrize(
        ("arch", "dtype", "words"),
        [
            ("sm_90a", DType.E4M3, "N contiguous of bf16 and f16; have K contiguous"),
            ("cpu", DType.E4M3, "N contiguous of bf16 and f16 and f32; have K"),
            ("sm_100a", DType.E4M3, "N contiguous of no type; have K"),
            ("sm_120a", DType.E4M3, "N contiguous of no type; have K"),
        ],
    )
    def test_refused(self, arch: str, dtype: DType, words: str) -> None:
        verdict = check(config(dtype=dtype, scales="row", tile=Tile(m=64, n=64, k=128)), arch)

        assert not verdict
        assert verdict.code == "E_B_LAYOUT"
        assert words in verdict.reason

    def test_names(self) -> None:
        mine = config()
        name = mine.name("cpu")

        assert name == "grouped_gemm_ragged_bf16_bf16_tensor_bf16_bnmajor_t16x32x128_c1x1_acc1_cpu"
        assert GroupedGemmConfig.parse(name)[0] == mine
        assert "nmajor" not in GroupedGemmConfig.from_json(
            {**mine.to_json(), "operands": {**mine.operands.to_json(), "b_layout": "plain"}}
        ).name("cpu")

    def test_candidates(self) -> None:
        """As many as with K contiguous, on each target that has any."""
        sizes = {"groups": 8, "m": 512, "n": 2880, "k": 2880, "scale_granularity": "tensor"}
        problem = jitgen.GroupedGemmProblem(layout="ragged", a_dtype="bf16", **sizes)
        across = jitgen.GroupedGemmProblem(
            layout="ragged", a_dtype="bf16", b_layout="nmajor", **sizes
        )
        for arch in ("cpu", "sm_90a"):
            plain = jitgen.select(problem, arch).candidates
            assert len(jitgen.select(across, arch).candidates) == len(plain)

    def test_sizes(self) -> None:
        """Rows of b end with N: the TMA unit's grain is of b's type, too."""
        problem = jitgen.GroupedGemmProblem(
            layout="ragged",
            groups=1,
            m=64,
            n=100,
            k=64,
            a_dtype="bf16",
            out_dtype="f32",
            scale_granularity="tensor",
            b_layout="nmajor",
        )
        with pytest.raises(ValueError, match="N a multiple of 8 on sm_90a, 16 bytes of bf16"):
            jitgen.select(problem, "sm_90a")


GPU = [
    config(tile=Tile(m=64, n=64, k=64), cluster=Cluster(n=2)),
    pytest.param(
        config(Layout.MASKED, out_dtype=DType.F32, tile=Tile(m=128, n=128, k=64), scales="row"),
        marks=pytest.mark.nightly,
    ),
    pytest.param(
        config(Layout.CONTIGUOUS, tile=Tile(m=256, n=80, k=64), out_dtype=DType.F16),
        marks=pytest.mark.nightly,
    ),
    pytest.param(
        config(Layout.CONTIGUOUS, tile=Tile(m=128, n=96, k=64), cluster=Cluster(m=2)),
        marks=pytest.mark.nightly,
    ),
]
"""Every swizzle of b's columns, alone, shared along M and with a shared along N."""


@pytest.mark.nightly
@pytest.mark.parametrize("forced", GPU)
def test_on_an_emulated_gpu(forced: GroupedGemmConfig) -> None:
    with device("sm_90a", num_sms=4):
        case = make_for(forced, [0, 1, 63, 0, 65, 3], 136, 272, is_exact=True)
        verify_exact(case, jitgen.grouped_gemm(**case.arguments, config=forced))
        case = make_for(forced, [3, 0, 69], 200, 400)
        near(case, jitgen.grouped_gemm(**case.arguments, config=forced))


@pytest.mark.nightly
@pytest.mark.parametrize("layout", Layout)
def test_the_emulator_finds_nothing(layout: Layout) -> None:
    """In any mode: no race, no wrong value, and nothing that is never executed."""
    for tile, cluster in (
        (Tile(m=128, n=192, k=64), Cluster(m=2)),
        (Tile(m=128, n=96, k=64), Cluster(n=2)),
    ):
        found = verify(config(layout, tile=tile, cluster=cluster), "sm_90a", modes="quick")

        assert found.is_right, found.to_json()
