# SPDX-License-Identifier: Apache-2.0
"""Tiny random checkpoints of every family, in files and in memory, against float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import jitgen
from jitgen.errors import InputError
from jitgen.layer.checkpoints import ENCODINGS, FAMILIES
from jitgen.layer.reference import TOLERANCE, relative_error
from tests import checkpoint_axes as axes
from tests import needs
from tests.checkpoint_cases import (
    EXPERTS,
    HIDDEN,
    MAKERS,
    TOP_K,
    deepseek_v3,
    gpt_oss,
    mixtral,
    normal,
)

pytestmark = [needs.compiler, pytest.mark.usefixtures("shared_cache")]


def test_every_family_has_a_test() -> None:
    """Those of one's names alone are in tests/unit/test_checkpoint_axes.py."""
    assert MAKERS.keys() <= FAMILIES.keys()
    assert FAMILIES.keys() - MAKERS.keys() == {
        *("minimax_m2", "qwen3_5_moe", "llama4", "nemotron_h", "nemotron_h_fused"),
    }


def expected(name: str, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """Return the layer's result, written down without anything of jitgen's."""
    prefix, tensors, (gates, ups, downs) = MAKERS[name]()
    out = torch.zeros(x.shape)
    for t in range(x.shape[0]):
        for j in range(TOP_K):
            e = int(ids[t, j])
            gate, up = gates[e] @ x[t].float(), ups[e] @ x[t].float()
            if name == "gpt_oss":
                bias = tensors[f"{prefix}.experts.gate_up_proj_bias"][e].float()
                gate, up = gate + bias[0::2], up + bias[1::2]
                gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
                y = downs[e] @ (gate * torch.sigmoid(1.702 * gate) * (up + 1))
                y += tensors[f"{prefix}.experts.down_proj_bias"][e].float()
            else:
                y = downs[e] @ (torch.nn.functional.silu(gate) * up)
            out[t] += weights[t, j] * y
    return out


def given() -> tuple[Tensor, Tensor, Tensor]:
    ids = torch.stack([torch.arange(9) % EXPERTS, (torch.arange(9) + 2) % EXPERTS], 1)
    return normal(9, HIDDEN).bfloat16(), normal(9, TOP_K).abs(), ids


@pytest.mark.parametrize("name", MAKERS)
class TestEveryFamily:
    def test_from_memory(self, name: str) -> None:
        prefix, tensors, _ = MAKERS[name]()
        layer = jitgen.MoELayer.from_checkpoint(tensors, prefix, top_k=TOP_K)
        tolerance = TOLERANCE[str(layer.weights.activation_format)]

        assert layer.config.experts == EXPERTS
        assert relative_error(layer(*given()), expected(name, *given())) < tolerance

    def test_from_a_folder(self, name: str, tmp_path: Path) -> None:
        """Two files and an index, as published checkpoints have; or the files alone."""
        prefix, tensors, _ = MAKERS[name]()
        names = list(tensors)
        halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        for file, part in halves.items():
            save_file({each: tensors[each] for each in part}, tmp_path / file)
        whole = jitgen.MoELayer.from_checkpoint(tensors, prefix, top_k=TOP_K)
        found = [jitgen.MoELayer.from_checkpoint(tmp_path, prefix, top_k=TOP_K, family=name)]
        places = {each: file for file, part in halves.items() for each in part}
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": places}), encoding="utf-8")
        found.append(jitgen.MoELayer.from_checkpoint(str(tmp_path), prefix, top_k=TOP_K))

        for layer in found:
            assert layer.state_dict().keys() == whole.state_dict().keys()
            for key, value in layer.state_dict().items():
                assert torch.equal(
                    value.view(torch.uint8), whole.state_dict()[key].view(torch.uint8)
                )

    @pytest.mark.nightly
    def test_a_share(self, name: str) -> None:
        """Ranks read their own experts alone, and add up to the whole."""
        prefix, tensors, _ = MAKERS[name]()
        whole = jitgen.MoELayer.from_checkpoint(tensors, prefix, top_k=TOP_K)
        parts = [
            jitgen.MoELayer.from_checkpoint(
                tensors, prefix, top_k=TOP_K, first_expert=first, local_experts=count
            )
            for first, count in ((0, 3), (3, None))
        ]
        assert [part.config.groups for part in parts] == [3, 2]
        total = sum(part(*given()).float() for part in parts)

        assert relative_error(total, whole(*given())) < 0.01  # type: ignore[arg-type]


def test_gpt_oss_in_bfloat16() -> None:
    """Trainers save it so: K in front of N, which kernels read as it lies, and the same biases."""
    prefix, tensors, (gates, ups, downs) = gpt_oss()
    pairs = zip(gates, ups, strict=True)
    up = torch.stack([torch.stack(pair, 1).flatten(0, 1) for pair in pairs])
    plain = {name: tensor for name, tensor in tensors.items() if name.endswith("_bias")}
    plain[f"{prefix}.experts.gate_up_proj"] = up.mT.contiguous().bfloat16()
    plain[f"{prefix}.experts.down_proj"] = torch.stack(downs).mT.contiguous().bfloat16()
    layer = jitgen.MoELayer.from_checkpoint(plain, prefix, top_k=TOP_K)
    flat = {**plain, f"{prefix}.experts.gate_up_proj": up[:, 0].bfloat16()}

    assert layer.weights.activation_format == "none"
    assert layer.state_dict()["w13"].stride(1) == 1
    assert relative_error(layer(*given()), expected("gpt_oss", *given())) < TOLERANCE["none"]
    with pytest.raises(InputError, match=r"gate_up_proj must be \(E, K, N\)"):
        jitgen.MoELayer.from_checkpoint(flat, prefix, top_k=TOP_K)


@pytest.mark.parametrize(
    ("intermediate", "ranks"),
    [(192, 1), (320, 1), (320, 2), (128, 2), pytest.param(1408, 8, marks=pytest.mark.nightly)],
)
@pytest.mark.parametrize("name", ["fp8_block128", "fp8_row", "mxfp4", "bf16"])
def test_sizes_that_128_does_not_divide(name: str, intermediate: int, ranks: int) -> None:
    """Blocks of scales that ranks share, and last ones that are not whole: 176 columns of 1408."""
    encoding = next(each for each in ENCODINGS if each.name == name and each.roles[0] != "blocks")
    made = axes.make("deepseek_v3", encoding, intermediate)
    x, weights, ids = axes.call()
    x = x.bfloat16()
    layers = [
        jitgen.MoELayer.from_checkpoint(
            made.tensors, axes.PREFIX, top_k=axes.TOP_K, rank=rank, ranks=ranks
        )
        for rank in range(ranks)
    ]
    total = sum(layer(x, weights, ids).float() for layer in layers)
    wanted = axes.expected(made, rounded=False, is_oai=False)
    tolerance = TOLERANCE[str(layers[0].weights.activation_format)]

    assert relative_error(total, wanted) < tolerance  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e8m0fnu])
