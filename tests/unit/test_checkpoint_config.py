# SPDX-License-Identifier: Apache-2.0
"""What a model's config.json says of its experts is kept, or is an error; nothing is assumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from torch import Tensor

import jitgen
from jitgen.errors import InputError
from tests.checkpoint_cases import (
    EXPERTS,
    HIDDEN,
    INTERMEDIATE,
    MAKERS,
    TOP_K,
    deepseek_v3,
    gpt_oss,
    mixtral,
    qwen3_moe,
)

SAID: dict[str, Any] = {"num_experts": EXPERTS, "num_experts_per_tok": TOP_K}
FP8: dict[str, Any] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}


def load(source: Any, prefix: str, config: Any = None, **named: Any) -> jitgen.MoEConfig:
    return jitgen.MoELayer.from_checkpoint(source, prefix, config=config, **named).config


def refused(source: Any, prefix: str, config: Any = None, **named: Any) -> str:
    with pytest.raises(InputError) as caught:
        load(source, prefix, config, **named)
    return str(caught.value)


def quantised(**words: Any) -> dict[str, Any]:
    return {**SAID, "quantization_config": {**FP8, **words}}


class TestWhereItIs:
    """It was not read at all: activation, experts of a token and limits were assumed."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        _, tensors, _ = qwen3_moe()
        save_file(tensors, tmp_path / "model.safetensors")
        return tmp_path

    def test_beside_the_files(self, folder: Path) -> None:
        prefix = qwen3_moe()[0]
        with pytest.raises(InputError, match=r"top_k: is required.*: there is no config\.json"):
            load(folder, prefix)
        (folder / "config.json").write_text(json.dumps({**SAID, "hidden_act": "silu"}))
        for source in (folder, str(folder), folder / "model.safetensors"):
            assert load(source, prefix).top_k == TOP_K
        (folder / "config.json").write_text(json.dumps({**SAID, "hidden_act": "quick_gelu"}))
        for source in (folder, folder / "model.safetensors"):
            text = refused(source, prefix)
            assert str(folder / "config.json") in text
            assert "hidden_act = 'quick_gelu'" in text

    def test_where_the_caller_says(self, folder: Path, tmp_path: Path) -> None:
        prefix, tensors, _ = qwen3_moe()
        (folder / "config.json").write_text(json.dumps({**SAID, "hidden_act": "quick_gelu"}))
        other = tmp_path / "other.json"
        other.write_text(json.dumps(SAID))

        assert load(folder, prefix, config=other).top_k == TOP_K
        assert load(folder, prefix, config=SAID).top_k == TOP_K
        assert load(tensors, prefix, config=str(other)).top_k == TOP_K
        assert load(folder, prefix, config={}, top_k=3).top_k == 3
        assert "gelu" in refused(tensors, prefix, config=folder)
        with pytest.raises(FileNotFoundError):
            load(tensors, prefix, config=tmp_path / "absent.json")

    @pytest.mark.parametrize("text", ["", "{", "[]", "3", "\x00", '{"num_experts": NaN}', "[" * 99])
    def test_one_that_cannot_be_read(self, text: str, folder: Path) -> None:
        (folder / "config.json").write_text(text)

        assert str(folder / "config.json") in refused(folder, qwen3_moe()[0], top_k=TOP_K)

    def test_one_of_something_else(self, folder: Path) -> None:
        """A file of that name without a word of experts is none that says nothing of them."""
        (folder / "config.json").write_text('{"port": 80}')

        assert "has none of num_experts" in refused(folder, qwen3_moe()[0], top_k=TOP_K)
        assert load(folder, qwen3_moe()[0], config={}, top_k=TOP_K).top_k == TOP_K

    def test_the_part_that_has_experts(self) -> None:
        prefix, tensors, _ = qwen3_moe()
        outer = {"hidden_act": "gelu", "hidden_size": 3, "text_config": SAID}
        vision = {"hidden_act": "gelu_pytorch_tanh", "hidden_size": 3, "num_experts": 0}

        assert load(tensors, prefix, config=outer).top_k == TOP_K
        assert load(tensors, prefix, config={**outer, "vision_config": vision}).top_k == TOP_K

    def test_two_parts_that_have_experts(self) -> None:
        prefix, tensors, _ = qwen3_moe()
        two = {
            "thinker_config": {"text_config": {**SAID, "num_experts_per_tok": 3}},
            "talker_config": {"text_config": SAID},
        }
        named = {f"talker.{name}": each for name, each in tensors.items()}
        text = refused(tensors, prefix, config=two)

        assert "thinker_config.text_config and talker_config.text_config" in text
        assert load(named, f"talker.{prefix}", config=two).top_k == TOP_K


