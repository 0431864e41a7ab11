# SPDX-License-Identifier: Apache-2.0
"""Tensors below a layer's prefix: each is read, is known to be others', or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.checkpoint_cases import (
    EXPERTS,
    MAKERS,
    gpt_oss,
    load,
    qwen3_moe,
    refused,
    same,
)


class TestBelowTheExperts:
    """They were left out without a word, whatever they change: the layer gave other results."""

    @pytest.mark.parametrize(
        ("family", "name", "advice"),
        [
            ("qwen3_moe", "experts.2.gate_proj.bias", "biases are read of gpt_oss alone"),
            ("qwen3_moe", "experts.0.gate_proj.lora_A.weight", "merge the adapter"),
            ("qwen3_moe", "experts.3.up_proj.weight_scale_inv", "that docs/moe-layer.md lists"),
            ("qwen3_moe", "experts.gate_up_proj", "build jitgen.ExpertWeights"),
            ("qwen3_moe", "experts.post_expert_norm.weight", "build jitgen.ExpertWeights"),
            ("qwen3_moe", "experts.05.up_proj.weight", "build jitgen.ExpertWeights"),
            ("qwen3_moe", "experts.1.weight", "build jitgen.ExpertWeights"),
            ("mixtral", "experts.1.w2.bias", "biases are read of gpt_oss alone"),
            ("mixtral", "experts.1.w1.weight_scale", "that docs/moe-layer.md lists"),
            ("deepseek_v3", "experts.4.down_proj.input_scale", "not with static ones"),
            ("deepseek_v3", "experts.4.down_proj.activation_scale", "not with static ones"),
            ("deepseek_v3", "experts.0.up_proj.weight_scale_2", "that docs/moe-layer.md lists"),
            ("gpt_oss", "experts.gate_up_proj", "build jitgen.ExpertWeights"),
            ("gpt_oss", "experts.down_proj_input_scale", "not with static ones"),
            ("gpt_oss", "experts.3.gate_proj.weight", "build jitgen.ExpertWeights"),
        ],
    )
    def test_what_is_not_read_is_refused_by_its_name(
        self, family: str, name: str, advice: str
    ) -> None:
        prefix, tensors, _ = MAKERS[family]()
        text = refused({**tensors, f"{prefix}.{name}": torch.ones(3)}, prefix)

        assert f"{prefix}.{name}" in text
        assert advice in text
        assert family in text
        assert "experts.E." in text or "experts.gate_up_proj_blocks" in text  # what stands beside

    def test_many_are_a_few_and_a_number(self) -> None:
        prefix, tensors, _ = qwen3_moe()
        more = {
            f"{prefix}.experts.{e}.{name}.bias": torch.ones(3)
            for e in range(EXPERTS)
            for name in ("gate_proj", "up_proj")
        }
        text = refused({**tensors, **more}, prefix)

        assert f"{prefix}.experts.0.gate_proj.bias, {prefix}.experts.0.up_proj.bias" in text
        assert f"and {2 * EXPERTS - 2} more" in text

    def test_a_name_is_printed_as_an_escape(self) -> None:
        prefix, tensors, _ = qwen3_moe()
        text = refused({**tensors, f"{prefix}.experts.\x1b[2J": torch.ones(3)}, prefix)

        assert "\x1b" not in text
        assert "\\x1b[2J" in text

    def test_a_share_is_told_of_others_too(self) -> None:
        """A rank that reads two experts of five would have begun to serve beside one that fails."""
        prefix, tensors, _ = qwen3_moe()
        tensors[f"{prefix}.experts.4.gate_proj.bias"] = torch.ones(3)

        assert "experts.4.gate_proj.bias" in refused(tensors, prefix, local_experts=2)


class TestBesideTheExperts:
    @pytest.mark.parametrize(
        "name",
        [
            *("gate.weight", "gate.e_score_correction_bias", "gate.wg.weight", "router.weight"),
            *("router.bias", "e_score_correction_bias", "experts.e_score_correction_bias"),
            *("moe_statics.e_score_correction_bias", "expert_bias", "shared_mlp.up_proj.weight"),
            *("shared_experts.gate_proj.weight", "shared_expert.down_proj.weight_scale_inv"),
            *("shared_expert_gate.weight", "share_expert.up_proj.weight", "input_layernorm.weight"),
            *("post_attention_layernorm.weight", "ffn_norm.weight", "self_attn.q_proj.weight"),
            *("attention.wq.weight", "fc1_latent_proj.weight"),
        ],
    )
    def test_what_is_known_to_be_others_is_left_to_them(self, name: str) -> None:
        prefix, tensors, _ = qwen3_moe()
        found = load({**tensors, f"{prefix}.{name}": torch.ones(3)}, prefix)

        assert same(found, load(tensors, prefix))

    @pytest.mark.parametrize(
        "name",
        [
            *("gate_proj.weight", "experts_bias", "expert_scale", "post_expert_norm.weight"),
            *("pre_expert_proj.weight", "lora_A.weight", "w13_input_scale", "gates.weight"),
        ],
    )
    def test_others_are_refused(self, name: str) -> None:
        prefix, tensors, _ = qwen3_moe()

        assert f"{prefix}.{name}" in refused({**tensors, f"{prefix}.{name}": torch.ones(3)}, prefix)

    def test_an_adapter_under_the_names_of_peft(self) -> None:
        """Its names hold the prefix and do not begin with it."""
        prefix, tensors, _ = qwen3_moe()
        name = f"base_model.model.{prefix}.experts.0.gate_proj.lora_A.weight"

        assert name in refused({**tensors, name: torch.ones(3)}, prefix)

    def test_other_layers_do_not_matter(self) -> None:
        prefix, tensors, _ = qwen3_moe()
        others: dict[str, Any] = {
            "lm_head.weight": None,
            f"{prefix}x.experts.0.gate_proj.bias": 3,
            "model.layers.70.mlp.experts.0.gate_proj.lora_A.weight": torch.ones(3),
            f"mtp.{prefix}.experts.0.gate_proj.bias": torch.ones(3),
        }

        assert same(load({**tensors, **others}, prefix), load(tensors, prefix))

    def test_no_prefix_at_all(self) -> None:
        """Tensors whose names begin with ``experts.`` have one of no characters."""
        prefix, tensors, _ = qwen3_moe()
        bare = {name.removeprefix(f"{prefix}."): each for name, each in tensors.items()}

        assert same(load(bare, ""), load(tensors, prefix))
        assert "experts.0.x" in refused({**bare, "experts.0.x": torch.ones(3)}, "")


class TestWhatIsMissing:
    @pytest.mark.parametrize("name", ["up_proj.weight", "down_proj.weight"])
    def test_a_matrix_of_the_last_expert(self, name: str) -> None:
        prefix, tensors, _ = qwen3_moe()
        full = f"{prefix}.experts.{EXPERTS - 1}.{name}"
        del tensors[full]

        assert full in refused(tensors, prefix)
        assert full in refused(tensors, prefix, local_experts=2)

    def test_the_first_matrix_of_the_last_expert(self) -> None:
        """The layer counted one expert less, and left out what the last one still had."""
        prefix, tensors, _ = qwen3_moe()
        del tensors[f"{prefix}.experts.{EXPERTS - 1}.gate_proj.weight"]

        assert f"lacks expert {EXPERTS - 1}" in refused(tensors, prefix)

    @pytest.mark.parametrize(
        "name", ["gate_up_proj_scales", "gate_up_proj_bias", "down_proj_blocks", "down_proj_bias"]
    )
    def test_fewer_or_more_experts_in_one_tensor_of_all(self, name: str) -> None:
        """Slices end where a tensor does: experts that one tensor had more were left out."""
        prefix, tensors, _ = gpt_oss()
        full = f"{prefix}.experts.{name}"
        for other in (tensors[full][:-1], tensors[full].repeat_interleave(2, 0)):
            text = refused({**tensors, full: other}, prefix)
            assert full in text
            assert str(tuple(other.shape)) in text

    @pytest.mark.parametrize("name", ["gate_up_proj_bias", "down_proj_scales"])
    def test_a_tensor_of_all(self, name: str) -> None:
        prefix, tensors, _ = gpt_oss()
        del tensors[f"{prefix}.experts.{name}"]

        assert f"{prefix}.experts.{name}" in refused(tensors, prefix)


class TestFoldersThatHoldMore:
    def test_a_tensor_in_two_files(self, tmp_path: Path) -> None:
        """The file whose name comes last won."""
        prefix, tensors, _ = qwen3_moe()
        name = f"{prefix}.experts.0.gate_proj.weight"
        save_file(tensors, tmp_path / "model.safetensors")
        save_file({name: torch.zeros_like(tensors[name])}, tmp_path / "other.safetensors")
        text = refused(tmp_path, prefix)

        assert name in text
        assert "model.safetensors and in other.safetensors" in text
        assert same(load(tmp_path / "model.safetensors", prefix), load(tensors, prefix))

    def test_an_adapter_beside_the_weights(self, tmp_path: Path) -> None:
        prefix, tensors, _ = qwen3_moe()
        save_file(tensors, tmp_path / "model.safetensors")
        (tmp_path / "adapter_config.json").write_text("{}", encoding="utf-8")

        assert "adapter" in refused(tmp_path, prefix)

    def test_a_numbered_file_is_not_there(self, tmp_path: Path) -> None:
        """The last experts were in it, so the layer had three of five and skipped the others."""
        prefix, tensors, _ = qwen3_moe()
        first = {name: each for name, each in tensors.items() if ".experts.4." not in name}
        path = tmp_path / "model-00001-of-00002.safetensors"
        save_file(first, path)

        assert "lacks model-00002-of-00002.safetensors" in refused(tmp_path, prefix)
        assert "one of several files" in refused(path, prefix)
        assert load(path, prefix, config={"num_experts": 4}).config.experts == 4
        assert "num_experts = 5" in refused(path, prefix, config={"num_experts": EXPERTS})
