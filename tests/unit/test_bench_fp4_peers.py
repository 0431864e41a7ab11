# SPDX-License-Identifier: Apache-2.0
"""Peers of the hopper-fp4 suite without a GPU: who is left out, and what each is handed."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from jitgen.bench.hopper_fp4.operands import LARGEST_ERROR, Tokens, Weights
from jitgen.bench.hopper_fp4.plain import FORMS, Plain, plain
from jitgen.bench.peers import Unavailable, marlin_layouts, prepacked
from jitgen.bench.peers.humming import Humming
from jitgen.bench.peers.marlin import Marlin
from jitgen.bench.peers.matmul_ogs import TritonKernels
from jitgen.bench.peers.vllm import folder_of_vllm
from jitgen.config import DType
from jitgen.formats import e2m1, int4
from tests.bench_report import TINY

N, K = TINY.n, TINY.k
WEIGHTS = Weights.random(TINY.groups, N, K, "cpu")


@pytest.fixture
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden: Any = None
    for name in ("vllm", "humming", "humming.forward"):
        monkeypatch.setitem(sys.modules, name, hidden)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)


@pytest.mark.usefixtures("no_vllm")
def test_who_is_not_here_is_left_out() -> None:
    found, missing = prepacked.find_all()

    assert found == []
    assert list(missing) == list(prepacked.MXFP4)
    assert missing["marlin"].startswith("vllm is not installed")
    assert missing["humming bf16"].startswith("humming cannot be imported")


@pytest.mark.usefixtures("no_vllm")
def test_every_library_is_named_for_every_format_and_kind_of_tokens() -> None:
    """A library that has no such kernels says so, whether it is installed or not."""
    missing = prepacked.find_all(formats=True)[1]

    assert list(missing) == [*prepacked.MXFP4, *prepacked.FORMATS]
    assert len(prepacked.FORMATS) == (len(FORMS) - 1) * 2 * 3
    for name, reason in missing.items():
        if name.endswith("marlin e4m3"):
            assert reason == "vLLM gives Marlin e4m3 tokens on sm_89 and sm_120 alone"
        elif "triton_kernels" in name and not name.startswith(("mxfp8", "triton")):
            assert reason.startswith("it has weights with a power of two for each 32")
        else:
            assert "cannot be imported" in reason or "is not installed" in reason


def test_vllm_without_its_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its files are found where its package is, whose Python code is never run."""
    spec = ModuleSpec("vllm", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr("importlib.util.find_spec", lambda _: spec)
    assert folder_of_vllm() == tmp_path
    assert "has no _moe_C.abi3.so" in prepacked.find_all()[1]["marlin"]
    (tmp_path / "_moe_C.abi3.so").write_bytes(b"no library")

    assert "does not go with this torch" in prepacked.find_all()[1]["marlin"]


def test_marlins_blocks_of_rows() -> None:
    assert [marlin_layouts.block_of_rows(mean) for mean in (1, 8, 14, 40, 128)] == [
        8,
        16,
        16,
        48,
        64,
    ]
    ids, groups = marlin_layouts.blocks_of_rows((3, 0, 9), 8)

    assert ids.tolist() == [0, 1, 2, *[12] * 5, *range(3, 12), *[12] * 7]
    assert groups.tolist() == [0, 2, 2]


@pytest.mark.parametrize("form", FORMS)
def test_plain_weights_have_the_values_of_their_codes(form: str) -> None:
    found = plain(WEIGHTS, form)
    group, row, place = 2, 77, 131
    codes = found.codes[group, row]
    numbers = {
        DType.E2M1: e2m1.unpack,
        DType.INT4: lambda codes: e2m1.single(codes).float() - 8,
        DType.E4M3: Tensor.float,
    }[found.dtype](codes)
    scale = found.scale[group, row, place * found.scale.shape[2] // K]
    factor = 1.0 if found.factor is None else found.factor[group]
    power = torch.exp2(scale.float() - 127) if scale.dtype is torch.uint8 else scale.float()

    assert found.sizes == (TINY.groups, N, K)
    assert found.values()[group, row, place] == numbers[place] * power * factor
    assert found.num_bytes == found.codes.nbytes + found.scale.nbytes


@pytest.mark.parametrize("bits", [4, 8])
def test_marlin_keeps_every_code(bits: int) -> None:
    """A group's words hold each of its codes once, in tiles of 16 along K."""
    chance = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 1 << bits, (2, 128, 64), dtype=torch.uint8, generator=chance)
    packed = codes if bits == 8 else e2m1.paired(codes)
    words = marlin_layouts.repack(packed, bits)
    found = torch.stack([words >> place & (1 << bits) - 1 for place in range(0, 32, bits)], -1)

    assert words.shape == (2, 4, 64 * bits)
    for tile in range(4):
        mine = found[1, tile].flatten().bincount(minlength=1 << bits)
        theirs = codes[1, :, 16 * tile : 16 * tile + 16].flatten().bincount(minlength=1 << bits)
        assert torch.equal(mine, theirs)
    one = torch.zeros(1, 128, 32, dtype=torch.uint8)
    one[0, 5, 1] = 1  # row 5, k = 1: thread 20's second code of the first tile
    [place] = marlin_layouts.repack(one if bits == 8 else e2m1.paired(one), bits)[0, 0].nonzero()
    words_of_thread = bits  # of four tiles of eight codes
    assert place == 20 * words_of_thread


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        ("mxfp4", torch.float8_e8m0fnu),
        ("fp8 row", torch.bfloat16),
        ("int4_32", torch.bfloat16),
        ("int4_128", torch.bfloat16),
        ("nvfp4", torch.float8_e4m3fn),
        ("mxfp8", torch.float8_e8m0fnu),
    ],
)
def test_marlins_scales(form: str, dtype: torch.dtype) -> None:
    """Each scale once, in the eight-column order of fragments, as the number that Marlin reads."""
    found = plain(WEIGHTS, form)
    scale, factor = marlin_layouts.scales_of(found)
    theirs = found.scale[1, :, 0]
    expected = {
        "fp8 row": lambda: theirs.float() * 2.0**120,
        "nvfp4": lambda: theirs.float() * 128,
        "int4_32": theirs.float,
        "int4_128": theirs.float,
    }.get(form, lambda: torch.exp2(theirs.float() - 127))()
    mine = scale[1, 0].float()
    if form == "nvfp4":  # five bits of exponent and three of mantissa
        mine = (scale[1, 0].view(torch.uint8).short() << 7).view(torch.half).float()

    assert (scale.shape, scale.dtype) == ((3, found.scale.shape[2], N), dtype)
    assert torch.equal(mine.sort().values, expected.sort().values)
    second = {"fp8 row": 1, "int4_32": 8, "int4_128": 8}.get(form, 16)
    assert mine[1] == expected[second], "of one byte the second and third of four change places"
    if form == "nvfp4":
        assert factor is not None
        assert found.factor is not None
        assert torch.equal(factor, found.factor * 2.0**119)
    else:
        assert factor is None