class TestNumbers:
    @pytest.mark.parametrize(
        "name",
        ["num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k"],
    )
    def test_experts_of_a_token(self, name: str) -> None:
        prefix, tensors, _ = qwen3_moe()
        config = {"n_routed_experts": EXPERTS, name: 3}
        assert load(tensors, prefix, config=config).top_k == 3
        assert load(tensors, prefix, config=config, top_k=3).top_k == 3
        text = refused(tensors, prefix, config=config, top_k=2)

        assert text.startswith("top_k: ")
        assert f"{name} = 3 (got 2)" in text

    def test_a_number_for_each_layer(self) -> None:
        prefix, tensors, _ = qwen3_moe()
        assert load(tensors, prefix, config={**SAID, "num_experts_per_tok": [3, 3]}).top_k == 3
        several = {**SAID, "num_experts_per_tok": [2, 3]}

        assert load(tensors, prefix, config=several, top_k=3).top_k == 3
        for given in (None, 4):
            assert "2 or 3" in refused(tensors, prefix, config=several, top_k=given)

    @pytest.mark.parametrize(
        ("name", "number"),
        [
            ("num_experts", EXPERTS + 1),
            ("num_local_experts", 1),
            ("hidden_size", HIDDEN + 1),
            ("moe_intermediate_size", INTERMEDIATE * 2),
            ("intermediate_size", INTERMEDIATE * 2),
        ],
    )
    def test_what_the_tensors_contradict(self, name: str, number: int) -> None:
        """A folder that lacks the last experts had fewer, and skipped what was meant for them."""
        prefix, tensors, _ = qwen3_moe()

        assert f"{name} = {number}" in refused(tensors, prefix, config={name: number}, top_k=TOP_K)

    def test_sizes_of_a_model_are_taken_from_the_right_words(self) -> None:
        """Dense layers of a model have other sizes than experts; latent experts than tokens."""
        prefix, tensors, _ = qwen3_moe()
        for words in (
            {"intermediate_size": 3, "moe_intermediate_size": INTERMEDIATE},
            {"intermediate_size": INTERMEDIATE, "shared_expert_intermediate_size": 3},
            {"hidden_size": 3, "moe_latent_size": HIDDEN},
            {"hidden_size": HIDDEN, "moe_latent_size": None},
            {"n_shared_experts": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True},
        ):
            assert load(tensors, prefix, config={**SAID, **words}).experts == EXPERTS

    @pytest.mark.parametrize("value", ["8", 8.0, True, [], [8, "8"], {}, -1])
    @pytest.mark.parametrize("name", ["num_experts", "num_experts_per_tok", "hidden_size"])
    def test_what_is_no_number(self, name: str, value: Any) -> None:
        prefix, tensors, _ = qwen3_moe()
        text = refused(tensors, prefix, config={**SAID, name: value}, top_k=TOP_K)

        assert name in text


