# SPDX-License-Identifier: Apache-2.0
"""The key holds what the source depends on besides the templates: each constant of the rules."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import pytest

from jitgen.codegen import parameters
from jitgen.codegen import render as rendering
from jitgen.codegen.render import render
from jitgen.config import Arch, Config
from jitgen.errors import UnsupportedConfig
from jitgen.runtime.spec import document
from jitgen.targets import gemm, legality
from tests.pinned import NAMES

MODULES = [
    "jitgen.config.config",
    "jitgen.targets.gemm",
    "jitgen.targets.activation_quantize_space",
    "jitgen.targets.permute_space",
    "jitgen.targets.cpu.permute_quantize",
    "jitgen.targets.sm_90a.permute_quantize",
    "jitgen.targets.sm_90a.combine",
    "jitgen.targets.fc2_space",
    "jitgen.targets.route_space",
    "jitgen.config.moe_fc2_dense",
    "jitgen.targets.cpu.grouped_gemm",
    "jitgen.targets.wgrad_space",
    "jitgen.targets.cpu.grouped_gemm_wgrad",
    "jitgen.targets.cpu.activation_quantize",
    "jitgen.targets.cpu.moe_fc2_dense",
    "jitgen.targets.sm_90a.rules",
    "jitgen.targets.sm_90a.fp4",
    "jitgen.targets.sm_90a.fp4_tiles",
    "jitgen.targets.sm_90a.grouped_gemm",
    "jitgen.targets.sm_90a.grouped_gemm_wgrad",
    "jitgen.targets.sm_90a.activation_quantize",
    "jitgen.targets.sm_90a.quantize",
    "jitgen.targets.sm_90a.route",
    "jitgen.targets.sm_90a.moe_fc2_dense",
    "jitgen.targets.sm_100a.moe_fc2_dense",
    "jitgen.codegen.parameters",
    "jitgen.codegen.render",
]
CHANGED_TOGETHER = ("RENDERING", "COMMENT_WIDTH")
"""In every key, whatever it changes: the version of `render`, and the width of its comments."""

KERNELS = [Config.parse(name) for name in NAMES]
NEAR = {(str(arch), config.op): (config, arch) for config, arch in reversed(KERNELS)}
"""The first kernel of each operation of each target."""


def near(module: str) -> list[tuple[Config, Arch]]:
    """
    Return the kernels that a module speaks of, a target's or an operation's; one of each kind where
    it speaks of all.
    """
    words = module.split(".")
    ops = {op for _, op in NEAR if op in words}
    targets = {arch for arch, _ in NEAR if arch in words}
    if not ops and not targets:
        return [*NEAR.values()]
    return [
        (config, arch)
        for config, arch in KERNELS
        if (not ops or config.op in ops) and (not targets or str(arch) in targets)
    ]


def _others(value: Any) -> Iterator[Any]:
    """Yield other values of a constant's kind."""
    if isinstance(value, dict):
        for key, one in value.items():
            for other in _others(one):
                yield {**value, key: other}
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from (value * 2, value // 2, value + 16)


def constants() -> Iterator[Any]:
    """
    Yield each constant with other values, and the kernels to look at: on every push those that are
    near, with the first value; at night those with every value, and all kernels with the first.
    """
    for module in MODULES:
        for name, value in vars(importlib.import_module(module)).items():
            if name.isupper() and not name.startswith("__"):
                for number, other in enumerate(_others(value)):
                    marks = pytest.mark.nightly if number else ()
                    yield pytest.param(module, name, other, near(module), marks=marks)
                    if number == 0:
                        yield pytest.param(module, name, other, KERNELS, marks=pytest.mark.nightly)


def forget() -> None:
    legality._check.cache_clear()
    gemm._legal.cache_clear()


def made(config: Config, arch: Arch) -> tuple[str, dict[str, Any]] | None:
    """Return source and key document; None where the rules refuse the config."""
    try:
        return render(config, arch).text, document(config, arch)
    except (UnsupportedConfig, StopIteration, KeyError):  # no box of 6 bytes, no such warpgroups
        return None


_specialised = lru_cache(maxsize=256)(rendering.specialised)


@pytest.fixture(autouse=True)
def specialised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What the last pass makes of a text follows from the text, which most constants leave alone; it
    takes three quarters of the time of a rendering.
    """
    monkeypatch.setattr(rendering, "specialised", _specialised)


_unpatched: dict[tuple[Config, Arch], Any] = {}


@pytest.fixture
def before() -> Iterator[Callable[[tuple[Config, Arch]], Any]]:
    """What was made of a kernel before anything was patched."""

    def made_once(kernel: tuple[Config, Arch]) -> Any:
        if kernel not in _unpatched:
            _unpatched[kernel] = made(*kernel)
        return _unpatched[kernel]

    forget()
    yield made_once
    forget()


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("module", "name", "value", "kernels"),
    list(constants()),
    ids=lambda value: str(len(value) if isinstance(value, list) else value).rpartition(".")[2][:40],
)
def test_a_constant_changes_source_and_key_together(
    module: str,
    name: str,
    value: Any,
    kernels: list[tuple[Config, Arch]],
    before: Callable[[tuple[Config, Arch]], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    were = [before(kernel) for kernel in kernels]
    monkeypatch.setattr(f"{module}.{name}", value)
    forget()
    for kernel, was in zip(kernels, were, strict=True):
        now = made(*kernel)
        if now is None:
            continue  # refused: nothing is served
        assert (now[0] != was[0]) == (now[1] != was[1]) or name in CHANGED_TOGETHER, kernel


def test_some_constants_count(
    before: Callable[[tuple[Config, Arch]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patching reaches the rules: the number of stages is in both."""
    were = [before(kernel) for kernel in NEAR.values()]
    monkeypatch.setattr("jitgen.targets.sm_90a.rules.MAX_STAGES", 3)
    forget()
    changed = [made(*kernel) != was for kernel, was in zip(NEAR.values(), were, strict=True)]

    assert any(changed)


def test_the_version_of_rendering_is_part_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else tells a change of what `render` writes."""
    was = document(*KERNELS[0])
    monkeypatch.setattr(parameters, "RENDERING", parameters.RENDERING + 1)

    assert document(*KERNELS[0]) != was
