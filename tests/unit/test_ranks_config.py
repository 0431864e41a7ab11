# SPDX-License-Identifier: Apache-2.0
"""Configs of kernels between ranks: what goes together, and their names."""

from __future__ import annotations

import pytest

import jitgen
from jitgen.config import Config, Layout
from jitgen.config.combine_ranks import CombineRanksConfig
from jitgen.config.dispatch import DispatchConfig, DispatchProblem, vectors_of
from jitgen.config.format import Format
from jitgen.config.permute_quantize import PermuteQuantizeConfig, Walk
from jitgen.errors import UnsupportedConfig
from jitgen.targets.legality import check


@pytest.mark.parametrize(
    ("config", "arch", "code"),
    [
        (DispatchConfig(can_mask=True, by_flags=True), "sm_90a", "E_FLAGS"),
        (CombineRanksConfig(can_mask=True, by_flags=True), "sm_90a", "E_FLAGS"),
        (CombineRanksConfig(of_experts=True, by_flags=True), "sm_90a", "E_FLAGS"),
        (CombineRanksConfig(of_experts=True, can_mask=True), "sm_90a", "E_MASK"),
        (DispatchConfig(sorts=True, by_flags=True), "sm_90a", "E_SORTS"),
        (DispatchConfig(leaves=True), "sm_90a", "E_LEAVES"),
        (DispatchConfig(sorts=True, leaves=True, can_mask=True), "sm_90a", "E_LEAVES"),
        (
            PermuteQuantizeConfig(layout=Layout.RAGGED, format=Format.TENSOR, walk=Walk.TAKE),
            "sm_90a",
            "E_TAKE",
        ),
        (PermuteQuantizeConfig(layout=Layout.RAGGED, walk=Walk.TAKE), "cpu", "E_WALK"),
        (DispatchConfig(by_flags=True), "cpu", "E_FLAGS"),
        (DispatchConfig(sorts=True), "cpu", "E_SORTS"),
        (CombineRanksConfig(by_flags=True), "cpu", "E_FLAGS"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_go_together(config: Config, arch: str, code: str) -> None:
    verdict = check(config, arch)

    assert verdict.code == code
    assert check(verdict.proposal, arch)


def test_names_say_what_is_sent() -> None:
    config = DispatchConfig(format=Format.BLOCK128, by_flags=True)

    assert config.name("sm_90a") == "dispatch_bf16_block128_flags_sm_90a"
    assert Config.parse(config.name("sm_90a"))[0] == config


@pytest.mark.parametrize(("form", "length"), [("none", 1800), ("block128", 932), ("row", 905)])
def test_vectors_of_a_token(form: str, length: int) -> None:
    problem = DispatchProblem(m=1, k=7168, format=Format(form))

    assert problem.length == vectors_of(7168, 8, Format(form)) == length


def test_quantised_tokens_have_a_multiple_of_16_columns() -> None:
    with pytest.raises(UnsupportedConfig, match="K a multiple of 16 if tokens are sent as row"):
        jitgen.select(DispatchProblem(m=1, k=24, format=Format.ROW), "cpu")
