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

from jitgen.bench import peers
from jitgen.bench.hopper_fp4.operands import LARGEST_ERROR, Tokens, Weights
from jitgen.bench.peers import mxfp4
from jitgen.formats import e2m1
from tests.bench_report import TINY

N, K = TINY.n, TINY.k


@pytest.fixture
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden: Any = None
    for name in ("vllm", "humming", "humming.forward"):
        monkeypatch.setitem(sys.modules, name, hidden)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)


@pytest.mark.usefixtures("no_vllm")
def test_who_is_not_here_is_left_out() -> None:
    found, missing = mxfp4.find_all()

    assert found == []
    assert list(missing) == list(mxfp4.NAMES)
    assert missing["marlin"].startswith("vllm is not installed")
    assert missing["humming bf16"].startswith("humming cannot be imported")


def test_vllm_without_its_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its files are found where its package is, whose Python code is never run."""
    spec = ModuleSpec("vllm", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr("importlib.util.find_spec", lambda _: spec)
    assert mxfp4.folder_of_vllm() == tmp_path
    assert "has no _moe_C.abi3.so" in mxfp4.find_all()[1]["marlin"]
    (tmp_path / "_moe_C.abi3.so").write_bytes(b"no library")

    assert "does not go with this torch" in mxfp4.find_all()[1]["marlin"]


def test_marlins_blocks_of_rows() -> None:
    assert [mxfp4.block_of_rows(mean) for mean in (1, 8, 14, 40, 128)] == [8, 16, 16, 48, 64]
    ids, groups = mxfp4.blocks_of_rows((3, 0, 9), 8)

    assert ids.tolist() == [0, 1, 2, *[12] * 5, *range(3, 12), *[12] * 7]
    assert groups.tolist() == [0, 2, 2]


def test_marlin_keeps_every_code() -> None:
    """A group's words hold each of its codes once, in tiles of 16 along K."""
    weights = Weights.random(2, 128, 64, "cpu")
    words = mxfp4.repack(weights.packed)
    codes = torch.stack((weights.packed & 15, weights.packed >> 4), -1).flatten(-2)
    nibbles = torch.stack([words >> 4 * place & 15 for place in range(8)], -1)

    assert words.shape == (2, 4, 256)
    for tile in range(4):
        mine = nibbles[1, tile].flatten().bincount(minlength=16)
        theirs = codes[1, :, 16 * tile : 16 * tile + 16].flatten().bincount(minlength=16)
        assert torch.equal(mine, theirs)
    column = torch.zeros(1, 128, 32, dtype=torch.uint8)
    column[0, 5, 0] = 0x10  # row 5, k = 1: thread 20's second code, the fifth in its word
    [place] = mxfp4.repack(column)[0, 0].nonzero().tolist()
    assert place == [20 * 4]
    assert int(mxfp4.repack(column)[0, 0, 80]) == 1 << 16
    scale = mxfp4.repack_scale(weights.scale)
    assert (scale.shape, scale.dtype) == ((2, 2, 128), torch.float8_e8m0fnu)
    assert scale.view(torch.uint8)[1, 1].sum() == weights.scale[1, :, 1].sum()


def test_what_marlin_is_handed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda _: SimpleNamespace(multi_processor_count=132),
    )
    peer = object.__new__(mxfp4.Marlin)
    peer._gemm = lambda *arguments: seen.append(arguments)
    tokens = Tokens(TINY, "cpu")
    found = peer.prepare(Weights.random(TINY.groups, N, K, "cpu"), tokens)
    for call in found.calls:
        call()

    assert len(seen) == 3
    assert [len(each) for each in seen] == [29] * 3  # as its schema has
    a, out, packed, bias, scale = seen[0][:5]
    assert (a is tokens.x, out is found.out, bias) == (True, True, None)
    assert (packed.shape, scale.shape) == ((3, K // 16, 2 * N), (3, K // 32, N))
    assert len({each[2].data_ptr() for each in seen}) == 3
    assert seen[0][15:22] == (16, 1, False, 562949953487106, len(a), N, K)


class Layer(torch.nn.Module):
    """What humming's layer is asked for, with the values of its weights."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.humming_config = options
        self.seen: dict[str, Any] = {}

    def load_from_tensors(self, tensors: dict[str, Tensor]) -> None:
        factors = torch.exp2(tensors["weight_scale"].float() - 127)
        self.weight = e2m1.unpack(tensors["weight"]) * factors.repeat_interleave(32, -1)

    def transform(self) -> None:
        self.seen["transformed"] = True

    def forward(self, a: Tensor, outputs: Tensor, **options: Any) -> None:
        self.seen |= options
        ends = options["expert_layout"].tolist()
        scale = options["input_scale"]
        for group, (start, end) in enumerate(pairwise(ends)):
            outputs[start:end] = (a[start:end].float() * scale[start:end]) @ self.weight[group].T


def test_what_humming_is_handed(monkeypatch: pytest.MonkeyPatch) -> None:
    def quantize(config: dict[str, Any], x: Tensor) -> tuple[Tensor, Tensor]:
        assert config["input_config"] == {"dtype": "float8e4m3"}
        scale = x.float().abs().amax(1, keepdim=True) / 448
        return (x.float() / scale).to(torch.float8_e4m3fn), scale

    for name, value in {
        "layer": {"HummingLayer": Layer},
        "forward": {"may_quant_input": quantize},
        "tune": {"get_heuristics_config": lambda _, **sizes: sizes},
    }.items():
        module = ModuleType(f"humming.{name}")
        vars(module).update(value)
        monkeypatch.setitem(sys.modules, f"humming.{name}", module)
    monkeypatch.setitem(sys.modules, "humming", ModuleType("humming"))
    peer = peers.make("jitgen.bench.peers.mxfp4:HummingE4m3")
    found = peer.prepare(Weights.random(TINY.groups, N, K, "cpu"), Tokens(TINY, "cpu"))
    found.calls[0]()
    layer = found.calls[0].func

    assert found.check() < LARGEST_ERROR
    assert layer.seen["transformed"]
    assert layer.seen["tuning_config"]["gemm_type"] == "grouped_contiguous"
    assert layer.humming_config["weight_config"] == {"quant_method": "mxfp4"}
    assert (layer.humming_config["shape_n"], layer.humming_config["num_experts"]) == (N, 3)