def test_scales_as_bytes(dtype: torch.dtype) -> None:
    """UE8M0 that was stored as uint8 was cast to float32: results were 10**12 times too large."""
    prefix, tensors, _ = deepseek_v3()
    whole = {**tensors}
    for name, scale in tensors.items():
        if name.endswith("_scale_inv"):
            in_bytes = scale.to(torch.float8_e8m0fnu)
            tensors[name], whole[name] = in_bytes.view(dtype), in_bytes.float()
    found = jitgen.MoELayer.from_checkpoint(tensors, prefix, top_k=TOP_K)
    expected_layer = jitgen.MoELayer.from_checkpoint(whole, prefix, top_k=TOP_K)

    assert torch.equal(found(*given()), expected_layer(*given()))


def test_an_activation_that_the_config_says() -> None:
    """MiniMax-M3 has Mixtral's names and gpt-oss's activation; SwiGLU was assumed."""
    prefix, tensors, (gates, ups, downs) = mixtral()
    words = {"num_local_experts": EXPERTS, "num_experts_per_tok": TOP_K, "hidden_act": "silu"}
    config = {**words, "swiglu_limit": 0.5, "swiglu_alpha": 1.3}
    found = jitgen.MoELayer.from_checkpoint(tensors, prefix, config=config)
    x, weights, ids = given()
    out = torch.zeros(x.shape)
    for t in range(x.shape[0]):
        for j in range(TOP_K):
            e = int(ids[t, j])
            gate, up = gates[e] @ x[t].float(), ups[e] @ x[t].float()
            gate, up = gate.clamp(max=0.5), up.clamp(-0.5, 0.5)
            out[t] += weights[t, j] * (downs[e] @ (gate * torch.sigmoid(1.3 * gate) * (up + 1)))

    assert relative_error(found(x, weights, ids), out) < TOLERANCE["none"]


class TestMistakes:
    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"prefix": "model.layers.8.mlp"}, "has no tensor"),
            ({"prefix": "model.layers.7"}, "begins with"),
            ({"family": "llama"}, "must be one of"),
            ({"family": "gpt_oss"}, "has no experts"),
            ({"local_experts": 9}, "share of the 5 experts"),
            ({"activation_format": "row"}, "activation_format"),
        ],
    )
    def test_one_error_says_what(self, changes: dict[str, Any], text: str) -> None:
        prefix, tensors, _ = deepseek_v3()
        named = {"source": tensors, "prefix": prefix, "top_k": TOP_K, **changes}

        with pytest.raises(InputError, match=text):
            jitgen.MoELayer.from_checkpoint(**named)

    def test_a_missing_expert(self) -> None:
        prefix, tensors, _ = mixtral()
        del tensors[f"{prefix}.experts.2.w1.weight"]

        with pytest.raises(InputError, match="lacks expert 2"):
            jitgen.MoELayer.from_checkpoint(tensors, prefix, top_k=TOP_K)

    def test_a_missing_matrix(self) -> None:
        prefix, tensors, _ = deepseek_v3()
        del tensors[f"{prefix}.experts.4.up_proj.weight_scale_inv"]

        with pytest.raises(InputError, match=r"no tensor .*experts\.4\.up_proj"):
            jitgen.MoELayer.from_checkpoint(tensors, prefix, top_k=TOP_K)

    def test_a_file_that_is_none(self, tmp_path: Path) -> None:
        path = tmp_path / "x.safetensors"
        path.write_bytes(b"nothing of the kind")

        with pytest.raises(InputError, match="cannot be read"):
            jitgen.MoELayer.from_checkpoint(path, "model", top_k=1)
