# SPDX-License-Identifier: Apache-2.0
"""
What a model's config says of its router, as fields of `RouterConfig`.

A config says numbers (`_WORDS`), and some say how scores are made; of the others the type of the
model tells it (`RULES`). A word that changes the choice, and that `jitgen.route` does not compute,
is refused by its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jitgen.config.route import GroupScoring, Scoring
from jitgen.layer.checkpoints.gates import number
from jitgen.layer.checkpoints.model_config import Said
from jitgen.support.frozen import frozen
from jitgen.support.text import shown

_SCORINGS = {
    "softmax": Scoring.SOFTMAX,
    "sigmoid": Scoring.SIGMOID,
    "sqrtsoftplus": Scoring.SQRTSOFTPLUS,
}
"""What configs call the ways to score that `jitgen.route` has."""

_METHODS = {
    "greedy": (False, GroupScoring.TOP2),
    "noaux_tc": (True, GroupScoring.TOP2),
    "group_limited_greedy": (False, GroupScoring.MAX),
}
"""What configs call a choice: whether it has a bias, and what groups are kept for."""

_SOFTCAPS = ("moe_router_logit_softcapping", "router_logit_softcapping")
"""What configs call the bound of a router's logits: Laguna's, Grok's."""

_SCALES = ("routed_scaling_factor", "moe_routed_scaling_factor")
"""What configs call the number that weights are multiplied with at last."""

_ANY_SCALE = re.compile(r"rout\w*_scal|scal\w*_rout")

_RENORMALIZE = ("norm_topk_prob", "moe_renormalize")
"""What configs call that weights are divided by their sum."""

_REFUSED = (
    *("hash_moe", "moe_norm_min", "router_temperature"),
    *("moe_apply_router_weight_on_input", "apply_router_weight_on_input"),
)
"""Words that change the choice or the weights, and that `jitgen.route` does not compute."""


@frozen
class Rule:
    """
    How models of a type route.

    Attributes:
        scoring: How scores come of logits.
        has_bias: Whether there is a correction bias.
        renormalize: Whether weights are divided by their sum; None: ``norm_topk_prob`` says it.
    """

    scoring: Scoring
    has_bias: bool = False
    renormalize: bool | None = None


_SOFTMAX, _CHOSEN = Rule(scoring=Scoring.SOFTMAX), Rule(scoring=Scoring.SOFTMAX, renormalize=True)
_BIASED = Rule(scoring=Scoring.SIGMOID, has_bias=True)
_BIASED_CHOSEN = Rule(scoring=Scoring.SIGMOID, has_bias=True, renormalize=True)

RULES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            *("mixtral", "gpt_oss", "qwen3_5_moe_text", "qwen3_vl_moe_text", "aria_text"),
            *("mistral_large4_text", "minimax", "granitemoe", "granitemoe_swa"),
            *("granitemoehybrid", "granitemoeshared"),
        ),
        _CHOSEN,
    ),
    **dict.fromkeys(
        (
            *("qwen2_moe", "qwen3_moe", "qwen3_next", "qwen3_omni_moe_text", "qwen4_exp_text"),
            *("qwen3_omni_moe_talker_text", "olmoe", "flex_olmo", "mellum", "mistral4"),
            "deepseek_v2",
        ),
        _SOFTMAX,
    ),
    "jamba": Rule(scoring=Scoring.SOFTMAX, renormalize=False),
    **dict.fromkeys(("minimax_m2", "minimax_m3_vl_text", "laguna"), _BIASED_CHOSEN),
    **dict.fromkeys(
        (
            *("deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_linear", "axk1", "axk2"),
            *("glm4_moe", "glm4_moe_lite", "glm4v_moe_text", "glm_moe_dsa", "exaone_moe"),
            *("dots1", "mimo_v2_flash", "solar_open", "bailing_hybrid", "beam"),
            *("glm5_next_text", "hy_v4", "nemotron_h"),
        ),
        _BIASED,
    ),
    "longcat_flash": Rule(scoring=Scoring.SOFTMAX, has_bias=True, renormalize=False),
    "flint": Rule(scoring=Scoring.SIGMOID),
    "deepseek_v4": Rule(scoring=Scoring.SQRTSOFTPLUS, has_bias=True, renormalize=True),
}
"""How each type of model routes."""


EXPERTS_ALONE = (
    *("llama4_text", "phimoe", "lfm2_moe", "hy_v3", "ernie4_5_moe", "hunyuan_v1_moe", "kolibri1"),
    *("cohere2_moe", "afmoe", "inkling2_text"),
)
"""Types of models whose experts are computed, and whose router is not."""


