# SPDX-License-Identifier: Apache-2.0
"""
The activation between the two products of an expert: from the family, the model's config and the
caller, which must not contradict each other.

===================================  ==========================================================
the config says                      becomes
===================================  ==========================================================
an activation ``silu`` or ``swish``  ``swiglu``; of gpt-oss its own ``swiglu_oai``
``swigluoai``                        ``swiglu_oai``
``swiglu_limit``, ``swiglu_alpha``   limit and alpha of ``swiglu_oai``
``swiglu_limit`` alone               that of gpt-oss; of others a clamp that no kernel has
another activation, softcaps,        nothing: refused by name
clamps, experts that copy
===================================  ==========================================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jitgen.config.silu_mul_quantize import Activation
from jitgen.errors import InputError
from jitgen.layer.checkpoints.model_config import Said
from jitgen.ops.silu_mul_quantize.validate import is_number
from jitgen.support.text import shown

_SILU = {"silu", "swish", "swiglu"}
_OAI = {"swigluoai", "swiglu_oai"}
_LIMIT, _ALPHA = "swiglu_limit", "swiglu_alpha"

_ACTIVATION = re.compile(
    r"(\w+_)?(hidden_act|hidden_activation|act|act_fn|act_func|activation|activation_fn"
    r"|activation_func|activation_function|activation_type)"
)
_FORMULA = re.compile(
    r"swiglu|softcap|clamp|zero_expert|expert_norm|(act|activation|glu|gate)_(limit|alpha|beta|clip)"
)
_ELSEWHERE = re.compile(
    r"logit|router|attn|attention|qkv|shared|dense|vision|audio|image|projector|conv|mamba|ssm"
    r"|pool|classifier|mtp"
)
"""Words that show that a field is not about routed experts."""


def fields(
    family: Mapping[str, Any], said: Said | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """
    Return the fields of `MoEConfig` that describe the activation between the products.

    Args:
        family: Defaults of the family.
        said: What the model's config says.
        given: What the caller asks for, by the names of the fields.

    Raises:
        InputError: The config asks for what no layer computes, or the caller contradicts it.
    """
    is_oai = family.get("activation") == Activation.SWIGLU_OAI
    told = {} if said is None else _told(said, is_oai=is_oai)
    for name, value in given.items():
        if said is not None and name in told and not _is_same(value, told[name]):
            raise InputError(
                name,
                f"must be {told[name]!r}, as {said.what} says (got {value!r}): leave it out, or "
                "give config= where that is about another layer",
            )
    found = {**family, **told, **given}
    if given.get("activation", told.get("activation")) == Activation.SWIGLU:
        found |= {name: given.get(name) for name in ("swiglu_limit", "swiglu_alpha")}
    for name in ("swiglu_limit", "swiglu_alpha"):
        if said is not None and name not in found and "activation" in told:
            raise InputError(
                name, f"is required: {said.what} asks for swiglu_oai and does not say it (got None)"
            )
    return found


def _told(said: Said, *, is_oai: bool) -> dict[str, Any]:
    """Return the fields of the activation that the config states."""
    section = {name: value for name, value in said.section.items() if isinstance(name, str)}
    _refuse_unknown(said, section)
    limit, alpha = (_number(said, section, name) for name in (_LIMIT, _ALPHA))
    words = _activations(said, section)
    if is_oai or words & _OAI or alpha is not None:
        told: dict[str, Any] = {"activation": str(Activation.SWIGLU_OAI)}
        told |= {} if limit is None else {"swiglu_limit": limit}
        return told | ({} if alpha is None else {"swiglu_alpha": alpha})
    if limit is not None:
        raise said.error(
            f"says {_LIMIT} = {limit}, a clamp of gates and ups without {_ALPHA}, which no layer "
            "computes: swiglu has no limit"
        )
    return {"activation": str(Activation.SWIGLU)} if words else {}


def _activations(said: Said, section: Mapping[str, Any]) -> set[str]:
    """Return the activations that are named, all of which a layer computes."""
    found = set()
    for name, value in section.items():
        if value is None or not _ACTIVATION.fullmatch(name) or _ELSEWHERE.search(name):
            continue
        word = value.get("name") if isinstance(value, Mapping) else value
        if not isinstance(word, str) or word.lower() not in _SILU | _OAI:
            raise said.error(
                f"says {name} = {shown(value)}, and a layer computes silu(gate) * up (swiglu) or "
                "gpt-oss's swiglu_oai alone"
            )
        found.add(word.lower())
    return found


def _refuse_unknown(said: Said, section: Mapping[str, Any]) -> None:
    """Refuse unknown words that may change the activation."""
    for name, value in section.items():
        if name in (_LIMIT, _ALPHA) or not _FORMULA.search(name) or _ELSEWHERE.search(name):
            continue
        is_off = not any(value) if isinstance(value, list | tuple) else not value
        if not is_off:
            raise said.error(
                f"says {name} = {shown(value)}, which changes what experts compute and which no "
                "layer computes; give config= without it where it is about something else"
            )


def _number(said: Said, section: Mapping[str, Any], name: str) -> float | None:
    value = section.get(name)
    if value is None:
        return None
    if not is_number(value) or value <= 0:
        raise said.error(f"must have a number above 0 for {name} (got {shown(value)})")
    return float(value)


def _is_same(given: object, told: object) -> bool:
    return isinstance(given, str | int | float) and given == told
