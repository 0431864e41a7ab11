# SPDX-License-Identifier: Apache-2.0
"""The sides of `jitgen bench layer` on small layers, with products of torch's in others' places."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen.bench.layer import deep_gemm, inductor, ours, vllm_triton
from jitgen.bench.layer import run as running
from jitgen.bench.layer.cases import EXPERTS, TOKENS, Case, plan
from jitgen.bench.layer.operands import Experts, Operands
from jitgen.bench.layer.report import Found, LayerReport, remarks, tables, targets
from jitgen.bench.layer.router import require_matched
from jitgen.bench.peers import Unavailable
from jitgen.config import Config
from jitgen.errors import ConfigError
from jitgen.layer import reference
from jitgen.layer.early import EARLY_TOKENS
from jitgen.tuning.measure.clock import Batch, Call
from jitgen.tuning.measure.errors import WrongResult
from jitgen.tuning.measure.times import Times
from tests import needs

TRITON = find_spec("triton") is not None


@pytest.fixture(scope="module")
def experts() -> Experts:
    return Experts(small(1), 4, "cpu")


def small(tokens: int, experts: int = 4) -> Case:
    return Case(experts=experts, tokens=tokens, hidden=256, intermediate=128, top_k=2)


def routed(tokens: int) -> Case:
    """Return a layer of 16 experts in eight groups, of which a quarter are here."""
    return Case(experts=4, tokens=tokens, hidden=256, intermediate=128, top_k=2, of=16)


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


def test_the_plan() -> None:
    cases = list(plan())

    assert len(cases) == len(EXPERTS) * len(TOKENS)
    assert str(cases[0]) == "8 experts, 1 tokens"
    assert cases[0].expert_bytes == 3 * 2048 * 7168


class TestKernels:
    """Those of both of our sides, which are shown before anything is measured."""

    def test_few_tokens_have_early_and_late_ones(self) -> None:
        early, late = [], []
        for name in ours.kernel_names(small(EARLY_TOKENS)):
            config, arch = Config.parse(name)
            assert jitgen.check(config, arch), name
            (early if "_pdl_" in name or "_earlyb_" in name else late).append(config.op)

        assert early == ["route", "grouped_gemm", "silu_mul_quantize", "grouped_gemm"]
        assert late.count("grouped_gemm") == 2

    def test_many_tokens_have_late_ones(self) -> None:
        names = [*ours.kernel_names(small(EARLY_TOKENS + 1))]

        assert len(names) == 6
        routes = [name for name in ours.kernel_names(routed(90)) if name.startswith("route")]
        assert len(routes) == 1
        assert routes[0].startswith("route_sigmoid_f32")
        assert not any("_pdl_" in name or "_earlyb_" in name for name in names)


@needs.compiler
@pytest.mark.usefixtures("shared_cache")
class TestSides:
    @pytest.mark.parametrize("tokens", [7, pytest.param(1, marks=pytest.mark.nightly)])
    def test_ours(self, experts: Experts, tokens: int) -> None:
        operands = Operands(small(tokens), experts, "cpu")
        ready = ours.prepare(operands)
        ready.call()
        error = operands.check("ours", ready.result(), ready.weights)

        assert 0 < error < 0.07
        first = ready.result().clone()
        for call in ours.steps(operands).values():
            call()
        assert torch.equal(ready.result(), first)

    def test_the_last_step_is_the_result(self, experts: Experts) -> None:
        operands = Operands(small(5), experts, "cpu")
        ready = ours.prepare(operands)
        ready.call()
        steps = ours.steps(operands)
        assert tuple(steps) == ours.STEPS
        found = [call() for call in steps.values()]

        assert torch.equal(found[-1], ready.result())  # type: ignore[arg-type]

    def test_behind_a_router(self, experts: Experts) -> None:
        """A quarter of the experts is here; results are as near as the public tolerance wants."""
        operands = Operands(routed(19), experts, "cpu")
        ready = ours.prepare(operands)
        ready.call()
        first = ready.result().clone()
        steps = ours.steps(operands)
        assert tuple(steps) == (ours.ROUTE, *ours.STEPS[1:])
        for call in steps.values():
            found = call()

        assert 0 < operands.check("ours", first, ready.weights) < 0.07
        assert torch.equal(found, first)  # type: ignore[arg-type]
        assert (operands.config.experts, operands.config.local_experts) == (16, 4)
        assert 0 < operands.active <= 4

    def test_a_wrong_result_is_told(self, experts: Experts) -> None:
        operands = Operands(small(300), experts, "cpu")
        ready = ours.prepare(operands)
        ready.call()
        operands.check("ours", ready.result(), ready.weights)

        with pytest.raises(WrongResult, match="4 experts, 300 tokens"):
            operands.check("ours", ready.result() * 1.1, ready.weights)

    @pytest.mark.skipif(not TRITON, reason="needs triton")
    @pytest.mark.parametrize("tokens", [1, 7, 60])
    def test_deep_gemm(
        self, experts: Experts, tokens: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The glue, in Triton's interpreter, which rounds one of a hundred values to e4m3 wrong."""
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        operands = Operands(small(tokens), experts, "cpu")
        weights = (operands.topk_weights, operands.topk_ids, operands.config)
        expected = reference.moe(operands.x, operands.by_block, *weights)
        for side, product in (
            (deep_gemm.masked, in_whole_tiles),
            (deep_gemm.contiguous, by_group),
        ):
            ready = side(operands, product)
            ready.call()
            ready.call()

            assert reference.relative_error(ready.result(), expected) < 0.12


