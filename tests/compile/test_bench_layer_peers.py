# SPDX-License-Identifier: Apache-2.0
"""Peers of `jitgen bench layer` on small layers, with products of torch's in others' places."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen.bench.layer import peers
from jitgen.bench.layer.operands import Experts, Operands
from jitgen.bench.peers import Unavailable
from jitgen.layer import reference
from tests import needs
from tests.bench_layer import routed, small

TRITON = find_spec("triton") is not None
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(
    not IS_INTERPRETED, reason="run by test_in_tritons_interpreter, in a process of its own"
)


@pytest.fixture(scope="module")
def experts() -> Experts:
    return Experts(small(1), 4, "cpu")


def multiplied(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, offs: Tensor) -> Tensor:
    """Return what torch's product gives, in float32: rows, (G, K, N), scales of rows."""
    out = torch.full((a.shape[0], b.shape[2]), float("nan"))  # behind the last group, too
    first = 0
    for group, last in enumerate(offs.tolist()):
        part = slice(first, last)
        out[part] = a[part].float() @ b[group].float() * a_scale[part, None] * b_scale[group]
        first = last
    return out.bfloat16()


def by_group(
    a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], out: Tensor, groups: Tensor, mean: int
) -> None:
    """Multiply as DeepGEMM does: masked where `a` has a matrix for each group, else contiguous."""
    assert mean >= 1
    if a[0].dim() == 3:
        jitgen.grouped_gemm(a[0], b[0], a[1], b[1], masked_m=groups, out=out)
    else:
        jitgen.grouped_gemm(a[0], b[0], a[1], b[1], m_indices=groups, out=out)


