# SPDX-License-Identifier: Apache-2.0
"""Names of kernels of every operation: each config has one, from which it comes back."""

from __future__ import annotations

import pytest

from jitgen.config import Arch, Config
from jitgen.targets.legality import target
from tests.strategies import SWEEPS
from tests.targets import EACH

LEAST = {
    "grouped_gemm_wgrad": 40,
    "moe_fc2_dense": 10,
    "quantize": 20,
    "route": 20,
    "unpack_weights": 8,
}
"""Configs that a sweep of an operation has more than; of others at least one."""


@pytest.mark.parametrize(
    ("arch", "op"),
    [
        pytest.param(*each.values, op, marks=each.marks)
        for each in EACH
        for op in SWEEPS
        if op in target(each.values[0]).operations and op != "grouped_gemm"
    ],
)
def test_names_parse_back(arch: Arch, op: str) -> None:
    configs = list(SWEEPS[op](arch))

    assert len({config.name(arch) for config in configs}) == len(configs) > LEAST.get(op, 0)
    for config in configs:
        assert Config.parse(config.name(arch)) == (config, arch)
        assert Config.from_json(config.to_json()) == config