@pytest.mark.skipif(not TRITON, reason="needs triton")
def test_places_of_many_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a program looks at at once: each has a row of its own, in its expert's."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    from jitgen.bench.layer import glue

    ids = torch.randint(0, 3, (700, 2), dtype=torch.int32)  # nobody has the last of four
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


@needs.compiler
@pytest.mark.usefixtures("shared_cache")
def test_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, without graphs and clocks of a GPU: who is here is checked and timed."""

    def capture(calls: Sequence[Call]) -> Batch:
        def replay() -> None:
            for call in calls:
                call()

        return Batch(calls=tuple(calls), replay=replay)

    def timed(batches: Sequence[Batch], **_: int) -> list[Times]:
        for batch in batches:
            batch.replay()
        return [Times(seconds=(2e-5, 3e-5, 4e-5)) for _ in batches]

    monkeypatch.setattr(running, "_DEVICE", "cpu")
    monkeypatch.setattr(running, "require_gpu", lambda _: None)
    monkeypatch.setattr(running, "copy_rate", lambda: 1e9)
    monkeypatch.setattr(running.gpu, "conditions", dict)
    monkeypatch.setattr(running.Batch, "capture", capture)
    monkeypatch.setattr(running, "compete_in_batches", timed)
    report, saved = LayerReport(), []
    sides = (ours.OURS, deep_gemm.MASKED, deep_gemm.CONTIGUOUS)
    cases = [small(3), small(9, experts=2)]
    done = list(running.run(report, cases, running.Method(sides=sides), lambda: saved.append(1)))

    assert done == cases
    assert saved == [1, 1]
    first = report.found[0]
    assert first.times_us == {ours.OURS: 30.0}
    assert tuple(first.steps_us) == ours.STEPS
    assert 0 < first.errors[ours.OURS] < 0.07
    assert first.floor_us == first.active * 3 * 256 * 128 * 1e-3
    assert set(first.missing) == set(sides[1:])


@pytest.mark.parametrize("tokens", [1, 7])
def test_torch(experts: Experts, tokens: int) -> None:
    """What inductor compiles, as it is."""
    operands = Operands(small(tokens), experts, "cpu")
    weights = operands.by_row
    given = (operands.x, operands.topk_weights, operands.topk_ids)
    found = inductor.layer(*given, *inductor.matrices(weights), multiplied)

    assert operands.check("torch", found, weights) < 0.07


def test_torch_behind_a_router(experts: Experts) -> None:
    """Rows of experts elsewhere were never written, and count nothing."""
    operands = Operands(routed(9), experts, "cpu")
    router = operands.router
    assert router is not None
    weights = operands.by_row
    given = (operands.x, router.logits, router.bias, *inductor.matrices(weights))
    found = inductor.routed(*given, multiplied, **router.choice)

    assert (operands.topk_ids >= 4).any()
    assert operands.check("torch", found, weights) < 0.07


def test_the_public_tolerance() -> None:
    expected = torch.full((4, 25), 10.0)
    found = expected.clone()
    found[0, :15] = 13.0
    require_matched("ours", found, expected)
    found[0, 15] = 13.0

    with pytest.raises(WrongResult, match=r"ours is wrong: 0.840 of the values match, not 0.85"):
        require_matched("ours", found, expected)


def test_fewer_experts_are_a_part(experts: Experts) -> None:
    part = Operands(small(3, experts=2), experts, "cpu")

    assert part.by_block.groups == 2
    assert part.by_block.tensors["w13"].data_ptr() == experts.by_block.tensors["w13"].data_ptr()
    assert part.active_bytes == 2 * 3 * 256 * 128


def test_what_is_not_installed_says_so(experts: Experts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deep_gemm", None)
    monkeypatch.setitem(sys.modules, "vllm", None)

    with pytest.raises(Unavailable, match="deep_gemm cannot be imported"):
        deep_gemm.prepare_masked(Operands(small(1), experts, "cpu"))
    with pytest.raises(Unavailable, match="vLLM cannot be imported"):
        vllm_triton.prepare(Operands(small(1), experts, "cpu"))


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
        for module in ("fused_moe", "config", "router.grouped_topk_router"):
            monkeypatch.setitem(sys.modules, f"{vllm_triton._PACKAGE}.{module}", made)
        for name in ("_C", "_moe_C"):
            monkeypatch.setattr(torch.ops, name, library, raising=False)
        return made

    @pytest.mark.usefixtures("functions")
    def test_a_result(self, experts: Experts) -> None:
        operands = Operands(small(5), experts, "cpu")
        ready = vllm_triton.prepare(operands)
        ready.call()

        assert operands.check("vllm", ready.result(), ready.weights) < 0.01
        assert ready.note == "vLLM has no table for these sizes on this GPU: its default"

    def test_what_it_may_lack(self, experts: Experts, functions: types.SimpleNamespace) -> None:
        operands = Operands(small(5), experts, "cpu")
        del torch.ops._moe_C.moe_align_block_size
        with pytest.raises(Unavailable, match=r"cannot be loaded: _moe_C.moe_align_block_size"):
            vllm_triton.prepare(operands)
        del functions.fused_experts
        with pytest.raises(Unavailable, match="this vLLM has no fused_experts"):
            vllm_triton.prepare(operands)

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
        vllm_triton.prepare(operands).call()

        assert seen["expert_map"].tolist() == [0, 1, 2, 3] + [-1] * 12
        assert seen["global_num_experts"] == 16
        assert (seen["num_expert_group"], seen["topk_group"]) == (8, 4)
        assert seen["e_score_correction_bias"] is router.bias
        assert seen["ids"] is operands.topk_ids


def found(tokens: int, times: dict[str, float], floor: float = 100.0) -> Found:
    return Found(
        case=Case(experts=32, tokens=tokens),
        active=8,
        floor_us=floor,
        times_us=times,
        spreads=dict.fromkeys(times, 0.01),
        errors=dict.fromkeys(times, 0.04),
        steps_us=dict.fromkeys(ours.STEPS, 3.0) if ours.OURS in times else {},
        missing={"deep-gemm-masked": "not here"},
        notes={vllm_triton.NAME: "a default"},
    )


class TestAReport:
    def test_targets(self) -> None:
        times = {ours.OURS: 100.0, inductor.NAME: 160.0, deep_gemm.CONTIGUOUS: 110.0}
        rows = {row.what: row for row in targets([found(1, times), found(8, times, 99.0)])}

        assert not rows["one token: 32 experts, 1 tokens"].ok
        assert rows["of the floor: 32 experts, 8 tokens"].ok
        assert rows["torch-inductor over ours: 32 experts, 8 tokens"].ok
        assert not rows["deep-gemm-contiguous over ours: 32 experts, 8 tokens"].ok
        assert not list(targets([found(1, {inductor.NAME: 2.0})]))

    def test_tables(self) -> None:
        times = {ours.OURS: 120.0, inductor.NAME: 240.0}
        sides, steps = tables([found(1, times), found(2, {ours.OURS: 90.0})])

        assert sides.rows[0][3:] == ("120.0 (1.20)", "240.0 (2.00)")
        assert sides.rows[1][3:] == ("90.0 (0.90)", "-")
        (idle, _) = tables([found(1, {ours.OURS: 9.0}, floor=0.0)])
        assert idle.rows[0][3:] == ("9.0",)
        assert steps.columns[1:] == ours.STEPS

    def test_saved_and_read(self, tmp_path: Path) -> None:
        report = LayerReport(found=[found(1, {ours.OURS: 120.0})], copy_rate=4.2e12)
        path = tmp_path / "layer.json"
        report.save(path)

        assert LayerReport.read(path) == report
        assert remarks(report.found) == {(vllm_triton.NAME, "a default"): 1}
        path.write_text("{}", encoding="utf-8")
        with pytest.raises(ConfigError, match="no report"):
            LayerReport.read(path)
