# SPDX-License-Identifier: Apache-2.0
"""Tiny random models of transformers on the cpu: jitgen's experts beside eager ones."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen.errors import InputError
from jitgen.integrations import transformers as integration
from jitgen.layer import reference
from tests import needs

transformers = pytest.importorskip("transformers", reason="needs jitgen[transformers]")
pytestmark = [
    needs.compiler,
    pytest.mark.usefixtures("shared_cache", "registered"),
    pytest.mark.filterwarnings("ignore"),  # transformers' own
]

HIDDEN, PROMPT, NEW = 128, 20, 6
_COMMON: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": HIDDEN,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
}


def config(name: str) -> Any:
    if name == "mixtral":
        return transformers.MixtralConfig(**_COMMON, num_local_experts=6, num_experts_per_tok=2)
    if name == "qwen3_moe":
        return transformers.Qwen3MoeConfig(
            **_COMMON, moe_intermediate_size=128, num_experts=12, num_experts_per_tok=3, head_dim=32
        )
    return transformers.DeepseekV3Config(
        **_COMMON,
        moe_intermediate_size=128,
        n_routed_experts=12,
        num_experts_per_tok=3,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
        q_lora_rank=32,
        kv_lora_rank=32,
        qk_rope_head_dim=16,
        qk_nope_head_dim=16,
        v_head_dim=32,
    )


NAMES = ("mixtral", "qwen3_moe", "deepseek_v3")


@pytest.fixture(scope="module")
def registered() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        integration.register()
        integration.register()
    return


def model(name: str) -> Any:
    torch.manual_seed(1)
    made = transformers.AutoModelForCausalLM.from_config(config(name), dtype=torch.bfloat16)
    return made.eval()


def generated(made: Any, implementation: str, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return tokens, and the logits of each step: of the prompt's last, then of one token each."""
    made.set_experts_implementation(implementation)
    found = made.generate(
        ids,
        max_new_tokens=NEW,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return found.sequences[:, ids.shape[1] :], torch.stack(found.logits, 1).float()


@pytest.mark.parametrize("name", NAMES)
class TestAModel:
    @pytest.mark.nightly
    def test_prefill(self, name: str) -> None:
        """Within what the other implementation of transformers differs from eager."""
        made = model(name)
        ids = torch.randint(0, 128, (2, PROMPT))
        logits = {}
        with torch.no_grad():
            for each in ("eager", "grouped_mm", integration.IMPLEMENTATION):
                made.set_experts_implementation(each)
                logits[each] = made(ids).logits
        errors = {
            each: reference.relative_error(found, logits["eager"]) for each, found in logits.items()
        }

        assert errors["jitgen"] < 2 * errors["grouped_mm"] + 1e-3

    def test_generate(self, name: str) -> None:
        """
        Prompts, then token by token, when most experts have none: the same tokens as eager, but
        where two are as likely as rounding may decide, after which texts go apart.
        """
        made = model(name)
        ids = torch.randint(0, 128, (2, PROMPT))
        tokens, logits = generated(made, "eager", ids)
        found, others = generated(made, integration.IMPLEMENTATION, ids)
        compared = 0
        for text in range(len(ids)):
            for step in range(NEW):
                error = (others[text, step] - logits[text, step]).abs().max()
                assert error < 0.05 * logits[text, step].abs().max()
                compared += 1
                if tokens[text, step] != found[text, step]:
                    first, second = logits[text, step].topk(2).values
                    assert first - second <= 2 * error
                    break

        assert compared > NEW

    @pytest.mark.nightly
    def test_one_token(self, name: str) -> None:
        made = model(name)
        with torch.no_grad():
            made.set_experts_implementation("eager")
            expected = made(torch.tensor([[7]])).logits
            made.set_experts_implementation(integration.IMPLEMENTATION)
            found = made(torch.tensor([[7]])).logits

        assert reference.relative_error(found, expected) < 0.02


class TestFp8:
    def test_a_model(self) -> None:
        """
        Transformers' own FP8 experts do not run on a CPU: compared with the same weights in
        bfloat16, so by what quantising tokens costs.
        """
        made = model("qwen3_moe")
        ids = torch.randint(0, 128, (2, PROMPT))
        replaced = [with_fp8(made, name) for name in expert_names(made)]
        with torch.no_grad():
            expected = made(ids).logits
            for name, experts in replaced:
                made.set_submodule(name, experts)
            made.set_experts_implementation(integration.IMPLEMENTATION)
            found = made(ids).logits

        assert replaced
        assert 1e-4 < reference.relative_error(found, expected) < 0.08

    def test_other_blocks_are_refused(self) -> None:
        made = model("qwen3_moe")
        _, experts = with_fp8(made, expert_names(made)[0])
        experts.block_size = (64, 64)

        with pytest.raises(InputError, match="128 x 128"):
            integration.chain_of(experts, 3)


def expert_names(made: Any) -> list[str]:
    return [name for name, _ in made.named_modules() if name.endswith(".experts")]


def with_fp8(made: Any, name: str) -> tuple[str, Any]:
    """Return FP8 experts with the weights of a module, which gets the rounded ones."""
    from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS, FP8Experts
    from transformers.integrations.moe import use_experts_implementation

    class Experts(FP8Experts):  # type: ignore[misc]  # the decorator changes the class
        pass

    module = made.get_submodule(name)
    kind = use_experts_implementation(
        experts_class=Experts, experts_interface=ALL_FP8_EXPERTS_FUNCTIONS, has_bias=False
    )
    experts = kind(config=module.config, block_size=(128, 128))
    for part in ("gate_up_proj", "down_proj"):
        weight = getattr(module, part)
        q, scale = jitgen.quantize.per_block(weight.data)
        getattr(experts, part).data = q
        getattr(experts, f"{part}_scale_inv").data = scale
        rounded = q.float() * scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
        weight.data = rounded.bfloat16()
    return name, experts


class TestAModule:
    @pytest.mark.nightly
    def test_another_activation(self) -> None:
        """Where no kernel computes it, the model's own code does."""
        made = transformers.AutoModelForCausalLM.from_config(
            transformers.MixtralConfig(**_COMMON, num_local_experts=6, hidden_act="gelu"),
            dtype=torch.bfloat16,
        ).eval()
        ids = torch.randint(0, 128, (1, PROMPT))
        with torch.no_grad():
            made.set_experts_implementation("eager")
            expected = made(ids).logits
            made.set_experts_implementation(integration.IMPLEMENTATION)
            found = made(ids).logits

        assert reference.relative_error(found, expected) < 0.02

    def test_a_share_of_the_experts(self) -> None:
        """Numbers behind the last one stand for experts elsewhere, as transformers marks them."""
        experts = model("mixtral").get_submodule("model.layers.0.mlp.experts")
        x = torch.randn(5, HIDDEN).bfloat16()
        ids = torch.tensor([[0, 1], [6, 2], [6, 6], [5, 6], [3, 4]])
        weights = torch.rand(5, 2).masked_fill(ids == 6, 0.0)
        with torch.no_grad():
            found = integration.experts_forward(experts, x, ids, weights)
            experts.config._experts_implementation = "eager"
            expected = experts(x, ids, weights)

        assert reference.relative_error(found, expected) < 0.01
        assert not found[2].any()

    @pytest.mark.nightly
    def test_new_weights_are_seen(self) -> None:
        experts = model("mixtral").get_submodule("model.layers.0.mlp.experts")
        given = torch.randn(3, HIDDEN).bfloat16(), torch.tensor([[0, 1]] * 3), torch.rand(3, 2)
        with torch.no_grad():
            first = integration.experts_forward(experts, *given)
            experts.down_proj = torch.nn.Parameter(experts.down_proj * 2)
            second = integration.experts_forward(experts, *given)

        assert reference.relative_error(second, 2 * first.float()) < 0.01


def gpt_oss() -> Any:
    """Return a tiny gpt-oss with the values of MXFP4 weights, as after loading a checkpoint."""
    torch.manual_seed(2)
    made = transformers.AutoModelForCausalLM.from_config(
        transformers.GptOssConfig(
            **{**_COMMON, "head_dim": 32}, num_local_experts=4, num_experts_per_tok=2
        ),
        dtype=torch.bfloat16,
    ).eval()
    for name in expert_names(made):
        experts = made.get_submodule(name)
        for part in ("gate_up_proj", "down_proj"):
            weight = getattr(experts, part)
            rounded = jitgen.quantize.prepack_mxfp4_from(weight.data.transpose(1, 2)).weights()
            weight.data = rounded.transpose(1, 2).contiguous().bfloat16()
            getattr(experts, f"{part}_bias").data.normal_()
    return made


class TestGptOss:
    def test_a_model(self) -> None:
        """Its biases and its activation, without a loss in its weights."""
        made = gpt_oss()
        ids = torch.randint(0, 128, (2, PROMPT))
        with torch.no_grad():
            made.set_experts_implementation("eager")
            expected = made(ids).logits
            made.set_experts_implementation(integration.IMPLEMENTATION)
            found = made(ids).logits

        assert reference.relative_error(found, expected) < 0.02

    def test_a_trained_model(self) -> None:
        """Values that MXFP4 has not are read as they lie, in bfloat16."""
        made = gpt_oss()
        ids = torch.randint(0, 128, (2, PROMPT))
        with torch.no_grad():
            for name in expert_names(made):
                made.get_submodule(name).down_proj.mul_(1.1)
            made.set_experts_implementation("eager")
            expected = made(ids).logits
            made.set_experts_implementation(integration.IMPLEMENTATION)
            found = made(ids).logits

        assert reference.relative_error(found, expected) < 0.02


class TestWarmUp:
    @pytest.mark.nightly
    def test_prewarmed_and_frozen(self) -> None:
        """What `prewarm` brought is what the model asks for, whatever the batch."""
        made = model("deepseek_v3")
        made.set_experts_implementation(integration.IMPLEMENTATION)
        assert integration.prewarm(made, max_tokens=64, arch="cpu", jobs=1).ok
        with jitgen.Session(on_miss="error"), torch.no_grad():
            for tokens in (1, 5, 32):
                made(torch.randint(0, 128, (2, tokens)))

    def test_a_model_without_experts(self) -> None:
        with pytest.raises(InputError, match="no experts"):
            integration.plan(torch.nn.Linear(2, 2))
