# SPDX-License-Identifier: Apache-2.0
"""Kernels on the GPU at hand: every layout, scale and edge, against float32."""

from __future__ import annotations

import random
import sys

import pytest
import torch

import jitgen
from jitgen.config import DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.errors import CaptureMiss
from jitgen.runtime.session import current
from tests.gpu.configs import ACCUMULATOR_BITS, ARCH, CONFIGS, OF_MENUS, depth
from tests.problems import Solved, make, make_for, verify, verify_exact

FP8_BITS = ACCUMULATOR_BITS[DType.E4M3]

names = [config.name(ARCH) for config in CONFIGS]


def edge_rows(tile: int) -> list[int]:
    return [0, 1, tile - 1, 0, tile, tile + 1, 2 * tile + 3, 0]


def check(config: GroupedGemmConfig, case: Solved) -> torch.Tensor:
    """Compute `case` with `config` and return the result, once it is verified."""
    out = jitgen.grouped_gemm(**case.arguments, config=config)
    verify(case, out, accumulator_bits=ACCUMULATOR_BITS[config.operands.a_dtype])
    return out


@pytest.mark.parametrize("config", CONFIGS, ids=names)
class TestEveryKernel:
    @pytest.mark.parametrize(("n", "k"), [(512, 1024), (200, 272), (8, 16)])
    def test_edges(self, config: GroupedGemmConfig, n: int, k: int) -> None:
        """Empty groups, rows around the tile, tails of N and K; unowned rows keep their NaN."""
        check(
            config, make_for(config, edge_rows(config.tile.m), n, depth(config, k), device="cuda")
        )

    def test_exact(self, config: GroupedGemmConfig) -> None:
        """Small integers and power-of-two scales: the result is right to the bit."""
        rows = edge_rows(config.tile.m)
        case = make_for(config, rows, 328, depth(config, 656), device="cuda", is_exact=True)

        verify_exact(case, jitgen.grouped_gemm(**case.arguments, config=config))

    def test_large_k(self, config: GroupedGemmConfig) -> None:
        """More than 64 k-blocks, which is more than one chunk of weight scales."""
        rows, k = [3, 0, config.tile.m + 5], depth(config, 8192 + 400)
        check(config, make_for(config, rows, 264, k, device="cuda"))

    def test_many_tiles(self, config: GroupedGemmConfig) -> None:
        """More tiles than SMs, so that every pipeline wraps; twice, with equal results."""
        case = make_for(config, [700, 0, 1300, 60, 900], 2048, depth(config, 640), device="cuda")
        first = check(config, case).clone()
        second = jitgen.grouped_gemm(**case.arguments, config=config)

        assert torch.equal(first[case.is_owned], second[case.is_owned])


@pytest.mark.parametrize("layout", Layout)
def test_256_groups(layout: Layout) -> None:
    """
    DeepSeek-V3's experts, most of them with few rows and many with none; the selector chooses.
    """
    chance = random.Random(3)
    rows = [chance.choice([0, 0, 1, 2, 7, 64, 65]) for _ in range(256)]
    case = make(layout, "block128", rows, 512, 512, device="cuda")

    verify(case, jitgen.grouped_gemm(**case.arguments), accumulator_bits=FP8_BITS)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("rows", [[1], [1] * 8, [33] * 8, [128] * 8, [512] * 4, [2048, 1]])
def test_the_selected_kernel(layout: Layout, rows: list[int]) -> None:
    """What the selector chooses is right, from one token to prefill."""
    case = make(layout, ScaleGranularity.BLOCK128, rows, 1024, 768, device="cuda")

    verify(case, jitgen.grouped_gemm(**case.arguments), accumulator_bits=FP8_BITS)


@pytest.mark.parametrize("out_dtype", [DType.F16, DType.F32])
@pytest.mark.parametrize("layout", Layout)
def test_results_of_other_types(layout: Layout, out_dtype: DType) -> None:
    """N and K of 16 bytes more than a multiple of every tile; with out given, and not."""
    config = OF_MENUS[layout, out_dtype]
    n = 512 + 128 // out_dtype.bits
    case = make(layout, "block128", [40, 0, 200], n, 528, device="cuda", out_dtype=out_dtype)
    new = {**case.arguments, "out": None, "out_dtype": case.arguments["out"].dtype}
    out = jitgen.grouped_gemm(**case.arguments, config=config)
    verify(case, out, accumulator_bits=FP8_BITS)
    made = jitgen.grouped_gemm(**new, config=config)

    assert torch.equal(made[case.is_owned], case.arguments["out"][case.is_owned])


