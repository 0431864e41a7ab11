# SPDX-License-Identifier: Apache-2.0
"""
The classes that vLLM instantiates for layers with packed weights, and what decides between them and
vLLM's own.

Importing this module imports vLLM; `jitgen.integrations.vllm_packed` imports it when vLLM chooses
experts.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    kMxfp4Static,
    kMxfp8Dynamic,
    kMxfp8Static,
    kNvfp4Dynamic,
)

from jitgen.config.prepacked import K_MULTIPLE, PrepackedFormat
from jitgen.formats.prepacked import PrepackedWeights
from jitgen.formats.prepacked_int4 import GROUPS
from jitgen.integrations.vllm_experts import JitgenExperts, fits, tell_left
from jitgen.integrations.vllm_packed import Tokens
from jitgen.layer.weights import BLOCK128, NONE

_BITS = 4


class JitgenPackedExperts(JitgenExperts):
    """Experts with packed weights and bfloat16 tokens, as a class of vLLM's."""

    tokens = Tokens.BFLOAT16
    activation_form = NONE

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        return weight_key is not None and activation_key is None

    def form_of(self, quant_config: Any) -> str:
        """Return the format of the weights according to vLLM's config of quantisation."""
        kind = quant_config.weight_quant_dtype
        return str(GROUPS[quant_config.block_shape[1]]) if kind == "int4" else str(kind)

    def moe_problem_size(
        self, a1: Tensor, w1: Tensor, w2: Tensor, topk_ids: Tensor
    ) -> tuple[int, int, int, int, int]:
        """Return experts, tokens, rows of the first matrix, columns of tokens, and top-k."""
        return len(w1), len(a1), self.sizes.between, a1.shape[-1], topk_ids.shape[1]

    def matrices(self, w1: Tensor, w2: Tensor) -> dict[str, Any]:
        """Return the prepacked weights whose tensors vLLM has as weights and scales."""
        sizes = self.sizes
        parts = (
            ("w13", w1, self.w1_scale, sizes.between, sizes.hidden),
            ("w2", w2, self.w2_scale, sizes.hidden, sizes.intermediate),
        )
        found: dict[str, Any] = {
            name: PrepackedWeights(
                values=values.detach(),
                factor=factor.detach(),
                n=n,
                k=k,
                layout=self.tokens.value,
                format=PrepackedFormat(sizes.form),
            )
            for name, values, factor, n, k in parts
        }
        return {**found, "activation_format": self.activation_form}


class JitgenPackedE4m3Experts(JitgenPackedExperts):
    """Experts with packed weights and e4m3 tokens, as a class of vLLM's."""

    tokens = Tokens.E4M3
    activation_form = BLOCK128

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        return weight_key is not None and activation_key in (kNvfp4Dynamic, kMxfp8Dynamic)


EXPERTS = {each.tokens: each for each in (JitgenPackedExperts, JitgenPackedE4m3Experts)}


def selected(form: str, asked: dict[str, Any]) -> tuple[Tokens, type] | None:
    """
    Return jitgen's experts for a layer, and their name; None, after a line in the log, if they do
    not fit it.

    Args:
        form: Format of the weights.
        asked: Arguments of vLLM's function that chooses experts for this format.
    """
    moe = asked["config"]
    weights, tokens = {
        "MXFP8": (kMxfp8Static, kMxfp8Dynamic),
        "MXFP4": (kMxfp4Static, asked.get("activation_key")),
    }.get(form, (asked.get("weight_key"), asked.get("activation_key")))
    experts = EXPERTS[Tokens.BFLOAT16 if tokens is None else Tokens.E4M3]
    if why := _refusal(form, asked):
        tell_left(moe, f"{form} weights: {why}")
        return None
    return (experts.tokens, experts) if fits(experts, moe, weights, tokens) else None


def _refusal(form: str, asked: dict[str, Any]) -> str:
    """Return why jitgen's experts do not fit a layer, as far as vLLM's own checks do not say it."""
    moe = asked["config"]
    if moe.moe_backend != "auto":
        return f"--moe-backend is {moe.moe_backend}"
    if moe.moe_parallel_config.enable_eplb:
        return "the load of experts is balanced (--enable-eplb)"
    if form == "MXFP4" and asked.get("activation_key") is not None:
        return "the checkpoint quantises tokens"
    sizes = moe.hidden_dim, moe.intermediate_size_per_partition
    if form != "MXFP4" and any(size % K_MULTIPLE for size in sizes):  # vLLM rounds MXFP4's up
        return f"{K_MULTIPLE} does not divide {sizes[0]} and {sizes[1]}"
    return _refusal_of_int4(asked) if form == "INT4" else ""


def _refusal_of_int4(asked: dict[str, Any]) -> str:
    quant = asked["quant_config"]
    bits = getattr(quant, "weight_bits", getattr(quant, "num_bits", None))
    group = getattr(quant, "group_size", None)
    reorders = getattr(quant, "desc_act", False) or getattr(quant, "actorder", None) == "group"
    found = {
        f"weights have {bits} bits, and kernels take {_BITS}": bits != _BITS,
        "there are zero points": asked["may_have_zp"],
        f"groups have {group} values, and kernels take 32 or 128": group not in GROUPS,
        "rows along K are reordered": reorders,
    }
    return next((why for why, is_so in found.items() if is_so), "")
