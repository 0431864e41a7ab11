# SPDX-License-Identifier: Apache-2.0
"""What docs/layer-operations.md shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import jitgen
from jitgen.cli.main import cli
from jitgen.config.permute_quantize import Format
from tests import needs

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

PAGE = (Path(__file__).parents[2] / "docs/layer-operations.md").read_text(encoding="utf-8")
LAYER, FORMATS, LORA = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.usefixtures("spoilt_memory")
def test_the_snippets() -> None:
    """The layer is near to what float32 gives, and what comments state is so."""
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    exec(LAYER, names)  # noqa: S102  # the page is ours
    x, weights, inverse = names["x"].float(), names["weights"], names["inverse"]
    owners = torch.searchsorted(names["offs"], inverse.contiguous(), right=True)
    w13 = _dequantised(names["w13"], names["w13_scale"])[owners]
    w2 = _dequantised(names["w2"], names["w2_scale"])[owners]
    gate, up = torch.einsum("tk,tjnk->tjn", x, w13).chunk(2, dim=-1)
    y = torch.einsum("tji,tjni->tjn", torch.nn.functional.silu(gate) * up, w2)
    expected = (weights[..., None] * y).sum(1) + x

    assert names["gate_up"].shape == (12, 256)
    assert names["out"].dtype is torch.bfloat16
    assert (names["out"].float() - expected).norm() < 0.1 * expected.norm()

    exec(LORA, names)  # noqa: S102
    pairs, of_token = names["permutation"].long(), names["adapter_ids"].long()
    token, expert = pairs // 2, names["topk_ids"].long().flatten()[pairs]
    owner = of_token[token].clamp(0)
    a, b = (names[f"lora_{each}"][owner, expert].float() for each in "ab")
    added = (b @ (a @ x[token, :, None])).squeeze(-1) * (of_token[token] >= 0)[:, None]
    sums = names["gate_up"].float() + added
    assert (names["adapted"].float() - sums).norm() < 0.01 * sums.norm()

    exec(FORMATS, names)  # noqa: S102
    assert names["a"].shape == (2, 6, 256)
    assert names["a"].dtype is torch.float8_e4m3fn
    assert names["a_scale"].shape == (2, 6, 2)


def _dequantised(w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    every = scale.repeat_interleave(128, -1).repeat_interleave(128, -2)
    return w.float() * every[..., : w.shape[-2], : w.shape[-1]]


def test_the_commands_exist() -> None:
    lines = re.findall(r"^\$ jitgen (\w+)(.*)$", PAGE, re.MULTILINE)
    assert len(lines) == 4
    for name, rest in lines:
        result = CliRunner().invoke(cli, [name, "--help"])

        assert result.exit_code == 0
        assert set(re.findall(r"--[\w-]+", rest)) <= set(re.findall(r"--[\w-]+", result.output))
    assert jitgen.check("permute_quantize_ragged_block128_scatter_v16_sm_90a")


def test_every_format_is_in_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)

    assert set(map(str, Format)) <= set(rows)