def config_without_scales(layout: Layout) -> GroupedGemmConfig:
    """Return a kernel of bf16 operands; skips the test where the target has none."""
    for config in CONFIGS:
        kind = (config.layout, config.operands.a_dtype, config.operands.scale_granularity)
        if kind == (layout, DType.BF16, ScaleGranularity.TENSOR):
            return config
    pytest.skip(f"{ARCH} has no kernels for bf16 operands")


@pytest.mark.parametrize("layout", Layout)
def test_bf16_without_scales(layout: Layout) -> None:
    """Operands that come without scales have scales of one; N and K end with 16 bytes more."""
    config = config_without_scales(layout)
    case = make_for(config, [65, 0, 3], 264, 520, device="cuda")
    ones = {name: torch.ones_like(case.arguments[name]) for name in ("a_scale", "b_scale")}
    scaled = jitgen.grouped_gemm(**{**case.arguments, **ones}, config=config).clone()
    plain = jitgen.grouped_gemm(
        **{**case.arguments, "a_scale": None, "b_scale": None}, config=config
    )

    assert torch.equal(plain[case.is_owned], scaled[case.is_owned])


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("k", [16, 128, 272])
def test_scales_in_the_other_order(layout: Layout, k: int) -> None:
    """
    Contiguous scales, before and after those in the kernels' order; with one k-block both may be.
    """
    case = make(layout, "block128", [200, 0, 77], 264, k, device="cuda")
    other = {**case.arguments, "a_scale": case.arguments["a_scale"].contiguous()}
    for arguments in (case.arguments, other, case.arguments, other):
        arguments["out"].fill_(float("nan"))

        verify(case, jitgen.grouped_gemm(**arguments), accumulator_bits=FP8_BITS)


def test_two_streams() -> None:
    """The same kernel on two streams at once, each with tensors of its own."""
    cases = [
        make("ragged", "block128", [300, 0, 77], 1024, 1024, device="cuda", seed=s) for s in (1, 2)
    ]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    for _ in range(20):
        for case, stream in zip(cases, streams, strict=True):
            with torch.cuda.stream(stream):
                jitgen.grouped_gemm(**case.arguments)
    torch.cuda.synchronize()
    for case in cases:
        verify(case, case.arguments["out"], accumulator_bits=FP8_BITS)


def test_a_cuda_graph() -> None:
    """A captured call follows new values of its inputs, the groups' rows included."""
    case = make("ragged", "block128", [100, 3, 60], 512, 512, device="cuda")
    jitgen.grouped_gemm(**case.arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        jitgen.grouped_gemm(**case.arguments)
    other = make("ragged", "block128", [0, 160, 3], 512, 512, device="cuda", seed=9)
    for name, tensor in case.arguments.items():
        tensor.copy_(other.arguments[name])
    graph.replay()
    torch.cuda.synchronize()

    verify(other, case.arguments["out"], accumulator_bits=FP8_BITS)


def test_scales_that_a_capture_makes() -> None:
    """They are filled by replays of its graph: a call before the first one has others."""
    config = config_without_scales(Layout.RAGGED)
    plain = {"a_scale": None, "b_scale": None}
    loads = make_for(config, [65], 264, 520, device="cuda")
    jitgen.grouped_gemm(**{**loads.arguments, **plain}, config=config)
    case = make_for(config, [3, 0, 65, 1, 7, 0, 2], 264, 520, device="cuda")
    ones = {name: torch.ones_like(case.arguments[name]) for name in ("a_scale", "b_scale")}
    expected = jitgen.grouped_gemm(**{**case.arguments, **ones}, config=config).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        jitgen.grouped_gemm(**{**case.arguments, **plain}, config=config)
    for call in (
        lambda: jitgen.grouped_gemm(**{**case.arguments, **plain}, config=config),
        graph.replay,
    ):
        case.arguments["out"].fill_(float("nan"))
        call()

        assert torch.equal(case.arguments["out"][case.is_owned], expected[case.is_owned])


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_capture_of_a_kernel_that_is_not_loaded() -> None:
    """A miss during capture raises its own error, and the call works after it."""
    case = make("masked", "tensor", [4, 0, 9], 64, 128, device="cuda")
    config = next(
        config
        for config in CONFIGS
        if config.layout == "masked" and config.operands.scale_granularity == "tensor"
    )
    current.get().reset()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(CaptureMiss, match="before the capture"), torch.cuda.graph(graph):
        jitgen.grouped_gemm(**case.arguments, config=config)

    verify(case, jitgen.grouped_gemm(**case.arguments, config=config), accumulator_bits=FP8_BITS)


def test_the_compiler_was_never_imported() -> None:
    """On the carried cache everything ran without it (this test comes last)."""
    from tests.gpu.conftest import CACHE

    if not CACHE:
        pytest.skip("kernels are compiled here, for JITGEN_GPU_CACHE is not set")

    assert "cutlass" not in sys.modules
    assert "jinja2" not in sys.modules
