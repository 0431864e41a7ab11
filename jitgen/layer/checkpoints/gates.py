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
from jitgen.ops.silu_mul_quantize.numbers import is_number
from jitgen.support.text import shown

_LIMIT, _ALPHA = "swiglu_limit", "swiglu_alpha"

_NAMES = {
    **dict.fromkeys(("silu", "swish", "swiglu"), Activation.SWIGLU),
    **dict.fromkeys(("swigluoai", "swiglu_oai"), Activation.SWIGLU_OAI),
}
"""What configs call the activations that a layer computes; a new one is a line here."""

_BY_NUMBERS = {
    (_LIMIT, _ALPHA): Activation.SWIGLU_OAI,
    (_ALPHA,): Activation.SWIGLU_OAI,  # whose limit is then asked for
}
"""What SiLU is with the numbers that a config says beside it; so is a new one here."""

_NEEDS: dict[str, tuple[str, ...]] = {Activation.SWIGLU_OAI: (_LIMIT, _ALPHA)}
"""Numbers that an activation must have."""

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
    told = {} if said is None else _told(said, family.get("activation"))
    for name, value in given.items():
        if said is not None and name in told and not _is_same(value, told[name]):
            raise InputError(
                name,
                f"must be {told[name]!r}, as {said.what} says (got {value!r}): leave it out, or "
                "give config= where that is about another layer",
            )
    found = {**family, **told, **given}
    if given.get("activation", told.get("activation")) == Activation.SWIGLU:
        found |= {name: given.get(name) for name in (_LIMIT, _ALPHA)}
    for name in _NEEDS.get(told.get("activation", ""), ()):
        if said is not None and name not in found:
            raise InputError(
                name,
                f"is required: {said.what} asks for {told['activation']} and does not say it (got "
                "None)",
            )
    return found


def _told(said: Said, of_family: object) -> dict[str, Any]:
    """Return the fields of the activation that the config states."""
    section = {name: value for name, value in said.section.items() if isinstance(name, str)}
    _refuse_unknown(said, section)
    numbers = {
        name: value
        for name in (_LIMIT, _ALPHA)
        if (value := number(said, section, name)) is not None
    }
    named = _activations(said, section)
    others = named - {Activation.SWIGLU}
    if of_family is not None:  # which calls it SiLU
        others = {Activation(str(of_family))}
    if not others and numbers:
        if tuple(numbers) not in _BY_NUMBERS:
            raise said.error(
                f"says {_LIMIT} = {numbers[_LIMIT]}, a clamp of gates and ups without {_ALPHA}, "
                "which no layer computes"
            )
        others = {_BY_NUMBERS[tuple(numbers)]}
    found = others or named
    return {"activation": str(found.pop()), **numbers} if found else {}


def _activations(said: Said, section: Mapping[str, Any]) -> set[Activation]:
    """Return the activations that are named, all of which a layer computes."""
    found = set()
    for name, value in section.items():
        if value is None or not _ACTIVATION.fullmatch(name) or _ELSEWHERE.search(name):
            continue
        word = value.get("name") if isinstance(value, Mapping) else value
        if not isinstance(word, str) or word.lower() not in _NAMES:
            raise said.error(
                f"says {name} = {shown(value)}, and a layer computes {', '.join(_NAMES)} alone"
            )
        found.add(_NAMES[word.lower()])
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


def number(said: Said, section: Mapping[str, Any], name: str) -> float | None:
    """
    Return the number of a name; None: there is none.

    Raises:
        InputError: It is no number above 0.
    """
    value = section.get(name)
    if value is None:
        return None
    if not is_number(value) or value <= 0:
        raise said.error(f"must have a number above 0 for {name} (got {shown(value)})")
    return float(value)


def _is_same(given: object, told: object) -> bool:
    return isinstance(given, str | int | float) and given == told
