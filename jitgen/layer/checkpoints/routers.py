# SPDX-License-Identifier: Apache-2.0
"""
Reads the router from a model's config, as fields of `RouterConfig`.

All configs have numbers (`_WORDS`), and some say how scores are computed; for the others it follows
from the type of the model (`RULES`). An entry that changes the choice in a way that `jitgen.route`
does not support is an error that names the entry.
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
"""The scorings of `jitgen.route`, by their names in configs."""

_METHODS = {
    "greedy": (False, GroupScoring.TOP2),
    "noaux_tc": (True, GroupScoring.TOP2),
    "group_limited_greedy": (False, GroupScoring.MAX),
}
"""
Methods of choosing by their names in configs: whether there is a bias, and how groups are scored.
"""

_SOFTCAPS = ("moe_router_logit_softcapping", "router_logit_softcapping")
"""Names, in configs of Laguna and Grok, of the bound of a router's logits."""

_SCALES = ("routed_scaling_factor", "moe_routed_scaling_factor")
"""Names, in configs, of the factor of the weights."""

_ANY_SCALE = re.compile(r"rout\w*_scal|scal\w*_rout")

_RENORMALIZE = ("norm_topk_prob", "moe_renormalize")
"""Name, in configs, of the entry that says whether weights are divided by their sum."""

_REFUSED = (
    *("hash_moe", "moe_norm_min", "router_temperature"),
    *("moe_apply_router_weight_on_input", "apply_router_weight_on_input"),
)
"""Entries that change the choice or the weights in a way that `jitgen.route` does not support."""


@frozen
class Rule:
    """
    The router of models of one type.

    Attributes:
        scoring: How scores are computed from logits.
        has_bias: Whether there is a correction bias.
        renormalize: Whether weights are divided by their sum; None: as ``norm_topk_prob`` says.
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
"""The rule of each type of model."""


EXPERTS_ALONE = (
    *("llama4_text", "phimoe", "lfm2_moe", "hy_v3", "ernie4_5_moe", "hunyuan_v1_moe", "kolibri1"),
    *("cohere2_moe", "afmoe", "inkling2_text"),
)
"""Types of models whose experts are supported, but not their router."""


def require_known_experts(said: Said) -> None:
    """
    Refuse an unknown type of model, of whose experts only the sizes are known.

    Raises:
        InputError: The type is unknown; it may have a norm after each expert, no gate, or another
            formula.
    """
    kind = said.section.get("model_type")
    if kind is not None and (not isinstance(kind, str) or kind not in (*RULES, *EXPERTS_ALONE)):
        raise said.error(
            f"says model_type = {shown(kind)}, and what its experts compute is not known; without "
            "the word they are taken for activation(gate) * up between two products"
        )


def fields(said: Said, layer: int | None = None) -> dict[str, Any]:
    """
    Return the fields of `RouterConfig` from a config.

    Args:
        said: The config.
        layer: Number of the layer; None: a layer that chooses experts by scores.

    Raises:
        InputError: It has an entry that is not supported, or lacks one.
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
    """Return the number that the config has under these names; None if it has none."""
    found = {value for name in names if (value := number(said, section, name)) is not None}
    if len(found) > 1:
        raise said.error(f"says both {' and '.join(names)}, which differ")
    return next(iter(found), None)


def _is_hashed(said: Said, section: Mapping[str, Any], layer: int) -> bool:
    """
    Say whether a table gives the experts of each token in a layer, as in the first layers of
    DeepSeek-V4.
    """
    kinds = section.get("mlp_layer_types")
    is_said = isinstance(kinds, list | tuple) and kinds[layer : layer + 1] == ["hash_moe"]
    return is_said or layer < (said.count("num_hash_layers") or 0)


def _rule(said: Said, section: Mapping[str, Any]) -> Rule:
    """Return the rule for scores from the config, or else from the type of the model."""
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
