# SPDX-License-Identifier: Apache-2.0
"""Models with layers of experts that are trained: beside torch, with adapters, by FSDP2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import mean

import pytest
import torch
from torch import nn

import jitgen
from jitgen.layer import reference
from tests import needs, trained

pytestmark = [needs.compiler, pytest.mark.usefixtures("shared_cache")]

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("steps", [20, pytest.param(200, marks=pytest.mark.nightly)])
def test_losses_are_those_of_torch(steps: int) -> None:
    """They leave float32's curve no more than torch's bfloat16 does."""
    mine, torch_bf16, right = (trained.losses(kind, steps) for kind in trained.KINDS)
    last = slice(-steps // 2, None)
    off, allowed = (
        mean(abs(one - other) for one, other in zip(found[last], right[last], strict=True))
        for found in (mine, torch_bf16)
    )

    assert mean(right[-5:]) < 0.9 * mean(right[:5]), "it learns"
    assert mine[0] == pytest.approx(right[0], rel=0.01)
    assert off <= 2 * allowed + 0.01 * mean(right[last])


class TestAdapters:
    """Thin matrices are trained, and the experts stay as they are."""

    def test_in_front_of_frozen_experts(self) -> None:
        """The gradient passes through experts that have none."""
        config = trained.CONFIG
        torch.manual_seed(0)
        frozen = jitgen.MoELayer(config, trained.weights()).requires_grad_(False)
        down, up = (nn.Parameter(torch.randn(s) / 4) for s in ((4, 32), (32, 4)))
        x, dout = torch.randn(2, trained.TOKENS, trained.HIDDEN)
        topk_weights, topk_ids = torch.randn(trained.TOKENS, 6).softmax(-1).topk(2)
        found = []
        for run in (
            lambda rows: frozen(rows.bfloat16(), topk_weights, topk_ids),
            lambda rows: reference.moe(rows, frozen.weights, topk_weights, topk_ids, config),
        ):
            y = run(x + x @ down.T @ up.T)
            found.append(torch.autograd.grad(y, (down, up), dout.to(y)))

        assert frozen.w13.grad is None
        for mine, right in zip(*found, strict=True):
            assert reference.relative_error(mine, right) < 0.01

    def test_added_to_frozen_experts(self) -> None:
        """Weights that are computed have gradients like any other, and those of a layer may be."""
        config = trained.CONFIG
        torch.manual_seed(0)
        frozen = jitgen.MoELayer(config, trained.weights()).requires_grad_(False)
        down, up = (nn.Parameter((torch.randn(6, *s) / 4).bfloat16()) for s in ((4, 32), (64, 4)))
        x, dout = torch.randn(2, trained.TOKENS, trained.HIDDEN).bfloat16()
        topk_weights, topk_ids = torch.randn(trained.TOKENS, 6).softmax(-1).topk(2)
        w13 = frozen.w13 + up @ down
        given = (x, topk_weights, topk_ids)
        y = torch.func.functional_call(frozen, {"w13": w13}, given)
        found = torch.autograd.grad(y, (down, up), dout, retain_graph=True)
        weights = jitgen.ExpertWeights(w13=w13, w2=frozen.w2)
        y = reference.moe(x, weights, topk_weights, topk_ids, config)
        expected = torch.autograd.grad(y, (down, up), dout.float())

        for mine, right in zip(found, expected, strict=True):
            assert reference.relative_error(mine, right) < 0.02


@pytest.mark.nightly
def test_fsdp2(tmp_path: Path, shared_cache: Path) -> None:
    """
    Two processes that share every parameter, whose memory comes and goes: the gradients are those
    of one process with the tokens of both.
    """
    command = [sys.executable, "-m", "tests.trained"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [*command, str(rank), "2", str(tmp_path / "store")],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [each.communicate(timeout=600)[0] for each in running]

    assert [each.returncode for each in running] == [0, 0]
    assert all(float(each) < 1e-3 for each in said)
