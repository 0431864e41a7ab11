# SPDX-License-Identifier: Apache-2.0
"""Configs that a target refuses: what is asked of every refusal, and that it is the end of it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jitgen
from jitgen.compile import compiler, isolated
from jitgen.config import Config
from jitgen.errors import UnsupportedConfig
from jitgen.targets.legality import check


def assert_refused(config: Config, arch: str, code: str, number: str = "") -> Any:
    """Assert a refusal with its code, a number in its reason, and a legal neighbour; return it."""
    verdict = check(config, arch)

    assert not verdict
    assert verdict.code == code
    assert verdict.reason
    assert number in verdict.reason
    assert verdict.derived is None
    assert verdict.proposal is not None
    assert check(verdict.proposal, arch)
    return verdict


def random_refusals(
    at_random: Callable[[random.Random], Any], arch: str, count: int, seed: int
) -> Iterator[Any]:
    """Yield refused ones of the configs that `at_random` makes, the same every time."""
    chance = random.Random(seed)
    while count:
        asked = at_random(chance)
        if not check(asked, arch):
            count -= 1
            yield asked


def codes_of(refusals: Iterable[Any], arch: str) -> set[str]:
    """
    Return the codes of grouped GEMMs that are refused, each of which has a reason with numbers and
    a legal proposal of the same layout.
    """
    codes = set()
    for refused in refusals:
        verdict = check(refused, arch)

        assert re.fullmatch(r"E_[A-Z_]+", verdict.code), refused
        assert re.search(r"\d", verdict.reason), verdict.reason
        assert verdict.proposal is not None, refused
        assert verdict.proposal.layout == refused.layout
        assert check(verdict.proposal, arch), refused
        codes.add(verdict.code)
    return codes


def assert_none_is_compiled(
    refusals: Iterable[Any], arch: str, monkeypatch: pytest.MonkeyPatch, cache_root: Path
) -> None:
    """
    Assert that asking for a kernel of any of `refusals` raises before anything is compiled, here or
    in a process, or published.
    """

    def never(*_: object, **__: object) -> None:
        pytest.fail("the compiler was called")

    monkeypatch.setattr(compiler, "compile_source", never)
    monkeypatch.setattr(isolated, "compile_task", never)
    for refused in refusals:
        with pytest.raises(UnsupportedConfig) as caught:
            jitgen.get_kernel(refused, arch)

        assert caught.value.code == check(refused, arch).code
    assert not [*cache_root.rglob("kernel.*")]
