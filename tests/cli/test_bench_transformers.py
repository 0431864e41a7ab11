# SPDX-License-Identifier: Apache-2.0
"""`jitgen bench transformers` on machines without a GPU, and what it says of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from jitgen.bench.transformers.run import GROUPED, OURS, OURS_FP8, WORKS, Measured
from tests.cli.conftest import Jitgen

GENERATE = WORKS[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(jitgen: Jitgen) -> None:
    done = jitgen("bench transformers --model mixtral")

    assert (done.code, done.out) == (1, "")
    assert "error: the transformers suite needs a GPU that jitgen has kernels for" in done.err


@pytest.mark.parametrize("options", ["--model gpt", "--side vllm", "--rounds 0"])
def test_mistakes(jitgen: Jitgen, options: str) -> None:
    assert jitgen("bench transformers", *options.split()).code == 2


def test_the_kernels(jitgen: Jitgen) -> None:
    done = jitgen("bench transformers --kernels --json --model qwen3-moe --model qwen3-moe")
    names = done.document["kernels"]

    assert done.code == 0
    assert names == sorted(set(names))
    assert jitgen("bench transformers --kernels --model qwen3-moe").out.split() == names


@pytest.mark.parametrize(("rate", "code"), [(150.0, 0), (90.0, 1)])
def test_a_run(jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch, rate: float, code: int) -> None:
    seen: list[dict[str, Any]] = []

    def run(models: Any, works: Any, **options: Any) -> Iterator[Measured]:
        seen.append(options)
        yield Measured(
            model=models[0].name,
            work=GENERATE,
            rates={GROUPED: 100.0, OURS: rate},
            errors={GROUPED: 0.004, OURS: 0.003},
            missing={OURS_FP8: "no memory"},
        )

    monkeypatch.setattr("jitgen.bench.transformers.run.run", run)
    done = jitgen("bench transformers --model mixtral --rounds 2")

    assert done.code == code, done.err
    assert seen[0]["rounds"] == 2
    assert f"{rate:.0f} (3.0e-03)" in done.out
    assert "jitgen-fp8 is left out: no memory" in done.err
    document = jitgen("bench transformers --json --model mixtral").document
    assert document["ok"] == (code == 0)
    assert document["cases"][0]["tokens_per_s"] == {GROUPED: 100.0, OURS: rate}
    assert document["cases"][0]["work"] == {"texts": 1, "prompt": 128, "new": 32}
    assert document["targets"][0]["value"] == rate / 100


def test_a_run_without_jitgen_fails(jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Measured(model="mixtral", work=GENERATE, missing={OURS: "it is wrong"})
    monkeypatch.setattr("jitgen.bench.transformers.run.run", lambda *_, **__: iter([found]))
    done = jitgen("bench transformers --model mixtral")

    assert done.code == 1
    assert "mixtral, generate 1 x 32 after 128: it is wrong" in done.err