@pytest.mark.parametrize("form", FORMS)
def test_what_marlin_is_handed(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda _: SimpleNamespace(multi_processor_count=132),
    )
    peer = object.__new__(Marlin)
    peer.name, peer._form = f"{form} marlin", form
    peer._gemm = lambda *arguments: seen.append(arguments)
    tokens = Tokens(TINY, "cpu")
    found = peer.prepare(WEIGHTS, tokens)
    for call in found.calls:
        call()

    assert len(seen) == 3
    assert [len(each) for each in seen] == [29] * 3  # as its schema has
    a, out, packed, bias, scale, _, factor = seen[0][:7]
    theirs = plain(WEIGHTS, form)
    bits = theirs.dtype.bits
    assert (a is tokens.x, out is found.out, bias) == (True, True, None)
    assert packed.shape == (3, K // 16, N * bits // 2)
    assert scale.shape == (3, theirs.scale.shape[2], N)
    assert (factor is not None) == (form == "nvfp4")
    assert len({each[2].data_ptr() for each in seen}) == 3
    number = {
        DType.E2M1: 562949953487106,
        DType.INT4: 1125899907892224,
        DType.E4M3: 2814749767172868,
    }[theirs.dtype]
    assert seen[0][15:22] == (16, 1, False, number, len(a), N, K)


class Schema:
    """Humming's description of weights or tokens, and its own rule of what goes together."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def is_compatible_with(self, tokens: Schema, dtype: torch.dtype) -> bool:
        assert dtype is torch.bfloat16
        return not tokens.config or self.config["group_size"] in (0, 32, 128)


class Layer(torch.nn.Module):
    """What humming's layer is asked for, with the values of its weights."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.humming_config = options
        self.weight_schema = Schema(options["weight_config"])
        self.input_schema = Schema(options["input_config"])
        self.seen: dict[str, Any] = {}

    def load_from_tensors(self, tensors: dict[str, Tensor]) -> None:
        config, words = self.humming_config["weight_config"], tensors["weight"]
        numbers = {
            "uint4": lambda: int4.values_of(words).float(),
            "float4e2m1": lambda: e2m1.unpack(words.view(torch.uint8)),
            "float8e4m3": lambda: words.view(torch.float8_e4m3fn).float(),
        }[config["dtype"]]()
        scale = tensors["weight_scale"].float()
        size = config["group_size"] or self.humming_config["shape_k"]
        self.weight = numbers * scale.repeat_interleave(size, -1)
        if "scale_2_type" in config:
            self.weight *= tensors["weight_scale_2"].view(-1, 1, 1)

    def transform(self) -> None:
        self.seen["transformed"] = True

    def forward(self, a: Tensor, outputs: Tensor, **options: Any) -> None:
        self.seen |= options
        ends = options["expert_layout"].tolist()
        scale = options["input_scale"]
        x = a.float() if scale is None else a.float() * scale
        for group, (start, end) in enumerate(pairwise(ends)):
            outputs[start:end] = x[start:end] @ self.weight[group].T


@pytest.fixture
def humming(monkeypatch: pytest.MonkeyPatch) -> None:
    def quantize(config: dict[str, Any], x: Tensor) -> tuple[Tensor, Tensor | None]:
        if config["input_config"] == {}:
            return x, None
        assert config["input_config"] == {"dtype": "float8e4m3"}
        scale = x.float().abs().amax(1, keepdim=True) / 448
        return (x.float() / scale).to(torch.float8_e4m3fn), scale

    parts: dict[str, dict[str, object]] = {
        "layer": {"HummingLayer": Layer},
        "forward": {"may_quant_input": quantize},
        "tune": {"get_heuristics_config": lambda _, **sizes: sizes},
    }
    for name, value in parts.items():
        module = ModuleType(f"humming.{name}")
        vars(module).update(value)
        monkeypatch.setitem(sys.modules, f"humming.{name}", module)
    monkeypatch.setitem(sys.modules, "humming", ModuleType("humming"))


@pytest.mark.usefixtures("humming")
@pytest.mark.parametrize("tokens", [DType.E4M3, DType.BF16])
@pytest.mark.parametrize("form", FORMS)
def test_what_humming_is_handed(form: str, tokens: DType) -> None:
    peer = Humming(f"{form} humming {tokens}", form, tokens)
    if (form, tokens) == ("nvfp4", DType.E4M3):
        with pytest.raises(Unavailable, match="no kernel for such weights with e4m3 tokens"):
            peer.prepare(WEIGHTS, Tokens(TINY, "cpu"))
        return
    found = peer.prepare(WEIGHTS, Tokens(TINY, "cpu"))
    call: Any = found.calls[0]
    call()
    layer = call.func

    assert found.check() < LARGEST_ERROR
    assert layer.seen["transformed"]
    assert layer.seen["tuning_config"]["gemm_type"] == "grouped_contiguous"
    assert (layer.humming_config["shape_n"], layer.humming_config["num_experts"]) == (N, 3)


class Numbers:
    """Stand-in of `triton_kernels`: tensors in plain order, and the product of what it is given."""

    FP4 = "fp4"

    def __init__(self) -> None:
        self.constraints: dict[str, Any] = {}

    def update_opt_flags_constraints(self, constraints: dict[str, Any]) -> None:
        self.constraints |= constraints

    def compute_expt_data(self, counts: Tensor, groups: int, rows: int) -> None:
        assert (len(counts), int(counts.sum())) == (groups, rows)

    def RoutingData(self, _: None, counts: Tensor, *__: object) -> Tensor:  # noqa: N802 theirs
        return counts

    def InFlexData(self) -> None:  # noqa: N802 theirs
        return None

    def FlexCtx(self, **_: object) -> None:  # noqa: N802 theirs
        return None

    def PrecisionConfig(self, **options: object) -> dict[str, object]:  # noqa: N802 theirs
        return options

    def wrap_torch_tensor(self, x: Tensor, dtype: object = None) -> Tensor:
        assert x.stride(-2) == 1, "K must be contiguous"
        return x

    def convert_layout(self, x: Tensor, layout: str, **_: object) -> Tensor:
        assert layout == "hopper"
        return x

    def make_default_matmul_mxfp4_w_layout(self, mx_axis: int) -> tuple[str, dict[str, int]]:
        return "hopper", {}

    def make_default_matmul_mxfp4_w_scale_layout(
        self, mx_axis: int, num_warps: int
    ) -> tuple[str, dict[str, int]]:
        return "hopper", {}

    def matmul_ogs(
        self, x: Tensor, w: Tensor, bias: None, routing: Tensor, *, y: Tensor, **options: Any
    ) -> None:
        precision, gammas = options["precision_config"], options["gammas"]
        codes, scale = w.mT, precision["weight_scale"].mT
        is_fp4 = codes.dtype is torch.uint8
        numbers = e2m1.unpack(codes) if is_fp4 else codes.float()
        values = numbers * torch.exp2(scale.float() - 127).repeat_interleave(32, -1)
        rows = x.float() if gammas is None else x.float() * gammas.view(-1, 1)
        start = 0
        for group, count in enumerate(routing.tolist()):
            y[0, start : start + count] = rows[start : start + count] @ values[group].T
            start += count
        assert precision["out_dtype"] is torch.bfloat16


@pytest.mark.parametrize(
    ("form", "tokens"), [("mxfp4", DType.BF16), ("mxfp8", DType.BF16), ("mxfp8", DType.E4M3)]
)
def test_what_triton_kernels_is_handed(
    form: str, tokens: DType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = Numbers()
    monkeypatch.setattr("jitgen.bench.peers.matmul_ogs._part", lambda _: library)
    monkeypatch.setattr("jitgen.bench.peers.matmul_ogs.folder_of_vllm", lambda: tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    peer = TritonKernels(f"{form} triton_kernels {tokens}", form, tokens)
    found = peer.prepare(WEIGHTS, Tokens(TINY, "cpu"))
    for call in found.calls:
        call()

    assert library.constraints == {"split_k": 1, "is_persistent": False}
    assert found.check() < LARGEST_ERROR
    calls: list[Any] = list(found.calls)
    assert len({call.args[1].data_ptr() for call in calls}) == (3 if form == "mxfp8" else 1)


def test_a_format_whose_scales_do_not_divide_k_is_left_out() -> None:
    weights = Weights.random(1, 64, 160, "cpu")
    with pytest.raises(Unavailable, match=r"K is a multiple of 128 there \(got 160\)"):
        plain(weights, "int4_128")
    assert isinstance(plain(weights, "int4_32"), Plain)
