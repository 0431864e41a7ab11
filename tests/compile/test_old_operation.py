# SPDX-License-Identifier: Apache-2.0
"""Graphs with the old name of an operation, and calls by it, give what they gave."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import jitgen

pytestmark = pytest.mark.usefixtures("shared_cache")

OLD, NEW = "silu_mul_quantize", "activation_quantize"


class Layer(nn.Module):
    def forward(self, x: Tensor, offs: Tensor) -> Tensor:
        return jitgen.activation_quantize(x, offs=offs, format="none")[0].float()


def given() -> tuple[Tensor, Tensor]:
    x = torch.randn(6, 512, generator=torch.Generator().manual_seed(0)).bfloat16()
    return x, torch.tensor([4, 6], dtype=torch.int32)


def test_a_saved_graph_of_an_older_version_runs(tmp_path: Path) -> None:
    importlib.import_module("jitgen.torch")
    program = torch.export.export(Layer(), given())
    for node in program.graph.nodes:
        if str(node.target) == f"jitgen.{NEW}.default":
            node.target = torch.ops.jitgen.silu_mul_quantize.default
    path = tmp_path / "layer.pt2"
    torch.export.save(program, path)
    assert OLD.encode() in path.read_bytes()
    with pytest.warns(DeprecationWarning, match=f"{OLD} is now {NEW}"):
        found = torch.export.load(path).module()(*given())

    assert torch.equal(found, Layer()(*given()))


def test_the_old_function_is_the_new_one_with_its_old_arguments() -> None:
    x, offs = given()
    with pytest.warns(DeprecationWarning, match=f"{OLD} is now {NEW}|format="):
        q, _ = jitgen.silu_mul_quantize(x, offs=offs, scale_granularity="none")

    assert torch.equal(q.float(), Layer()(x, offs))