def require_known_experts(said: Said) -> None:
    """
    Refuse a type of model of whose experts nothing is known but their sizes.

    Raises:
        InputError: It may have a norm after each expert, no gate, or another formula.
    """
    kind = said.section.get("model_type")
    if kind is not None and (not isinstance(kind, str) or kind not in (*RULES, *EXPERTS_ALONE)):
        raise said.error(
            f"says model_type = {shown(kind)}, and what its experts compute is not known; without "
            "the word they are taken for activation(gate) * up between two products"
        )


def fields(said: Said, layer: int | None = None) -> dict[str, Any]:
    """
    Return the fields of `RouterConfig` that a config says.

    Args:
        said: The config.
        layer: Number of the layer; None: one that chooses by scores.

    Raises:
        InputError: It says something that is not computed, or too little.
    """
    section = said.section
    for name in _REFUSED:
        if section.get(name):
            raise said.error(f"says {name} = {shown(section[name])}, which no router computes")
    is_hashed = layer is not None and _is_hashed(said, section, layer)
    rule = _rule(said, section)
    groups, top_groups = (said.count(name) or 1 for name in ("n_group", "topk_group"))
    renormalize = rule.renormalize
    if renormalize is None:
        words = [section[name] for name in _RENORMALIZE if section.get(name) is not None]
        if len(words) != 1 or type(words[0]) is not bool:
            have = shown(words[0] if len(words) == 1 else words) if words else "nothing"
            raise said.error(f"must say {_RENORMALIZE[0]}, True or False (got {have})")
        [renormalize] = words
    scales = {name for name in section if isinstance(name, str) and _ANY_SCALE.search(name)}
    for name in sorted(scales - {*_SCALES}):
        if section[name] not in (None, 1.0):
            raise said.error(f"says {name} = {shown(section[name])}, which is not understood")
    factor = _one(said, section, _SCALES)
    return {
        "experts": said.experts() + said.zero_experts(ranks=1),
        "top_k": said.required_top_k(),
        "scoring": str(rule.scoring),
        "has_bias": rule.has_bias and not is_hashed,
        "is_hashed": is_hashed,
        "expert_groups": groups,
        "top_groups": top_groups if groups > 1 else 1,
        "group_scoring": str(_METHODS[section.get("topk_method") or "greedy"][1]),
        "softcap": _one(said, section, [name for name in _SOFTCAPS if section.get(name)]),
        "renormalize": renormalize,
        "routed_scaling_factor": 1.0 if factor is None else factor,
    }


def _one(said: Said, section: Mapping[str, Any], names: Sequence[str]) -> float | None:
    """Return the number that several names have; None: none has one."""
    found = {value for name in names if (value := number(said, section, name)) is not None}
    if len(found) > 1:
        raise said.error(f"says both {' and '.join(names)}, which differ")
    return next(iter(found), None)


def _is_hashed(said: Said, section: Mapping[str, Any], layer: int) -> bool:
    """Say whether a table has the experts of each token of a layer: DeepSeek-V4's first ones."""
    kinds = section.get("mlp_layer_types")
    is_said = isinstance(kinds, list | tuple) and kinds[layer : layer + 1] == ["hash_moe"]
    return is_said or layer < (said.count("num_hash_layers") or 0)


def _rule(said: Said, section: Mapping[str, Any]) -> Rule:
    """Return how the config, else the type of the model, says that scores are made."""
    kind, word = section.get("model_type"), section.get("scoring_func")
    known = RULES.get(kind) if isinstance(kind, str) else None
    method = section.get("topk_method")
    if method is not None and (not isinstance(method, str) or method not in _METHODS):
        raise said.error(
            f"says topk_method = {shown(method)}, and {' and '.join(_METHODS)} are computed"
        )
    if word is None:
        if known is None:
            raise said.error(
                f"says model_type = {shown(kind)} and no scoring_func: how it routes is not known; "
                f"known are {', '.join(RULES)}"
            )
        return known
    if not isinstance(word, str) or word not in _SCORINGS:
        raise said.error(
            f"says scoring_func = {shown(word)}, and {' and '.join(_SCORINGS)} are computed"
        )
    has_bias = _METHODS[method][0] if method else known is not None and known.has_bias
    return Rule(
        scoring=_SCORINGS[word],
        has_bias=has_bias,
        renormalize=None if known is None else known.renormalize,
    )
