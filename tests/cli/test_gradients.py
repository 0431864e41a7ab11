# SPDX-License-Identifier: Apache-2.0
"""``jitgen bench gradients``, on this machine's CPU as far as it goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench import gradients as suite
from jitgen.bench import training
from jitgen.config import Arch
from tests import needs
from tests.cli.conftest import Jitgen

CASE = suite.Case(groups=3, rows=20, n=32, k=24, spread=0.5)


def test_without_a_gpu_it_is_refused(jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitgen.autotune.measure.clock.has_gpu", lambda: False)
    done = jitgen("bench", "gradients")

    assert done.code == 1
    assert "bench gradients needs a GPU" in done.err
    assert "--candidates" in jitgen("bench", "gradients", "--help").out


def test_what_is_considered_is_legal_and_beside_what_is_listed() -> None:
    """The kernels that a GPU would time, which hold all that the selector may choose."""
    operands = suite._operands(CASE, "cpu")
    for product in suite._products(CASE, *operands):
        chosen = suite.jitgen.select(product.problem, Arch.SM_90A)
        found = list(suite._considered(chosen, Arch.SM_90A))

        assert {each.config for each in chosen.candidates} < set(found)
        assert len(found) == len(set(found)) > 12


@needs.compiler
@pytest.mark.usefixtures("shared_cache")
def test_every_side_is_right_before_it_is_timed() -> None:
    short = replace(suite.suite(), rounds=1)
    rows = [
        row for each in suite.products(CASE, Arch.CPU) for row in short.measured(each, Arch.CPU)
    ]

    assert [row.what.split(" 3 x")[0] for row in rows[:3]] == [
        "jitgen: forward",
        "torch._grouped_mm: forward",
        "torch._grouped_mm over jitgen: forward",
    ]
    assert rows[2].budget == 1.0
    assert rows[2].is_rate
    assert rows[-1].what == "torch._grouped_mm over jitgen: wgrad 3 x 20 uneven N32 K24"
    assert all(row.value > 0 for row in rows), [row for row in rows if not row.value]


STEP = training.Case(tokens=20, experts=4, top_k=2, hidden=64, intermediate=32)


@needs.compiler
@pytest.mark.usefixtures("shared_cache")
def test_every_step_is_right_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training.torch, "compile", lambda layer, **_: layer)
    short = replace(suite.suite(), rounds=1)
    (step,) = training.steps([STEP])
    rows = list(short.measured(step, Arch.CPU))

    assert [row.what.partition(": ")[0] for row in rows] == [
        *("jitgen", "torch._grouped_mm", "inductor"),
        *("torch._grouped_mm over jitgen", "inductor over jitgen"),
    ]
    assert all(row.value > 0 for row in rows)
    assert rows[0].what.endswith("step 20 tokens 4 experts top 2 H64 I32")


@needs.compiler
@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize("place", range(len(training.NAMES)))
def test_a_wrong_gradient_is_not_timed(place: int) -> None:
    operands = training.Operands(STEP, "cpu")
    found = list(operands.step(training.ours))
    operands.check("jitgen", found)
    found[place] = found[place] * 1.05

    with pytest.raises(WrongResult, match=f"jitgen: {training.NAMES[place]} is off by 0.0"):
        operands.check("jitgen", found)


@needs.compiler
@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize("product", suite.PRODUCTS)
def test_what_is_wrong_is_not_timed(product: str) -> None:
    """One value of one group is off by a few units in the last place."""
    operands = suite._operands(CASE, "cpu")
    (found,) = (each for each in suite._products(CASE, *operands) if each.name == product)
    right = found.ours(None)
    suite._check(found, "jitgen", right)
    wrong: Any = right.clone()
    wrong.view(-1)[-1] *= 1 + 6 * torch.finfo(wrong.dtype).eps

    with pytest.raises(WrongResult, match=f"{product} gives 1 wrong values"):
        suite._check(found, "jitgen", wrong)
