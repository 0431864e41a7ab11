# SPDX-License-Identifier: Apache-2.0
"""Peers without a GPU: who is left out, and what each is handed."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import metadata
from types import ModuleType
from typing import Any

import pytest
import torch

from jitgen.autotune.measure.workload import Workload
from jitgen.bench import peers, protocol
from jitgen.bench.cases import Case
from jitgen.bench.peers import Unavailable
from jitgen.bench.peers.deep_gemm import _places, power_of_two
from jitgen.bench.peers.libraries import ends_of_groups
from jitgen.bench.peers.triton import suited, tile_table
from jitgen.config import Layout
from tests.bench_report import DECODE, TINY


def test_peers_that_are_not_here_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden: Any = None
    monkeypatch.setitem(sys.modules, "deep_gemm", hidden)
    found, missing = peers.find_all(("deep_gemm", "torch_grouped"))

    assert [peer.name for peer in found] == ["torch_grouped"]
    assert "deep_gemm cannot be imported:" in missing["deep_gemm"]

    def fail(_: str) -> Any:
        raise AssertionError("no CUDA_HOME")

    monkeypatch.setattr("importlib.import_module", fail)
    assert peers.find_all(("triton",)) == ([], {"triton": "AssertionError: no CUDA_HOME"})


def test_versions_of_those_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"triton": "3.6.0", "sgl-deep-gemm": "0.1.4"}

    def version(name: str) -> str:
        if name not in known:
            raise metadata.PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(metadata, "version", version)

    assert protocol.conditions(peers.DISTRIBUTIONS).items() >= known.items()
    assert "deep-gemm" not in protocol.conditions(peers.DISTRIBUTIONS)


def test_peers_refuse_what_they_cannot_compute() -> None:
    load = Workload.random(replace(DECODE, n=128, k=128).problem, (2,) * 32, device="cpu")

    with pytest.raises(Unavailable, match="no masked layout"):
        peers.find("torch_grouped").prepare(load, 2)
    with pytest.raises(Unavailable, match="K of a multiple of 512"):
        peers.find("cublaslt").prepare(load, 2)


def test_scales_as_powers_of_two_keep_their_strides() -> None:
    load = Workload.random(replace(DECODE, n=128, k=256).problem, (2,) * 32, device="cpu")
    found = power_of_two(load.a_scale)

    assert found.stride() == load.a_scale.stride()
    assert torch.equal(torch.frexp(found).mantissa, torch.full_like(found, 0.5))
    assert (found / load.a_scale).min() >= 1
    assert (found / load.a_scale).max() < 2


def test_flashinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its grouped product is handed, on a Blackwell that is made up."""
    seen: list[Any] = []
    module = ModuleType("flashinfer.gemm")
    module.group_gemm_fp8_nt_groupwise = lambda *a, **k: seen.append((a, k))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", ModuleType("flashinfer"))
    monkeypatch.setitem(sys.modules, "flashinfer.gemm", module)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert "for Blackwell alone" in peers.find_all(("flashinfer",))[1]["flashinfer"]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 0))
    peer = peers.find("flashinfer")
    case = Case(layout=Layout.RAGGED, groups=3, rows_per_group=8, n=128, k=256)
    load = Workload.random(case.problem, (8, 0, 4), device="cpu")
    peer.prepare(load, 8).calls[0]()
    ((a, b, a_scale, b_scale, ends), options) = seen[0]

    assert (a is load.a, b is load.b, options["out"] is load.out) == (True, True, True)
    assert ends.tolist() == [0, 8, 8, 12]
    assert torch.equal(a_scale, load.a_scale.T)
    assert torch.equal(b_scale, load.b_scale.transpose(1, 2))
    assert a_scale.is_contiguous()
    assert b_scale.is_contiguous()
    assert (options["mma_sm"], options["scale_major_mode"]) == (1, "MN")
    for counts, changes, message in (
        ((7, 0, 5), {}, "multiples of 4 rows"),
        ((8, 0, 4), {"n": 264}, "multiples of 128"),
        ((8, 0, 4), {"layout": Layout.MASKED}, "no masked layout"),
    ):
        other = Workload.random(replace(case.problem, **changes), counts, device="cpu")
        with pytest.raises(Unavailable, match=message):
            peer.prepare(other, 8)


def test_places_of_padded_rows() -> None:
    indices, places = _places((2, 0, 130))

    assert len(indices) == 128 + 256
    assert indices[places].tolist() == [0, 0] + [2] * 130
    assert int((indices < 0).sum()) == 126 + 126


@pytest.mark.parametrize("layout", list(Layout))
def test_tiles_cover_every_valid_row_once(layout: Layout) -> None:
    problem = replace(TINY, layout=Layout.RAGGED).problem
    load = Workload.random(replace(problem, layout=layout), (5, 0, 40), device="cpu")
    rows = torch.arange(load.out.shape[:-1].numel()).view(load.out.shape[:-1])
    flat_scales = torch.as_strided(
        load.a_scale, (load.a_scale.untyped_storage().nbytes() // 4,), (1,)
    )
    found = []
    for group, first, count, scale in tile_table(load, 16).tolist():
        assert 0 < count <= 16
        found += [(group, row) for row in range(first, first + count)]
        where = (group, first % load.out.shape[-2]) if layout is Layout.MASKED else (first,)
        assert flat_scales[scale] == load.a_scale[(*where, 0)]

    expected = [(group, row) for group, where in load.valid_rows() for row in rows[where].tolist()]
    assert found == expected
    if layout is not Layout.MASKED:
        assert ends_of_groups(load)[-1] == len(load.a)


def test_triton_shapes_suit_the_rows() -> None:
    assert {shape["block_m"] for shape in suited(1)} == {16}
    assert {shape["block_m"] for shape in suited(64)} == {32, 64}
    assert {shape["block_m"] for shape in suited(4096)} == {64, 128}
