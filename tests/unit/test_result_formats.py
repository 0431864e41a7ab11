# SPDX-License-Identifier: Apache-2.0
"""Formats of results: one enumeration, of which every config and problem has its own members."""

from __future__ import annotations

from typing import Any

import pytest

from jitgen.config import Config
from jitgen.config.activation_quantize import ActivationQuantizeConfig, ActivationQuantizeProblem
from jitgen.config.config import Part
from jitgen.config.format import IN_ATOMS, IN_ROWS, Format
from jitgen.config.permute_quantize import PermuteQuantizeConfig, PermuteQuantizeProblem
from jitgen.config.quantize import QuantizeConfig, QuantizeProblem
from jitgen.errors import ConfigError
from tests.cases import possible

SIZES: dict[str, Any] = {"layout": "ragged", "m": 8}
CASES: list[tuple[type[Part], str, tuple[Format, ...], dict[str, Any]]] = [
    (ActivationQuantizeConfig, "scale_granularity", IN_ROWS, {"layout": "ragged"}),
    (ActivationQuantizeProblem, "scale_granularity", IN_ROWS, SIZES | {"groups": 2, "n": 128}),
    (PermuteQuantizeConfig, "format", (*Format,), {"layout": "ragged"}),
    (PermuteQuantizeProblem, "format", (*Format,), SIZES | {"k": 128}),
    (QuantizeConfig, "format", IN_ATOMS, {"layout": "ragged"}),
    (QuantizeProblem, "format", IN_ATOMS, SIZES | {"groups": 2, "k": 128}),
]
every = pytest.mark.parametrize(("kind", "field", "allowed", "others"), CASES)


@every
def test_a_class_has_its_own_members(
    kind: type[Part], field: str, allowed: tuple[Format, ...], others: dict[str, Any]
) -> None:
    """Any other word is one error, where the config is made and where it is read."""
    words = ", ".join(allowed)
    for each in (*Format, "mx32", 8, None):
        if each in allowed:
            assert getattr(kind(**others, **{field: each}), field) is each
            continue
        with pytest.raises(ConfigError, match=f"^{field} must be one of {words} \\(got "):
            kind(**others, **{field: each})
        with pytest.raises(ConfigError, match=f"{field} must be one of {words} \\(got "):
            kind.from_json({**others, field: each})


@every
def test_tests_take_no_other(
    kind: type[Part], field: str, allowed: tuple[Format, ...], others: dict[str, Any]
) -> None:
    del others
    assert {value.word for value in possible(kind) if value.field == field} == {*allowed}


@pytest.mark.parametrize(
    ("name", "field", "allowed"),
    [
        ("activation_quantize_ragged_mxfp8_swiglu_cpu", "scale_granularity", IN_ROWS),
        ("quantize_ragged_row_sm_90a", "format", IN_ATOMS),
        ("quantize_ragged_e4m3_sm_90a", "format", IN_ATOMS),
        ("permute_quantize_ragged_mx32_gather_sm_90a", "format", (*Format,)),
    ],
)
def test_a_name_says_which_there_are(name: str, field: str, allowed: tuple[Format, ...]) -> None:
    with pytest.raises(ConfigError, match=f"{field} must be one of {', '.join(allowed)}"):
        Config.parse(name)
