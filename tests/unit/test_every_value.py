# SPDX-License-Identifier: Apache-2.0
"""Every value of every field of every config has a kernel that a push compiles and compares."""

from __future__ import annotations

import importlib
import pkgutil
from collections import defaultdict
from enum import StrEnum
from typing import Any

import pytest

import jitgen.config
from jitgen.config.config import Config, DType, Numerics, Part, ScaleGranularity
from jitgen.config.grammar import Vocabulary
from jitgen.config.operation import operation
from jitgen.config.plugins import OPERATIONS
from jitgen.config.prepacked import PrepackedFormat
from tests.cases import kernels, possible

FLOATS = ("bf16", "f16", "f32")
CODES = ("e2m1", "e4m3")

ONLY: dict[str, dict[str, tuple[str, ...]]] = {
    "grouped_gemm": {
        "operands.a_dtype": (*CODES, "e4m3x2", *FLOATS),  # int4 is prepacked weights' alone
        "operands.b_dtype": (*CODES, "int4", *FLOATS),  # e4m3x2 is two parts of a
        "operands.out_dtype": FLOATS,
        "operands.scale_granularity": (
            *("block128", "group128", "group32", "mx32", "nv16", "row", "tensor"),  # b's
        ),
        "operands.a_scale_granularity": ("None", "block128", "none", "row"),  # else b's
    },
    "grouped_gemm_wgrad": {
        "layout": ("masked", "ragged"),  # rows of a group lie together
        "a_dtype": FLOATS,
        "out_dtype": FLOATS,
    },
    "moe_fc2_dense": {
        "operands.a_dtype": CODES,
        "operands.b_dtype": CODES,
        "operands.out_dtype": FLOATS,
        "operands.scale_granularity": ("block128", "mx32", "nv16"),
        "operands.a_scale_granularity": ("None",),
        "operands.b_layout": ("plain",),
        "schedule.early_b": ("False",),  # a is loaded row by row, by the same warps
        "schedule.safe_selectors": ("False",),
        "schedule.swap_tail": ("False",),
        "schedule.extra_rows": ("False",),
        "schedule.one_group": ("False",),
    },
    "route": {"scores_dtype": ("None", "bf16", "f16", "f32")},
    "unpack_weights": {"b_layout": ("exact1", "folded1")},
}
"""Fields that have a few of their type's values on all targets, and which these are."""

APART = {
    PrepackedFormat: "a type of values and a granularity of scales, which configs have each",
    Numerics: "what a call asks for, which chooses a config and is no part of one",
    Vocabulary: "an enumeration without members, which others are made of",
}
"""Enumerations of `jitgen.config` that no config has, and why."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("op", OPERATIONS.names())
def test_every_value_of_every_field_has_a_kernel(op: str) -> None:
    """On a GPU that is emulated or on a CPU; by itself, where the rules of a target have it."""
    wanted, found = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for field, word in possible(operation(op).config_type):
        wanted[field].add(word)
    for kernel in [*kernels(op, on_gpu=True), *kernels(op, on_gpu=False)]:
        for field, word in kernel.values:
            found[field].add(word)
    for field, words in ONLY.get(op, {}).items():
        assert {*words} <= wanted[field], f"ONLY names what {op}'s {field} cannot be"
        wanted[field] = {*words}

    missing = {field: wanted[field] - found[field] for field in wanted}
    assert not {field: words for field, words in missing.items() if words}, (
        f"no kernel of {op} that a push compiles has these: let the rules of a target, or the "
        f"sweep of {op} in tests/strategies.py, yield a config with it; what no target can do is "
        "left out of ONLY, in tests/unit/test_every_value.py"
    )
    more = {field: found[field] - wanted[field] for field in wanted}
    assert not {field: words for field, words in more.items() if words}, (
        "a target has these now: add them to ONLY, in tests/unit/test_every_value.py"
    )


def enumerations() -> set[type[StrEnum]]:
    """Return the enumerations of all modules of `jitgen.config`."""
    modules = [
        importlib.import_module(f"jitgen.config.{each.name}")
        for each in pkgutil.iter_modules(jitgen.config.__path__)
    ]
    return {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, StrEnum) and value is not StrEnum
    }


def test_every_member_of_every_enumeration_has_a_kernel() -> None:
    """Of those that configs are made of, in whatever field."""
    found: dict[type[StrEnum], set[StrEnum]] = defaultdict(set)
    for op in OPERATIONS.names():
        for on_gpu in (True, False):
            for kernel in kernels(op, on_gpu=on_gpu):
                for value in _leaves(kernel.config):
                    if isinstance(value, StrEnum):
                        found[type(value)].add(value)

    assert {DType, ScaleGranularity} <= found.keys()
    assert enumerations() - found.keys() == APART.keys(), (
        "an enumeration that no config has stands in APART, in tests/unit/test_every_value.py"
    )
    missing = {kind.__name__: {*kind} - found[kind] for kind in found}
    assert not {kind: members for kind, members in missing.items() if members}, (
        "no kernel that a push compiles has these: let the rules of a target, or a sweep of "
        "tests/strategies.py, yield a config with each"
    )


def _leaves(part: Part) -> list[Any]:
    return [
        leaf
        for value in part.values().values()
        for leaf in (_leaves(value) if isinstance(value, Part) else [value])
    ]


@pytest.mark.parametrize("op", OPERATIONS.names())
def test_they_are_few(op: str) -> None:
    """A push compiles them all, each in a second or two."""
    found = [*kernels(op, on_gpu=True), *kernels(op, on_gpu=False)]

    assert all(isinstance(kernel.config, Config) for kernel in found)
    assert 0 < len({*found}) == len(found) < 50
