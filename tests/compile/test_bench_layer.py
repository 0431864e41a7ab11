# SPDX-License-Identifier: Apache-2.0
"""The sides of `jitgen bench layer` on small layers, and the reports of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import jitgen
from jitgen.autotune.measure.clock import Batch, Call
from jitgen.autotune.measure.errors import WrongResult
from jitgen.autotune.measure.times import Times
from jitgen.bench import runner
from jitgen.bench.layer import ours, peers
from jitgen.bench.layer import run as running
from jitgen.bench.layer.cases import EXPERTS, TOKENS, Case, plan
from jitgen.bench.layer.operands import Experts, Operands, require_matched
from jitgen.bench.layer.report import LayerReport, Measured
from jitgen.bench.report import OURS
from jitgen.config import Config
from jitgen.errors import ConfigError
from jitgen.layer.early import EARLY_TOKENS
from tests import needs, ranks
from tests.bench_layer import routed, small


@pytest.fixture(scope="module")
def experts() -> Experts:
    return Experts(small(1), 4, "cpu")


def test_a_run_of_no_cases() -> None:
    report = LayerReport()

    assert list(running.run(report, [], running.Method(), lambda: None)) == []
    assert report.found == []


def test_the_plan() -> None:
    cases = list(plan())

    assert len(cases) == len(EXPERTS) * len(TOKENS)
    assert str(cases[0]) == "8 experts, 1 tokens"
    assert cases[0].expert_bytes == 3 * 2048 * 7168


class TestKernels:
    """Those of both of our sides, which are shown before anything is measured."""

    def test_few_tokens_have_early_and_late_ones(self) -> None:
        early, late = [], []
        for name in ours.kernel_names(Case(experts=32, tokens=EARLY_TOKENS)):
            config, arch = Config.parse(name)
            assert jitgen.check(config, arch), name
            (early if "_pdl_" in name or "_earlyb_" in name else late).append(config.op)

        assert early[:4] == ["route", "grouped_gemm", "activation_quantize", "grouped_gemm"]
        assert early[4:] == ["route"], "that of the other side starts early, too"
        assert late.count("grouped_gemm") == 2

    def test_few_pairs_are_sorted_by_the_launch_that_gathers(self) -> None:
        few, more = (
            [name for name in ours.kernel_names(small(tokens)) if "_sort_" in name]
            for tokens in (1, EARLY_TOKENS)
        )

        assert few == ["permute_quantize_ragged_block128_sort_t64_c16_sm_90a"]
        assert more == []

    def test_many_tokens_have_late_ones(self) -> None:
        names = [*ours.kernel_names(small(EARLY_TOKENS + 1))]
        others = [name for name in names if not name.startswith("route")]

        assert len(names) == 6
        routes = [name for name in ours.kernel_names(routed(90)) if name.startswith("route")]
        assert len(routes) == 1
        assert routes[0].startswith("route_sigmoid_f32")
        assert len(others) == 5
        assert not any("_pdl_" in name or "_earlyb_" in name for name in others)


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

    monkeypatch.setattr(runner, "_DEVICE", "cpu")
    monkeypatch.setattr(running, "require_gpu", lambda _: None)
    monkeypatch.setattr(runner, "copy_rate", lambda: 1e9)
    monkeypatch.setattr(runner.gpu, "conditions", dict)
    monkeypatch.setattr(running.Batch, "capture", capture)
    monkeypatch.setattr(runner, "compete_in_batches", timed)
    report, saved = LayerReport(), []
    sides = (OURS, peers.MASKED, peers.CONTIGUOUS)
    cases = [small(3), small(9, experts=2)]
    done = list(running.run(report, cases, running.Method(sides=sides), lambda: saved.append(1)))

    assert done == cases
    assert saved == [1, 1]
    first = report.found[0]
    assert first.times_us == {OURS: 30.0}
    assert tuple(first.steps_us) == ours.STEPS
    assert 0 < first.errors[OURS] < 0.07
    assert first.floor_us == first.active * 3 * 256 * 128 * 1e-3
    assert set(first.missing) == set(sides[1:])


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


def found(tokens: int, times: dict[str, float], floor: float = 100.0) -> Measured:
    return Measured(
        case=Case(experts=32, tokens=tokens),
        active=8,
        floor_us=floor,
        times_us=times,
        spreads=dict.fromkeys(times, 0.01),
        errors=dict.fromkeys(times, 0.04),
        steps_us=dict.fromkeys(ours.STEPS, 3.0) if OURS in times else {},
        missing={"deep-gemm-masked": "not here"},
        notes={peers.VLLM: "a default"},
    )


class TestAReport:
    def test_targets(self) -> None:
        times = {OURS: 100.0, peers.INDUCTOR: 160.0, peers.CONTIGUOUS: 110.0}
        rows = {
            row.what: row
            for row in LayerReport(found=[found(1, times), found(8, times, 99.0)]).targets()
        }

        assert not rows["one token: 32 experts, 1 tokens"].ok
        assert rows["of the floor: 32 experts, 8 tokens"].ok
        assert rows["torch-inductor over ours: 32 experts, 8 tokens"].ok
        assert not rows["deep-gemm-contiguous over ours: 32 experts, 8 tokens"].ok
        assert not list(LayerReport(found=[found(1, {peers.INDUCTOR: 2.0})]).targets())

    def test_tables(self) -> None:
        times = {OURS: 120.0, peers.INDUCTOR: 240.0}
        of_two = [found(1, times), found(2, {OURS: 90.0})]
        sides, steps, *_ = LayerReport(found=of_two).tables()

        assert sides.rows[0][3:] == ("120.0 (1.20)", "240.0 (2.00)")
        assert sides.rows[1][3:] == ("90.0 (0.90)", "-")
        idle, *_ = LayerReport(found=[found(1, {OURS: 9.0}, floor=0.0)]).tables()
        assert idle.rows[0][3:] == ("9.0",)
        assert steps.columns[1:] == ours.STEPS

    def test_saved_and_read(self, tmp_path: Path) -> None:
        report = LayerReport(found=[found(1, {OURS: 120.0})], copy_rate=4.2e12)
        path = tmp_path / "layer.json"
        report.save(path)

        assert LayerReport.read(path) == report
        *_, remarks = report.tables()
        assert remarks.rows == ((peers.VLLM, "1", "a default"),)
        path.write_text("{}", encoding="utf-8")
        with pytest.raises(ConfigError, match="no report"):
            LayerReport.read(path)


def test_a_layer_of_ranks_with_a_wrong_result_is_not_timed(tmp_path: Path) -> None:
    ranks.run(ranks.measured, 1, tmp_path)
