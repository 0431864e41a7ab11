# SPDX-License-Identifier: Apache-2.0
"""Recordings: that calls of every operation there is are counted, chosen for or with a config."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import jitgen
from jitgen import plans, quantize
from jitgen.config import Arch, BLayout
from jitgen.config.grouped_gemm import Tile
from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig
from jitgen.config.plugins import OPERATIONS
from jitgen.ops.activation_backward.call import activation_backward
from jitgen.ops.combine_ranks.call import combine_ranks
from jitgen.ops.dispatch.call import dispatch
from jitgen.ops.dispatch.rounds import Link, new_state
from jitgen.ops.moe_decode.call import moe_decode
from jitgen.ops.moe_decode.exchange import Exchange
from jitgen.ops.moe_decode.validate import Experts
from jitgen.ops.moe_fc2_dense.samples import Sizes, make
from jitgen.plans import recorder
from jitgen.plans import recording as files
from jitgen.runtime.devices import Emulated
from jitgen.runtime.loader import KernelLoader
from jitgen.runtime.session import Session, current
from jitgen.targets.legality import target
from tests.arguments import good, int32

BF16 = torch.bfloat16
Call = Callable[..., Any]


def unpack(**options: Any) -> Any:
    """Unpack weights that were prepacked."""
    codes, scale = torch.zeros(2, 8, 64, dtype=torch.uint8), torch.full((2, 8, 4), 120)
    weights = quantize.prepack_mxfp4(codes, scale.to(torch.uint8), layout=BLayout.EXACT1)
    return quantize.unpack_mxfp4(weights, **options)


def link() -> Link:
    """Return what a rank of two reaches its peers by."""
    peers = torch.zeros(2, dtype=torch.int64)
    return Link(torch.zeros(2, 64, 4, dtype=torch.int32), peers, new_state(0, 1000, "cpu"))


def dense(**options: Any) -> Any:
    """Multiply tokens with every expert."""
    sizes = Sizes(tokens=4, experts=2, n=128, k=128, top_k=1)
    case = make(MoEFc2DenseConfig(tile=Tile(m=64, n=128, k=128)), sizes, is_exact=True)
    return jitgen.moe_fc2_dense(**case.arguments | options)


def decode(**options: Any) -> Any:
    """Compute a layer of experts in one launch."""
    values = torch.ones(2, 256, 128).to(torch.float8_e4m3fn)
    experts = Experts(values, torch.ones(2, 2, 1), values[:, :128], torch.ones(2, 1, 1))
    ids, exchange = int32(0, 1).view(2, 1), Exchange.of(2, 1, 128)
    x = torch.ones(2, 128, dtype=BF16)
    return moe_decode(x, ids, torch.ones(2, 1), experts, exchange, **options)


CALLS: dict[str, Call] = {
    "activation_backward": lambda **options: activation_backward(
        torch.ones(6, 128, dtype=BF16),
        torch.ones(6, 256, dtype=BF16),
        torch.ones(6),
        offs=int32(2, 4, 6),
        **options,
    ),
    "add_lora": lambda **options: jitgen.add_lora(
        *(torch.ones(4, 16, dtype=BF16), torch.ones(2, 32, dtype=BF16)),
        *(torch.ones(3, 2, 8, 32, dtype=BF16), torch.ones(3, 2, 16, 8, dtype=BF16)),
        *(torch.ones(3), int32(0, 2), int32(1, 0, 1, 0).view(2, 2), int32(1, 3, 0, 2)),
        **options,
    ),
    "combine": lambda **options: jitgen.combine(
        torch.ones(4, 16, dtype=BF16), int32(2, 0, 3, 1).view(2, 2), torch.ones(2, 2), **options
    ),
    "combine_ranks": lambda **options: combine_ranks(
        torch.ones(6, 16, dtype=BF16),
        int32(2, 0, 3, 1, 5, 4, 0, 1).view(4, 2),
        torch.ones(4, 2),
        link(),
        tokens=2,
        **options,
    ),
    "dispatch": lambda **options: dispatch(
        torch.ones(2, 16, dtype=BF16),
        int32(2, 0, 3, 1).view(2, 2),
        torch.ones(2, 2),
        link(),
        room=2,
        **options,
    ),
    "grouped_gemm": lambda **options: jitgen.grouped_gemm(**good(), **options),
    "grouped_gemm_wgrad": lambda **options: jitgen.grouped_gemm_wgrad(
        torch.ones(6, 8, dtype=BF16), torch.ones(6, 16, dtype=BF16), offs=int32(2, 6), **options
    ),
    "moe_decode": decode,
    "moe_fc2_dense": dense,
    "permute_quantize": lambda **options: jitgen.permute_quantize(
        torch.ones(2, 256, dtype=BF16), int32(2, 0, 3, 1), top_k=2, offs=int32(1, 4), **options
    ),
    "quantize": lambda **options: quantize.mxfp8(torch.ones(4, 256, dtype=BF16), **options),
    "route": lambda **options: jitgen.route(torch.ones(5, 32), top_k=3, **options),
    "activation_quantize": lambda **options: jitgen.activation_quantize(
        torch.ones(6, 256, dtype=BF16), offs=int32(2, 4, 6), **options
    ),
    "sort_pairs": lambda **options: jitgen.sort_pairs(
        int32(0, 2, 2, 1).view(2, 2), experts=3, **options
    ),
    "unpack_weights": unpack,
}
"""A call of each; a new operation belongs here."""

OPERATION = {"sort_pairs": "route"}
"""Of what goes by another name."""

PLACES = [
    pytest.param(name, arch, id=f"{name}-{arch}")
    for name in CALLS
    for arch in ("cpu", "sm_90a")
    if OPERATION.get(name, name) in target(arch).operations
]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where calls are recorded."""
    found = tmp_path / "calls.json"
    monkeypatch.setenv("JITGEN_RECORD", str(found))
    yield found
    recorder.end(found)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The configs that were asked for; their kernels do nothing."""
    found: list[Any] = []

    def get(_: KernelLoader, wanted: Any, arch: Arch) -> Any:
        found.append(wanted)
        return SimpleNamespace(function=lambda *_: None, arch=arch, config=wanted)

    monkeypatch.setattr(KernelLoader, "get", get)
    current.get().forget()
    yield found
    current.get().forget()


@contextmanager
def on(arch: str, asked: list[Any]) -> Iterator[None]:
    """Let calls find such a device, whose kernels do nothing, in this context."""
    if arch == "cpu":
        yield
        return

    def function(config: Any) -> Callable[..., None]:
        asked.append(config)
        return lambda *_: None

    gpu = Emulated(arch=Arch.parse(arch), num_sms=4, function=function)
    with Session.emulating(gpu, like=current.get()):
        yield


def test_no_operation_is_left_out() -> None:
    assert {OPERATION.get(name, name) for name in CALLS} == set(OPERATIONS.built_in())


@pytest.mark.parametrize(("name", "arch"), PLACES)
def test_its_calls_are_counted(name: str, arch: str, path: Path, asked: list[Any]) -> None:
    """Those that are chosen for by their problem, those with a config by its kernel."""
    with on(arch, asked):
        for _ in range(2):
            CALLS[name]()
        config = asked[-1]
        for _ in range(3):
            CALLS[name](config=config)
    recorder.flush()
    (part,) = files.parts(path)
    found = files.read(part)

    op = OPERATION.get(name, name)
    assert [(each.arch, each.problem.op, each.total) for each in found.calls] == [(arch, op, 2)]
    assert found.kernels == {config.name(arch): 3}
    assert len(plans.from_recording(found).sweeps) == 1