class TestActivation:
    @pytest.mark.parametrize("name", ["hidden_act", "hidden_activation", "activation_function"])
    @pytest.mark.parametrize("word", ["silu", "swish", "SiLU", {"name": "silu"}])
    def test_silu(self, name: str, word: Any) -> None:
        prefix, tensors, _ = qwen3_moe()
        found = load(tensors, prefix, config={**SAID, name: word})

        assert (found.activation, found.swiglu_limit, found.swiglu_alpha) == ("swiglu", None, None)

    @pytest.mark.parametrize("family", MAKERS)
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("hidden_act", "quick_gelu"),
            ("hidden_act", "relu2"),
            ("hidden_act", ""),
            ("hidden_act", ["silu"]),
            ("hidden_activation", "gelu_fast"),
            ("mlp_hidden_act", "relu2"),
            ("moe_hidden_act", "mish"),
            ("activation", "gelu_fast"),
            ("mlp_gate_softcap", 4.0),
            ("mlp_up_softcap", 25.0),
            ("swiglu_limits", [0.0, 7.0]),
            ("swiglu_clamp", True),
            ("activation_limit", 10.0),
            ("zero_expert_num", -1),
            ("swiglu_limit", 0),
            ("swiglu_limit", "7"),
            ("swiglu_alpha", -1.0),
        ],
    )
    def test_what_no_layer_computes(self, family: str, name: str, value: Any) -> None:
        """Grok's GELU, Inkling's softcaps and Step's clamps were computed as SwiGLU."""
        prefix, tensors, _ = MAKERS[family]()
        text = refused(tensors, prefix, config={**SAID, name: value})

        assert text.startswith("config: ")
        assert name in text

    @pytest.mark.parametrize(
        "words",
        [
            {"swiglu_limit": None, "swiglu_alpha": None, "mlp_gate_softcap": None},
            {"swiglu_limits": [0.0, None], "swiglu_limits_shared": [0.0, 16.0]},
            {"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
            {"moe_router_logit_softcapping": 1.0, "zero_expert_num": 0, "zero_expert_type": "x"},
            {"projector_hidden_act": "gelu", "activation_dropout": 0.1},
            {"hidden_act": None},
        ],
    )
    def test_what_is_about_something_else(self, words: dict[str, Any]) -> None:
        prefix, tensors, _ = qwen3_moe()

        assert load(tensors, prefix, config={**SAID, **words}).activation == "swiglu"

    @pytest.mark.parametrize(
        ("words", "kind", "numbers"),
        [
            ({"hidden_act": "silu", "swiglu_limit": 10}, "swiglu_clamp", {"swiglu_limit": 10.0}),
            ({"hidden_act": "gelu"}, "geglu", {}),
            ({"hidden_activation": "gelu_pytorch_tanh"}, "geglu_tanh", {}),
            ({"activation": "gelu_new"}, "geglu_tanh", {}),
            (
                {"hidden_act": "silu", "mlp_gate_softcap": 4.0, "mlp_up_softcap": 25},
                "situ",
                {"gate_softcap": 4.0, "up_softcap": 25.0},
            ),
            (
                {"swiglu_limit": 6, "swiglu_alpha": 1.5, "swiglu_beta": 0.5},
                "swiglu_bias",
                {"swiglu_limit": 6.0, "swiglu_alpha": 1.5, "swiglu_beta": 0.5},
            ),
            ({"swiglu_limits": [0.0] * 7 + [7.0]}, "swiglu_step", {"swiglu_limit": 7.0}),
            ({"hidden_act": "silu", "swiglu_limits": [7.0] * 7 + [0.0]}, "swiglu", {}),
        ],
    )
    def test_what_layers_compute(
        self, words: dict[str, Any], kind: str, numbers: dict[str, float]
    ) -> None:
        """DeepSeek-V4's clamp, Grok's GELU, Inkling's softcaps, Step's limits of layers."""
        prefix, tensors, _ = qwen3_moe()
        found = load(tensors, prefix, config={**SAID, **words})

        assert found.activation == kind
        for name in ("swiglu_limit", "swiglu_alpha", "swiglu_beta", "gate_softcap", "up_softcap"):
            assert getattr(found, name) == numbers.get(name)

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            ({"swiglu_limits": [0.0, 7.0]}, "the number of this layer is 7"),
            ({"swiglu_limits": [7.0] * 8, "swiglu_limit": 10}, "swiglu_limits and swiglu_limit"),
            ({"hidden_act": "gelu", "swiglu_limit": 10}, "swiglu_limit, which geglu has not"),
            (
                {"hidden_act": "gelu", "activation": "gelu_new"},
                "hidden_act = 'gelu' and activation",
            ),
        ],
    )
    def test_words_that_do_not_fit_each_other(self, words: dict[str, Any], text: str) -> None:
        prefix, tensors, _ = qwen3_moe()

        assert text in refused(tensors, prefix, config={**SAID, **words})

    def test_gelu_under_the_names_of_gpt_oss(self) -> None:
        prefix, tensors, _ = gpt_oss()
        text = refused(tensors, prefix, config={**SAID, "hidden_act": "gelu"})

        assert "hidden_act = 'gelu', and these names are of experts with swiglu_oai" in text

    @pytest.mark.parametrize("word", ["silu", "swigluoai"])
    def test_minimax(self, word: str) -> None:
        """Names of Mixtral, and gpt-oss's activation with gates in front of ups."""
        prefix, tensors, _ = mixtral()
        words = {"hidden_act": word, "swiglu_limit": 6, "swiglu_alpha": 1.5}
        found = load(tensors, prefix, config={**SAID, **words})

        assert (found.activation, found.swiglu_limit, found.swiglu_alpha) == (
            "swiglu_oai",
            6.0,
            1.5,
        )
        assert not found.interleaved

    def test_swigluoai_without_its_numbers(self) -> None:
        prefix, tensors, _ = mixtral()
        config = {**SAID, "hidden_act": "swigluoai"}

        assert refused(tensors, prefix, config=config).startswith("swiglu_limit: is required")
        assert (
            load(tensors, prefix, config=config, swiglu_limit=7.0, swiglu_alpha=1.7).swiglu_alpha
            == 1.7
        )

    @pytest.mark.parametrize(
        ("words", "limit", "alpha"),
        [
            ({}, 7.0, 1.702),
            ({"hidden_act": "silu", "swiglu_limit": 7.0}, 7.0, 1.702),
            ({"hidden_act": "silu", "swiglu_limit": 5.0, "swiglu_alpha": 1.5}, 5.0, 1.5),
        ],
    )
    def test_gpt_oss(self, words: dict[str, Any], limit: float, alpha: float) -> None:
        """Its limit and alpha were 7 and 1.702 whatever the model said."""
        prefix, tensors, _ = gpt_oss()
        found = load(tensors, prefix, config={**SAID, **words})

        assert (found.activation, found.swiglu_limit, found.swiglu_alpha) == (
            "swiglu_oai",
            limit,
            alpha,
        )
        assert found.interleaved

    def test_another_model_under_its_names(self) -> None:
        """OpenAI's privacy filter has the same names, and all gates before all ups."""
        prefix, tensors, _ = gpt_oss()
        config = {**SAID, "model_type": "openai_privacy_filter"}

        assert refused(tensors, prefix, config=config).startswith("interleaved: is required")
        text = refused(tensors, prefix, config=config, interleaved=False)
        assert "model_type = 'openai_privacy_filter'" in text
        given = {"interleaved": False, "activation": "swiglu_oai"}
        found = load(tensors, prefix, config=config, **given)
        assert not found.interleaved
        assert load(tensors, prefix, config={**SAID, "model_type": "gpt_oss"}).interleaved

    @pytest.mark.parametrize(
        ("given", "argument"),
        [
            ({"activation": "swiglu"}, "activation"),
            ({"swiglu_limit": 7.0}, "swiglu_limit"),
            ({"swiglu_alpha": 1.702}, "swiglu_alpha"),
            ({"swiglu_limit": "x"}, "swiglu_limit"),
        ],
    )
    def test_the_call_contradicts_it(self, given: dict[str, Any], argument: str) -> None:
        prefix, tensors, _ = mixtral()
        config = {**SAID, "swiglu_limit": 6, "swiglu_alpha": 1.5}

        assert refused(tensors, prefix, config=config, **given).startswith(f"{argument}: must be")
        assert (
            load(tensors, prefix, config=config, swiglu_limit=6, swiglu_alpha=1.5).swiglu_limit == 6
        )

    def test_a_call_that_wants_another_than_the_family(self) -> None:
        prefix, tensors, _ = gpt_oss()
        found = load(tensors, prefix, top_k=TOP_K, activation="swiglu")

        assert (found.activation, found.swiglu_limit, found.swiglu_alpha) == ("swiglu", None, None)
        assert load(tensors, prefix, top_k=TOP_K, swiglu_limit=5.0).swiglu_limit == 5.0


