# SPDX-License-Identifier: Apache-2.0
"""Kernels for the CPU are verified by running them: right ones are right, wrong ones are told."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import jitgen
from jitgen.config import Arch, Config
from jitgen.errors import ConfigError
from jitgen.verify import verify
from jitgen.verify.native import verified
from tests.strategies import SWEEPS

NAMES = (
    "combine_bf16_shared_cpu",
    "route_given_e32_cpu",
    "activation_quantize_ragged_none_swiglu_cpu",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_right_kernel_is_right(name: str, shared_cache: object) -> None:
    config, arch = Config.parse(name)
    found = verify(config, arch)

    assert found.is_right
    assert len(found.trials) > 3
    assert {trial.values for trial in found.trials} == {"integers", "random"}
    assert found.to_json()["right"] is True
    assert found.to_json()["trials"][0]["runs"] == []


def test_a_wrong_kernel_is_told(shared_cache: object) -> None:
    """One that writes nothing, and one that forgets a value."""
    config, arch = Config.parse("combine_bf16_cpu")
    right = jitgen.get_kernel(config, arch).function

    def forgets(*tensors: object) -> None:
        right(*tensors)
        out = tensors[-1]
        out.view(-1)[0] += 1  # type: ignore[attr-defined]

    for function in (lambda *tensors: None, forgets):
        found = verified(config, arch, function, "10:264:9")
        assert not found.is_right
        assert found.trials[0].wrong > 0
        assert found.trials[0].places


def test_sizes_are_those_of_the_operation(shared_cache: object) -> None:
    config, arch = Config.parse("combine_bf16_cpu")
    with pytest.raises(ConfigError, match="problem"):
        verify(config, arch, "1:2:3:4:5:6")


@pytest.mark.nightly
@pytest.mark.parametrize("op", [op for op in SWEEPS if op != "grouped_gemm"])
def test_some_of_every_operation(op: str, shared_cache: object) -> None:
    from itertools import islice

    from jitgen.targets.legality import target

    if op not in target(Arch.CPU).operations:
        pytest.skip(f"the CPU has no {op}")
    for config in islice(SWEEPS[op](Arch.CPU), 0, None, 60):
        assert verify(config, Arch.CPU).is_right, config


@pytest.mark.nightly
def test_the_command(shared_cache: object) -> None:
    """In processes of their own, from a name and from the key of a cached kernel."""
    names = ["combine_bf16_cpu", jitgen.get_kernel("route_given_e32_cpu").key]
    command = [sys.executable, "-m", "jitgen", "verify", *names, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [each["state"] for each in document["kernels"]] == ["right", "right"]
    assert document["modes"] == ["native"]
