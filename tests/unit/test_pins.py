# SPDX-License-Identifier: Apache-2.0
"""What jitgen asks for leaves room for what others pin."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def pins(name: str) -> dict[str, Requirement]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    found = (Requirement(line) for line in lines if line and not line.startswith("#"))
    return {pin.name.lower(): pin for pin in found}


@pytest.mark.parametrize("name", ["constraints.txt", "tests/pins/engines.txt"])
def test_pins_are_allowed(name: str) -> None:
    """apache-tvm-ffi was asked for in a version that no engine could be installed beside."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [Requirement(text) for text in project["dependencies"]]
    pinned = pins(name)
    checked = [ask.name for ask in asked if ask.name in pinned]
    for ask in asked:
        if ask.name in pinned:
            (pin,) = pinned[ask.name].specifier
            assert ask.specifier.contains(pin.version.replace("*", "0")), ask

    assert {"apache-tvm-ffi", "nvidia-cutlass-dsl", "torch"} <= set(checked)