class TestQuantisation:
    @pytest.mark.parametrize(
        "words",
        [
            {},
            {"fmt": "float8_e4m3fn", "scale_fmt": "float"},
            {"weight_block_size": (128, 128), "scale_fmt": None, "expert_dtype": "fp8"},
            {"modules_to_not_convert": ["lm_head", "gate", "model.layers.7.mlp.gate"]},
            {"ignored_layers": ["model.layers.6.mlp.experts"], "dequantize": False},
        ],
    )
    def test_what_fits_fp8(self, words: dict[str, Any]) -> None:
        prefix, tensors, _ = deepseek_v3()

        assert load(tensors, prefix, config=quantised(**words)).top_k == TOP_K

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            ({"weight_block_size": [1, 128]}, "weight_block_size"),
            ({"weight_block_size": 128}, "weight_block_size"),
            ({"fmt": "e5m2"}, "fmt"),
            ({"scale_fmt": "e5m3"}, "scale_fmt"),
            ({"activation_scheme": "static"}, "activation_scheme"),
            ({"expert_dtype": "fp4"}, "expert_dtype"),
            ({"something": "new"}, "something"),
            ({"quant_method": "compressed-tensors"}, "compressed-tensors"),
            ({"quant_method": None}, "quant_method"),
            ({"quant_method": "mxfp4"}, "mxfp4"),
            ({"modules_to_not_convert": ["model.layers.7"]}, "was not converted"),
            ({"modules_to_not_convert": ["model.layers.*.mlp.experts"]}, "was not converted"),
            ({"modules_to_not_convert": ["gate_proj"]}, "was not converted"),
            ({"modules_to_not_convert": "experts"}, "modules_to_not_convert"),
            ({"modules_to_not_convert": [3]}, "modules_to_not_convert"),
        ],
    )
    def test_what_does_not(self, words: dict[str, Any], text: str) -> None:
        prefix, tensors, _ = deepseek_v3()

        assert text in refused(tensors, prefix, config=quantised(**words))

    def test_plain_weights_of_a_quantised_model(self) -> None:
        """FP8 values whose scales were lost on the way to bfloat16 look like any weights."""
        prefix, tensors, _ = qwen3_moe()
        text = refused(tensors, prefix, config=quantised())
        assert "fp8" in text
        assert "not quantised" in text
        for words in ({"modules_to_not_convert": [f"{prefix}.experts"]}, {"dequantize": True}):
            assert load(tensors, prefix, config=quantised(**words)).top_k == TOP_K

    def test_mxfp4(self) -> None:
        prefix, tensors, _ = gpt_oss()
        words = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.mlp.router"]}
        assert load(tensors, prefix, config={**SAID, "quantization_config": words}).top_k == TOP_K
        for other in (
            FP8,
            {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.mlp"]},
        ):
            assert "config: " in refused(
                tensors, prefix, config={**SAID, "quantization_config": other}
            )

    @pytest.mark.parametrize("value", ["fp8", [FP8], 3])
    def test_what_is_no_object(self, value: Any) -> None:
        prefix, tensors, _ = deepseek_v3()

        assert "quantization_config" in refused(
            tensors, prefix, config={**SAID, "quantization_config": value}
        )

    def test_on_the_way_to_the_part_that_counts(self) -> None:
        prefix, tensors, _ = deepseek_v3()
        inside: dict[str, Any] = {"text_config": quantised()}
        outside: dict[str, Any] = {"text_config": SAID, "quantization_config": FP8}
        wrong = {**FP8, "fmt": "e5m2"}

        assert load(tensors, prefix, config=inside).top_k == TOP_K
        assert load(tensors, prefix, config={**inside, **outside, **inside}).top_k == TOP_K
        assert "e5m2" in refused(tensors, prefix, config={**outside, "quantization_config": wrong})
        assert "one object" in refused(tensors, prefix, config={**inside, "compression_config": 3})


def test_a_config_of_transformers_is_told_how(tmp_path: Path) -> None:
    class Config:
        num_experts = EXPERTS

    prefix, tensors, _ = qwen3_moe()
    given: dict[str, Tensor] = tensors

    assert "config.to_dict()" in refused(given, prefix, config=Config())
