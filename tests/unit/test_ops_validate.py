# SPDX-License-Identifier: Apache-2.0
"""Every mistake gets one error that names the argument, what is required, and what came."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from jitgen import quantize
from jitgen.config import Arch, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem, Tile
from jitgen.errors import InputError, UnsupportedConfig
from jitgen.ops import launch
from jitgen.ops.grouped_gemm.call import grouped_gemm
from jitgen.runtime.devices import Emulated, on_device
from jitgen.runtime.loader import KernelLoader
from jitgen.runtime.session import current
from jitgen.selection.choice import Choice, Chooser
from tests.arguments import E4M3, MISTAKES, G, K, M, N, config, good, int32, wrong


class FakeKernel:
    """Stands in for a compiled kernel: takes everything, keeps what it got."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.config: GroupedGemmConfig | None = None

    def function(self, *arguments: Any) -> None:
        self.calls.append(arguments)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    kernel = FakeKernel()

    def get(loader: KernelLoader, config: GroupedGemmConfig, arch: Arch) -> Any:
        kernel.config = config
        return SimpleNamespace(function=kernel.function, arch=arch, config=config)

    monkeypatch.setattr(KernelLoader, "get", get)
    current.get().forget()
    yield kernel
    current.get().forget()


@pytest.fixture
def on_sm90(fake: FakeKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let host tensors count as those of an H200."""

    def function(config: GroupedGemmConfig) -> Any:
        fake.config = config
        return fake.function

    h200 = Emulated(arch=Arch.SM_90A, num_sms=132, function=function)
    monkeypatch.setattr(current.get(), "emulated", h200)


@pytest.mark.parametrize("layout", ["ragged", "contiguous", "masked"])
def test_good_arguments_reach_the_kernel(fake: FakeKernel, layout: str) -> None:
    given = good(layout)
    out = torch.empty(*given["a"].shape[:-1], N, dtype=torch.bfloat16)
    groups = next(given[key] for key in ("offs", "m_indices", "masked_m") if key in given)

    assert grouped_gemm(**given, out=out) is out
    assert grouped_gemm(**given, out=out) is out
    assert fake.calls[0] == fake.calls[1]
    assert [id(x) for x in fake.calls[0]] == [
        id(x) for x in (given["a"], given["b"], given["a_scale"], given["b_scale"], groups, out)
    ]
    assert fake.config is not None
    assert fake.config.layout is Layout(layout)
    assert len(current.get().memo) == 1


def test_a_new_output_is_bfloat16(fake: FakeKernel) -> None:
    for _ in range(2):
        out = grouped_gemm(**good())
        assert (out.shape, out.dtype) == ((M, N), torch.bfloat16)
    assert grouped_gemm(**good(), out_dtype=torch.float32).dtype is torch.float32
    assert grouped_gemm(**good("masked")).shape == (G, M, N)


@pytest.mark.parametrize(
    ("of_a", "of_b", "granularity"),
    [
        (quantize.per_tensor, quantize.per_matrix, "tensor"),
        (quantize.per_row, quantize.per_row, "row"),
        (quantize.per_token_group, quantize.per_block, "block128"),
    ],
)
@pytest.mark.parametrize("size_k", [16, 128, 272])
@pytest.mark.parametrize("rows", [1, 24])
def test_granularity_is_recognised(
    fake: FakeKernel,
    of_a: Callable[..., Any],
    of_b: Callable[..., Any],
    granularity: str,
    size_k: int,
    rows: int,
) -> None:
    """By the dimensions of b_scale, so neither K up to 128 nor one row is ambiguous."""
    a, a_scale = of_a(torch.ones(rows, size_k))
    b, b_scale = of_b(torch.ones(G, N, size_k))
    grouped_gemm(a, b, a_scale, b_scale, offs=int32(0, rows, rows))

    assert fake.config is not None
    assert fake.config.operands.scale_granularity is ScaleGranularity(granularity)


def test_operands_without_scales_get_ones(fake: FakeKernel) -> None:
    a, b = torch.ones(M, K, dtype=torch.bfloat16), torch.ones(G, N, K, dtype=torch.bfloat16)
    for _ in range(2):
        grouped_gemm(a, b, offs=int32(1, 2, 3))
    (_, _, a_scale, b_scale, *_), again = fake.calls

    assert (a_scale.tolist(), b_scale.tolist()) == ([1.0], [1.0] * G)
    assert again[2] is a_scale
    assert again[3] is b_scale


def test_no_rows_launch_nothing(fake: FakeKernel) -> None:
    a, a_scale = quantize.per_token_group(torch.empty(0, K))
    given = good() | {"a": a, "a_scale": a_scale}
    for _ in range(2):
        assert grouped_gemm(**given).shape == (0, N)

    assert not fake.calls


def test_scales_in_the_other_order_are_copied(fake: FakeKernel) -> None:
    """A fresh contiguous a_scale is what most would pass: it works, for the price of a copy."""
    for scale in (torch.rand(M, 3), torch.rand(3, M + 1).T[:M]):
        for _ in range(2):  # the second time warm
            grouped_gemm(**good() | {"a_scale": scale})
            copy = fake.calls[-1][2]
            assert torch.equal(copy, scale)
            assert copy.stride() == (1, M)


def test_memo_is_bounded(fake: FakeKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "MEMO_SIZE", 4)
    for rows in range(1, 12):
        a, a_scale = quantize.per_token_group(torch.ones(rows, K))
        grouped_gemm(**good() | {"a": a, "a_scale": a_scale})
        assert len(current.get().memo) <= 4


def test_expected_rows_change_the_choice(fake: FakeKernel) -> None:
    """Masked groups count as full unless told."""
    grouped_gemm(**good("masked"))
    full = fake.config
    grouped_gemm(**good("masked"), expected_m=1)

    assert full is not None
    assert fake.config is not None
    assert fake.config.tile.m < full.tile.m


def test_calls_that_ask_for_low_latency_are_remembered_apart(
    fake: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a call says is a part of what it is remembered by, and warm calls choose nothing."""
    found = []
    own = Chooser.select

    def spy(self: Chooser, asked: GroupedGemmProblem, *rest: Any, **options: Any) -> Choice:
        found.append(asked.min_latency)
        return own(self, asked, *rest, **options)

    monkeypatch.setattr(Chooser, "select", spy)
    for said in (None, True, False):
        for _ in range(2):
            grouped_gemm(**good(), min_latency=said)

    assert found == [None, True, False]
    assert len(current.get().memo) == 3


def test_low_latency_reaches_its_kernel(fake: FakeKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """On sm_120a it has one of its own; where more rows are expected it changes nothing."""

    def function(config: GroupedGemmConfig) -> Any:
        fake.config = config
        return fake.function

    gpu = Emulated(arch=Arch("sm_120a"), num_sms=170, function=function)
    monkeypatch.setattr(current.get(), "emulated", gpu)
    offs = int32(3, 3, 5)
    a, a_scale = quantize.mxfp8(torch.ones(5, 256), offs=offs)
    b, b_scale = quantize.mxfp4(torch.ones(3, 128, 256))
    found = []
    for more in (
        {"min_latency": True},
        {"min_latency": True, "expected_m": 99},
        {"expected_m": 99},
    ):
        grouped_gemm(a, b, a_scale, b_scale, offs=offs, **more)
        found.append(fake.config)

    assert found[0].tile == Tile(m=8, n=64, k=512)
    assert found[1] == found[2] != found[0]


def test_a_forced_config_is_used(fake: FakeKernel) -> None:
    for forced in (config(), config(tile=Tile(m=64, n=16, k=128))):
        grouped_gemm(**good(), config=forced)
        assert fake.config == forced


def test_a_forced_config_must_be_legal(fake: FakeKernel) -> None:
    with pytest.raises(UnsupportedConfig, match="E_TILE_M"):
        grouped_gemm(**good(), config=config(tile=Tile(m=5, n=32, k=128)))


@pytest.mark.parametrize(
    ("given", "message"), [row[1:] for row in MISTAKES], ids=[r[0] for r in MISTAKES]
)
def test_mistakes_are_named(fake: FakeKernel, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        grouped_gemm(**given)

    assert str(caught.value).startswith(f"{caught.value.argument}: ")
    assert caught.value.__context__ is None  # no traceback of the warm path above it
    assert not fake.calls
    assert not current.get().memo


def misaligned(*shape: int) -> Tensor:
    size = torch.Size(shape).numel()
    return torch.zeros(size + 8, dtype=torch.uint8)[8:].view(E4M3).view(shape)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (wrong(a=misaligned(M, K)), r"a: must start at a multiple of 16 bytes \(got address 0x"),
        (
            wrong(a=torch.zeros(M, K + 8, dtype=torch.uint8).view(E4M3)[:, :K]),
            r"a: must have strides that are multiples of 16 bytes, 16 elements \(got strides \(280",
        ),
        (
            wrong(out=torch.empty(M, N + 4, dtype=torch.bfloat16)[:, :N]),
            r"out: must have strides that are multiples of 16 bytes, 8 elements",
        ),
        (
            wrong(out=torch.empty(M, N + 2)[:, :N]),
            r"out: must have strides that are multiples of 16 bytes, 4 elements",
        ),
        (
            wrong(out=torch.empty(M, N, dtype=torch.int32)),
            r"out: must be bfloat16 or float16 or float32 on sm_90a \(got torch.int32\)",
        ),
        (wrong(out_dtype=E4M3), r"out_dtype: must be bfloat16 or float16 or float32 on sm_90a"),
        (
            wrong(a=torch.ones(M, K), b=torch.ones(G, N, K), a_scale=None, b_scale=None),
            r"a: must be bfloat16 or float16 or float8_e4m3fn on sm_90a \(got torch.float32\)",
        ),
        (
            wrong(a=torch.ones(M, K).bfloat16(), b=torch.ones(G, N, K).bfloat16()),
            r"a: sm_90a has no kernel for bf16 x bf16 -> bf16 with block128 scales",
        ),
        (
            wrong(a=torch.ones(M, 24).to(E4M3), b=torch.ones(G, N, 24).to(E4M3)),
            r"b: must have K a multiple of 16 on sm_90a, 16 bytes of e4m3 \(got 24\)",
        ),
        (
            {
                "a": torch.ones(M, 12).bfloat16(),
                "b": torch.ones(G, N, 12).bfloat16(),
                "offs": int32(8, 8, 24),
            },
            r"b: must have K a multiple of 8 on sm_90a, 16 bytes of bf16 \(got 12\)",
        ),
        (
            wrong(b=torch.ones(G, 12, K).to(E4M3), b_scale=torch.ones(G, 1, 3)),
            r"b: must have N a multiple of 8 on sm_90a, 16 bytes of bf16 \(got 12\)",
        ),
        (
            wrong(
                b=torch.ones(G, 10, K).to(E4M3),
                b_scale=torch.ones(G, 1, 3),
                out_dtype=torch.float32,
            ),
            r"b: must have N a multiple of 4 on sm_90a, 16 bytes of f32 \(got 10\)",
        ),
    ],
)
def test_what_a_gpu_asks_for(
    fake: FakeKernel, on_sm90: None, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        grouped_gemm(**given)


def test_any_number_of_groups_is_served(fake: FakeKernel, on_sm90: None) -> None:
    a, a_scale = quantize.per_token_group(torch.ones(8, 16))
    b, b_scale = quantize.per_block(torch.ones(5000, 8, 16))
    grouped_gemm(a, b, a_scale, b_scale, offs=torch.zeros(5000, dtype=torch.int32))

    assert len(fake.calls) == 1


def test_a_gpu_kernel_gets_the_number_of_sms(fake: FakeKernel, on_sm90: None) -> None:
    given = good()
    for _ in range(2):
        grouped_gemm(**given)

    assert [call[-1] for call in fake.calls] == [132, 132]
    assert fake.config is not None
    assert fake.config.tile.k == 128


def test_shapes_are_not_mixed_up(fake: FakeKernel) -> None:
    """b_scale is all that the entry cannot check: another shape of it is validated again."""
    given = good()
    grouped_gemm(**given)
    with pytest.raises(InputError, match="b_scale"):
        grouped_gemm(**given | {"b_scale": torch.ones(G, 1, 3)})


def test_another_gpu_may_be_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel runs on the GPU of its tensors; where that is current, nothing is switched."""
    log: list[str] = []

    class Switch:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            log.append(f"to {self.index}")

        def __exit__(self, *_: object) -> None:
            log.append("back")

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", Switch)
    for index in (0, 1):
        on_device(log.append, index)(f"call {index}")

    assert log == ["call 0", "to 1", "call 1", "back"]
