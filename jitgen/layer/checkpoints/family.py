# SPDX-License-Identifier: Apache-2.0
"""
Families: the names of the tensors of experts in a checkpoint. They are independent of the encoding
of values, `jitgen.layer.checkpoints.encodings`; any family may have any encoding.

=========================  ========================================================================
family                     names below the prefix
=========================  ========================================================================
deepseek_v3, qwen3_moe     ``experts.E.gate_proj``, ``up_proj`` (I, H), ``down_proj`` (H, I)
mixtral, minimax_m2        ``experts.E.w1`` (gates), ``w3`` (ups), ``w2`` (down)
gpt_oss                    ``experts.gate_up_proj``, ``down_proj`` of all experts, with ``_bias``;
                           gates and ups alternate
qwen3_5_moe, llama4        the same names without ``_bias``; all gates come before all ups
nemotron_h                 ``experts.E.up_proj`` (I, H), ``down_proj`` (H, I), without gates
nemotron_h_fused           ``experts.up_proj``, ``down_proj`` of all experts, without gates
=========================  ========================================================================

The last word of a name is a role, such as ``weight`` or ``weight_scale``. It follows a dot in names
of one expert, and an underscore in names of all experts. Tensors of all experts are (E, N, K) or
(E, K, N); their shapes decide which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from jitgen.support.frozen import frozen

EXPERT = ".E."
"""Placeholder for the number of an expert in names."""

BIAS = "bias"
"""The role of a bias, which is added to a product."""

_LIMIT, _ALPHA = 7.0, 1.702


@frozen
class Family:
    """
    A family of names of tensors.

    Attributes:
        gate_up: Names of the modules of the gates and of the ups; only one name if one tensor has
            both, or if there are no gates.
        down: Name of the module of the second product, the down projection.
        is_fused: Whether one tensor has the matrices of all experts.
        is_gated: Whether there are gates.
        has_bias: Whether both products have a bias; only allowed with `is_fused`.
        config: Fields of `MoEConfig` that follow from the family.
    """

    gate_up: tuple[str, ...]
    down: str
    is_fused: bool = False
    is_gated: bool = True
    has_bias: bool = False
    config: Mapping[str, object] = field(default_factory=dict)

    @property
    def inputs(self) -> int:
        """Rows of the first product for each column I: 2, or 1 without gates."""
        return 2 if self.is_gated else 1

    @property
    def rows(self) -> int:
        """Rows of each module of `gate_up` for each column I: 2 if one module has gates and ups."""
        return self.inputs // len(self.gate_up)

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of the modules: gates, ups and down."""
        return (*self.gate_up, self.down)

    def names(self, module: str, role: str) -> tuple[str, ...]:
        """Return the names below the prefix that a role of a module may have."""
        if not self.is_fused:
            return (f"experts{EXPERT}{module}.{role}",)
        start = f"experts.{module}"
        if role == "weight":
            return start, f"{start}_weight"
        short = f"{start}_{role.removeprefix('weight_')}"
        return tuple(dict.fromkeys((short, f"{start}_{role}")))


_BY_PROJECTION = Family(gate_up=("gate_proj", "up_proj"), down="down_proj")
_BY_NUMBER = Family(gate_up=("w1", "w3"), down="w2")
_FUSED = Family(gate_up=("gate_up_proj",), down="down_proj", is_fused=True)

FAMILIES: dict[str, Family] = {
    "deepseek_v3": _BY_PROJECTION,
    "qwen3_moe": _BY_PROJECTION,
    "mixtral": _BY_NUMBER,
    "minimax_m2": _BY_NUMBER,
    "gpt_oss": Family(
        gate_up=("gate_up_proj",),
        down="down_proj",
        is_fused=True,
        has_bias=True,
        config={
            "activation": "swiglu_oai",
            "interleaved": True,
            "swiglu_limit": _LIMIT,
            "swiglu_alpha": _ALPHA,
        },
    ),
    "qwen3_5_moe": _FUSED,
    "llama4": _FUSED,
    "nemotron_h": Family(gate_up=("up_proj",), down="down_proj", is_gated=False),
    "nemotron_h_fused": Family(
        gate_up=("up_proj",), down="down_proj", is_fused=True, is_gated=False
    ),
}
"""
Every family, by the name of a model that has it. The first one whose names the checkpoint has is
used.
"""


def known_as(family: Family) -> str:
    """Return the names of models with this family, as text."""
    return ", ".join(name for name, each in FAMILIES.items() if each == family)


def below(prefix: str, name: str) -> str:
    """Return a name below a prefix; with an empty prefix, the name itself."""
    return f"{prefix}.{name}" if prefix else name