def in_whole_tiles(
    a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], out: Tensor, counts: Tensor, mean: int
) -> None:
    """Multiply masked groups as DeepGEMM does: a tile's rows beyond them are stored."""
    found = torch.empty_like(out)
    by_group(a, b, found, counts, mean)
    rows = out.view(-1, out.shape[-1])
    for group, count in reversed(list(enumerate(counts.tolist()))):
        first = group * out.shape[1]
        if count:
            rows[first : first + -(-count // 128) * 128] = float("nan")
            rows[first : first + count] = found[group, :count]


@needs.compiler
@pytest.mark.skipif(not TRITON or IS_INTERPRETED, reason="needs triton")
def test_in_tritons_interpreter() -> None:
    """Triton asks for TRITON_INTERPRET when it is imported, which another test may have done."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "deep_gemm or many_pairs", __file__],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


@needs.compiler
@interpreted
@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize("tokens", [1, 7, 60])
def test_deep_gemm(experts: Experts, tokens: int) -> None:
    """The glue, in Triton's interpreter, which rounds one of a hundred values to e4m3 wrong."""
    operands = Operands(small(tokens), experts, "cpu")
    weights = (operands.topk_weights, operands.topk_ids, operands.config)
    expected = reference.moe(operands.x, operands.by_block, *weights)
    for side, product in (
        (peers.masked, in_whole_tiles),
        (peers.contiguous, by_group),
    ):
        ready = side(operands, product)
        ready.call()
        ready.call()

        assert reference.relative_error(ready.result(), expected) < 0.12


@interpreted
def test_places_of_many_pairs() -> None:
    """More than a program looks at at once: each has a row of its own, in its expert's."""
    from jitgen.bench.layer import glue

    ids = torch.randint(0, 3, (700, 2), dtype=torch.int32)  # no token has the last of four
    numbers = torch.bincount(ids.flatten(), minlength=4)
    place, counts = torch.full((1400,), -1, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    glue.place_masked(ids, counts, place, height=1400)
    assert torch.equal(counts.long(), numbers)
    assert torch.equal(place // 1400, ids.flatten())
    assert len(place.unique()) == 1400
    owners = torch.full((1920,), 7, dtype=torch.int32)
    counts = glue.new_counts(4, ids.device)
    glue.place_contiguous(ids, counts, place, owners=owners)
    padded = (numbers + 127) // 128 * 128

    assert torch.equal(owners[place.long()], ids.flatten())
    assert len(place.unique()) == 1400
    assert torch.equal(torch.bincount(owners[owners >= 0], minlength=4), padded)
    assert (owners[int(padded.sum()) :] == -1).all()


@pytest.mark.parametrize("tokens", [1, 7])
def test_torch(experts: Experts, tokens: int) -> None:
    """What inductor compiles, as it is."""
    operands = Operands(small(tokens), experts, "cpu")
    weights = operands.by_row
    given = (operands.x, operands.topk_weights, operands.topk_ids)
    found = peers.torch_layer(*given, *peers.matrices(weights), multiplied)

    assert operands.check("torch", found, weights) < 0.07


def test_torch_behind_a_router(experts: Experts) -> None:
    """Rows of experts elsewhere were never written, and count nothing."""
    operands = Operands(routed(9), experts, "cpu")
    router = operands.router
    assert router is not None
    weights = operands.by_row
    given = (operands.x, router.logits, router.bias, *peers.matrices(weights))
    found = peers.torch_routed(*given, multiplied, **router.choice)

    assert (operands.topk_ids >= 4).any()
    assert operands.check("torch", found, weights) < 0.07


def test_what_is_not_installed_says_so(experts: Experts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deep_gemm", None)
    monkeypatch.setitem(sys.modules, "vllm", None)

    with pytest.raises(Unavailable, match="deep_gemm cannot be imported"):
        peers.prepare_masked(Operands(small(1), experts, "cpu"))
    with pytest.raises(Unavailable, match="vLLM cannot be imported"):
        peers.prepare_vllm(Operands(small(1), experts, "cpu"))


class TestVllm:
    """The side as it is, with jitgen's layer in the place of vLLM's functions."""

    @pytest.fixture
    def functions(self, monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
        def fused_experts(  # what vLLM's is called with
            x: Tensor, w13: Tensor, w2: Tensor, weights: Tensor, ids: Tensor, quant_config: Any
        ) -> Tensor:
            assert quant_config["block_shape"] == [128, 128]
            config = jitgen.MoEConfig(
                hidden=256, intermediate=128, experts=4, local_experts=4, top_k=2
            )
            scales = {"w13_scale": quant_config["w1_scale"], "w2_scale": quant_config["w2_scale"]}
            of = jitgen.ExpertWeights(w13=w13, w2=w2, **scales)
            return reference.moe(x, of, weights, ids, config).bfloat16()

        made = types.SimpleNamespace(
            fused_experts=fused_experts,
            fp8_w8a8_moe_quant_config=dict,
            get_moe_configs=lambda *sizes: {1: {}} if sizes[0] == 32 else None,
        )
        library = types.SimpleNamespace(silu_and_mul=None, moe_align_block_size=None)
        monkeypatch.delenv("VLLM_LOGGING_STREAM", raising=False)
        for module in ("fused_moe", "config", "router.grouped_topk_router"):
            monkeypatch.setitem(sys.modules, f"{peers._PACKAGE}.{module}", made)
        for name in ("_C", "_moe_C"):
            monkeypatch.setattr(torch.ops, name, library, raising=False)
        return made

    @pytest.mark.usefixtures("functions")
    def test_a_result(self, experts: Experts) -> None:
        operands = Operands(small(5), experts, "cpu")
        ready = peers.prepare_vllm(operands)
        ready.call()

        assert operands.check("vllm", ready.result(), ready.weights) < 0.01
        assert os.environ["VLLM_LOGGING_STREAM"] == "ext://sys.stderr"
        assert ready.note == "vLLM has no table for these sizes on this GPU: its default"

    def test_what_it_may_lack(self, experts: Experts, functions: types.SimpleNamespace) -> None:
        operands = Operands(small(5), experts, "cpu")
        del torch.ops._moe_C.moe_align_block_size
        with pytest.raises(Unavailable, match=r"cannot be loaded: _moe_C.moe_align_block_size"):
            peers.prepare_vllm(operands)
        del functions.fused_experts
        with pytest.raises(Unavailable, match="this vLLM has no fused_experts"):
            peers.prepare_vllm(operands)

    def test_behind_a_router(self, experts: Experts, functions: types.SimpleNamespace) -> None:
        """VLLM's router and its map of experts, as they are called."""
        operands = Operands(routed(9), experts, "cpu")
        router = operands.router
        assert router is not None
        seen: dict[str, Any] = {}

        def choose(x: Tensor, logits: Tensor, top_k: int, **options: Any) -> tuple[Tensor, Tensor]:
            seen.update(options)
            assert (x.shape[0], logits.shape[1], top_k) == (9, 16, 2)
            return operands.topk_weights, operands.topk_ids

        functions.fused_grouped_topk = choose
        functions.fused_experts = lambda *given, **options: seen.update(options, ids=given[4])
        peers.prepare_vllm(operands).call()

        assert seen["expert_map"].tolist() == [0, 1, 2, 3] + [-1] * 12
        assert seen["global_num_experts"] == 16
        assert (seen["num_expert_group"], seen["topk_group"]) == (8, 4)
        assert seen["e_score_correction_bias"] is router.bias
        assert seen["ids"] is operands.topk_ids
