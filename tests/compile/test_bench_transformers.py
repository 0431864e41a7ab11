# SPDX-License-Identifier: Apache-2.0
"""`jitgen bench transformers` on a small model and on the CPU."""

from __future__ import annotations

import pytest
import torch

from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench.transformers import run as running
from jitgen.bench.transformers.models import MODELS, Model
from jitgen.bench.transformers.run import (
    EAGER,
    FP8_LIMIT,
    GROUPED,
    GROUPED_FP8,
    OF_GROUPED,
    OURS,
    OURS_FP8,
    WORKS,
    Measured,
    TransformersReport,
    Work,
    limit,
)
from jitgen.config import Config
from tests import needs

SMALL = Model(
    name="small",
    kind="Qwen3MoeConfig",
    hidden=128,
    intermediate=128,
    experts=6,
    top_k=2,
    fields={
        "num_hidden_layers": 2,
        "vocab_size": 128,
        "intermediate_size": 128,
        "moe_intermediate_size": 128,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 32,
    },
)
PREFILL, GENERATE = Work(texts=2, prompt=20), Work(texts=2, prompt=5, new=3)


@needs.compiler
@pytest.mark.usefixtures("shared_cache")
@pytest.mark.filterwarnings("ignore")  # transformers' own
def test_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is here is compared and timed; FP8 experts of transformers want a GPU, and say so."""
    pytest.importorskip("transformers", reason="needs jitgen[transformers]")
    monkeypatch.setattr(running, "_DEVICE", "cpu")
    monkeypatch.setattr(running, "require_gpu", lambda _: None)
    found = list(running.run([SMALL], (PREFILL, GENERATE), rounds=1))

    assert [each.work for each in found] == [PREFILL, GENERATE]
    for each in found:
        assert set(each.rates) == {EAGER, GROUPED, OURS, OURS_FP8}
        assert 1e-4 < each.errors[EAGER] < 0.02
        assert 1e-4 < each.errors[OURS] <= OF_GROUPED * each.errors[GROUPED]
        assert each.errors[OURS] < each.errors[OURS_FP8] < FP8_LIMIT
        assert set(each.missing) == {GROUPED_FP8}
        assert min(each.rates.values()) > 0


class TestDifference:
    def test_steps_behind_another_token_are_not_compared(self) -> None:
        logits = torch.ones(1, 3, 4)
        others = logits.clone()
        others[0, 1:] = 1.5
        tokens = torch.tensor([[1, 2, 3]])
        apart = torch.tensor([[0, 2, 3]])

        assert running.difference((tokens, logits), (tokens, others)) == pytest.approx(1 / 3)
        assert running.difference((apart, logits), (tokens, others)) == 0

    def test_the_step_with_another_token_is_compared(self) -> None:
        logits = torch.ones(1, 2, 4)
        tokens = torch.tensor([[1, 2]])

        assert running.difference((tokens + 1, logits * 1.5), (tokens, logits)) == 0.5

    def test_one_step_that_is_another_is_told(self) -> None:
        logits = torch.ones(1, 20, 4)
        tokens = torch.zeros(1, 20, dtype=torch.long)
        found = logits.clone()
        found[0, 7] = -1.5
        with pytest.raises(WrongResult, match=r"a step are off by 2.5 of their norm"):
            running.difference((tokens, found), (tokens, logits))
        found[0, 7] = 0.5

        assert running.difference((tokens, found), (tokens, logits)) == 0


def test_a_wrong_side_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_DEVICE", "cpu")
    answers = iter([1.0, 1.01, 1.1])
    tokens = torch.zeros(1, 1, dtype=torch.long)
    monkeypatch.setattr(
        running, "answered", lambda *_: (tokens, torch.full((1, 1, 8), next(answers)))
    )
    monkeypatch.setattr(running, "_done", lambda *_: None)

    class Nothing:
        def take(self, *_: object, **__: object) -> None: ...

    class Made:
        class config:  # noqa: N801
            vocab_size = 8

    found = running.measured(
        SMALL,
        Made(),
        Nothing(),
        PREFILL,
        sides=(GROUPED, OURS),
        rounds=1,  # type: ignore[arg-type]
    )

    assert set(found.rates) == {GROUPED}
    assert found.missing == {
        OURS: f"{WrongResult.__name__}: jitgen is wrong: error 0.1 above 0.015"
    }


def test_limits() -> None:
    assert limit(OURS, {GROUPED: 0.01}) == pytest.approx(0.015)
    assert limit(OURS, {}) == 0.05
    assert limit(OURS_FP8, {GROUPED: 0.01}) == FP8_LIMIT


def report(rates: dict[str, float]) -> TransformersReport:
    return TransformersReport(found=[Measured(model="small", work=GENERATE, rates=rates)])


def test_targets() -> None:
    rates = {GROUPED: 100.0, OURS: 150.0, OURS_FP8: 90.0}
    rows = list(report(rates).targets())

    assert [row.value for row in rows] == [1.5, 0.9]
    assert [row.ok for row in rows] == [True, False]
    assert not list(report({OURS: 1.0}).targets())


def test_the_kernels() -> None:
    names = list(running.kernel_names(MODELS["mixtral"], WORKS))
    kinds = {Config.parse(name)[0].op for name in names}

    assert kinds == {"route", "permute_quantize", "grouped_gemm", "activation_quantize", "combine"}
    assert any("e4m3" in name for name in names)
    assert any("bf16_bf16" in name for name in names)


def test_what_work_is_called() -> None:
    assert str(GENERATE) == "generate 2 x 3 after 5"
    assert str(PREFILL) == "prefill 2 x 20"
    assert (GENERATE.tokens, GENERATE.at_once) == (6, (10, 2))
    assert (PREFILL.tokens, PREFILL.at_once) == (40, (40,))
