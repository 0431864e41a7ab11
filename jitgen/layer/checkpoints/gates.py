# SPDX-License-Identifier: Apache-2.0
"""
The activation between the two products of an expert: from the family, the model's config and the
caller, which must not contradict each other.

======================================  ====================================================
the config says                         becomes
======================================  ====================================================
a name of an activation                 what `_NAMES` has; SiLU of gpt-oss its ``swiglu_oai``
SiLU, or nothing, and numbers           what `_BY_NUMBERS` has, with these numbers
``swiglu_limits``, one for each layer   ``swiglu_step`` where that of the layer is not zero
another activation, other clamps        nothing: refused by name
======================================  ====================================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jitgen.config.activation_quantize import NUMBERS, Activation
from jitgen.errors import InputError
from jitgen.layer.checkpoints.model_config import OF_ZERO_EXPERTS, Said
from jitgen.ops.numbers import is_number
from jitgen.support.text import shown

_NAMES = {
    **dict.fromkeys(("silu", "swish", "swiglu"), Activation.SWIGLU),
    **dict.fromkeys(("swigluoai", "swiglu_oai"), Activation.SWIGLU_OAI),
    "gelu": Activation.GEGLU,
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new"), Activation.GEGLU_TANH),
    "situ": Activation.SITU,
}
"""Names, in configs, of the activations that layers support. A new name is a new line here."""

_WITHOUT_GATES = {"relu2": Activation.RELU2, "relu": Activation.RELU}
"""
Names, in configs, of the activations that layers support for experts without gates. SiLU and GELU
are missing on purpose: a checkpoint with them may have gates that were not found.
"""

_WORDS = {
    **{name: name for name in ("swiglu_limit", "swiglu_alpha", "swiglu_beta")},
    "mlp_gate_softcap": "gate_softcap",
    "mlp_up_softcap": "up_softcap",
}
"""Names of the numbers of activations in configs, and as arguments."""

_BY_NUMBERS = {
    ("swiglu_limit",): Activation.SWIGLU_CLAMP,
    ("swiglu_limit", "swiglu_alpha"): Activation.SWIGLU_OAI,
    ("swiglu_alpha",): Activation.SWIGLU_OAI,  # whose limit is then asked for
    ("swiglu_limit", "swiglu_alpha", "swiglu_beta"): Activation.SWIGLU_BIAS,
    ("gate_softcap", "up_softcap"): Activation.SITU,
}
"""
The activation that a config means by SiLU together with certain numbers. A new combination is a new
line here.
"""

_LIMITS = "swiglu_limits"
"""Entry with a limit for each layer, 0 for no limit, in configs of Step-3.5 and 3.7."""

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
"""Words in the name of a field that is not about routed experts."""


def fields(
    family: Mapping[str, Any],
    said: Said | None,
    given: Mapping[str, Any],
    layer: int | None = None,
    *,
    is_gated: bool = True,
) -> dict[str, Any]:
    """
    Return the fields of `MoEConfig` that describe the activation between the products.

    Args:
        family: Defaults of the family.
        said: The statements of the model's config.
        given: The values that the caller gives, by the names of the fields.
        layer: Number of the layer; None: it is not known.
        is_gated: Whether experts have gates.

    Raises:
        InputError: The config has an activation that layers do not support, or the caller
            contradicts it.
    """
    told: dict[str, Any] = {}
    if said is not None:
        told = _told(said, family.get("activation"), layer) if is_gated else _ungated(said)
    for name, value in given.items():
        if said is not None and name in told and not _is_same(value, told[name]):
            raise InputError(
                name,
                f"must be {told[name]!r}, as {said.what} says (got {value!r}): leave it out, or "
                "give config= where that is about another layer",
            )
    found = {**family, **told, **given}
    if not is_gated and "activation" not in found:
        raise InputError(
            "activation",
            f"is required for experts without gates, such as {Activation.RELU2} (got None)",
        )
    kind = given.get("activation", told.get("activation"))
    if kind in tuple(Activation):
        numbers = Activation(kind).numbers
        found |= {name: given.get(name) for name in NUMBERS if name not in numbers}
        missing = [name for name in numbers if name not in found]
        if missing and said is not None and "activation" in told:
            raise InputError(
                missing[0],
                f"is required: {said.what} asks for {kind} and does not say it (got None)",
            )
    return found


def _told(said: Said, of_family: object, layer: int | None) -> dict[str, Any]:
    """Return the fields of the activation that the config states."""
    section = {name: value for name, value in said.section.items() if isinstance(name, str)}
    _refuse_unknown(said, section)
    numbers = {
        argument: value
        for name, argument in _WORDS.items()
        if (value := number(said, section, name)) is not None
    }
    named = _activations(said, section)
    others: dict[Activation, str] = {
        kind: words for kind, words in named.items() if kind != Activation.SWIGLU
    }
    step = _limit_of(said, section, layer)
    if step is not None:
        if numbers or others:
            what = ", ".join([_said_as([*numbers]), *others.values()]).strip(", ")
            raise said.error(f"says {_LIMITS} and {what}, which is not understood together")
        return {"activation": str(Activation.SWIGLU_STEP), "swiglu_limit": step}
    if of_family is not None:  # which calls it SiLU
        own = Activation(str(of_family))
        for words in (words for kind, words in others.items() if kind != own):
            raise said.error(f"says {words}, and these names are of experts with {own}")
        others = {own: ""}
    if not others and numbers:
        others = {_by_numbers(said, numbers): ""}
    found = others or named
    if len(found) > 1:
        raise said.error(f"says {' and '.join(found.values())}, of which a layer has one")
    for kind in found:
        strange = [name for name in numbers if name not in kind.numbers]
        if strange:
            raise said.error(f"says {_said_as(strange)}, which {kind} has not")
        return {"activation": str(kind), **numbers}
    return {}


def _ungated(said: Said) -> dict[str, Any]:
    """Return the fields that the config states for an activation without a gate."""
    section = {name: value for name, value in said.section.items() if isinstance(name, str)}
    _refuse_unknown(said, section)
    named = _activations(said, section, _WITHOUT_GATES)
    strange = [name for name in (*_WORDS, _LIMITS) if section.get(name)]
    if strange or len(named) > 1:
        words = " and ".join([*named.values(), *strange])
        raise said.error(f"says {words}, and these names are of experts without gates")
    return {"activation": str(next(iter(named)))} if named else {}


def _by_numbers(said: Said, numbers: Mapping[str, float]) -> Activation:
    """
    Return the activation of a config that names SiLU and states these numbers: see `_BY_NUMBERS`.
    """
    found = _BY_NUMBERS.get(tuple(numbers))
    if found is None:
        raise said.error(
            f"says {_said_as([*numbers])}, which changes what experts compute and which no layer "
            "computes without others"
        )
    return found


def _said_as(arguments: list[str]) -> str:
    """Return the names of some numbers in configs, as text."""
    return " and ".join(name for name, argument in _WORDS.items() if argument in arguments)


def _limit_of(said: Said, section: Mapping[str, Any], layer: int | None) -> float | None:
    """
    Return the limit of a layer from a list with one for each layer; None if there is no such list
    or no limit.
    """
    limits = section.get(_LIMITS)
    if not limits or (isinstance(limits, list | tuple) and not any(limits)):
        return None
    if not isinstance(limits, list | tuple) or layer is None or layer >= len(limits):
        raise said.error(
            f"says {_LIMITS} = {shown(limits)}, one for each layer, and the number of this layer "
            f"is {layer}"
        )
    return number(said, {_LIMITS: limits[layer] or None}, _LIMITS)


def _activations(
    said: Said, section: Mapping[str, Any], names: Mapping[str, Activation] = _NAMES
) -> dict[Activation, str]:
    """Return the named activations, all of which layers support, and the words that name them."""
    found = {}
    for name, value in section.items():
        if value is None or not _ACTIVATION.fullmatch(name) or _ELSEWHERE.search(name):
            continue
        word = value.get("name") if isinstance(value, Mapping) else value
        if not isinstance(word, str) or word.lower() not in names:
            raise said.error(
                f"says {name} = {shown(value)}, and a layer computes {', '.join(names)} alone"
            )
        found[names[word.lower()]] = f"{name} = {shown(value)}"
    return found


def _refuse_unknown(said: Said, section: Mapping[str, Any]) -> None:
    """Refuse unknown words that may change the activation."""
    for name, value in section.items():
        if (
            name in (*_WORDS, _LIMITS, *OF_ZERO_EXPERTS)
            or not _FORMULA.search(name)
            or _ELSEWHERE.search(name)
        ):
            continue
        is_off = not any(value) if isinstance(value, list | tuple) else not value
        if not is_off:
            raise said.error(
                f"says {name} = {shown(value)}, which changes what experts compute and which is "
                "not read of a config; give config= without it where it is about something else"
            )


def number(said: Said, section: Mapping[str, Any], name: str) -> float | None:
    """
    Return the number under a name; None if there is none.

    Raises:
        InputError: The value is not a number above 0.
    """
    value = section.get(name)
    if value is None:
        return None
    if not is_number(value) or value <= 0:
        raise said.error(f"must have a number above 0 for {name} (got {shown(value)})")
    return float(value)


def _is_same(given: object, told: object) -> bool:
    return isinstance(given, str | int | float) and given == told
